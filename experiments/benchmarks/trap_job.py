"""The two sides of experiments/benchmarks/traps.py: a state server on a port that stays the same, and a job that
trains."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from experiments.benchmarks import process_stat
from scripts.launch.ports import free_ports
from scripts.launch.process import Kind, Process
from scripts.launch.roles import ROOT, LocalJobSpec, build_roles
from trainer.run_logs.round_log import read_rounds
from trainer.simulation.cluster_file import Cluster, Worker

STEP_TIMES_S = (0.03, 0.1)  # of the two workers
WORKER_FLAGS = ("-b", "16", "-e", "100000", "-ll", "0.003")  # small steps: the machine has work beside them
LOOK_EVERY_S = 0.01
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
FIRST_ROUNDS = 5  # after them the job counts as training


class StateServer:
    """`manage.py serve`, which may be killed and started again."""

    def __init__(self, log: Path) -> None:
        self.port = process_stat.free_port()
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> StateServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Starts it, and waits until it listens."""
        command = [sys.executable, "manage.py", "serve", f"{process_stat.HOST}:{self.port}"]
        self._process = process_stat.start(command, ROOT / "SimpleStateServer", self.port, self._log)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            process_stat.end(self._process)

    def resident_mb(self) -> float:
        """Its memory."""
        return process_stat.resident_mb(self._process.pid) if self._process else 0.0


class Job:
    """A real ESync job that trains until it is stopped. A thread notes when each round ends."""

    def __init__(self, folder: Path, state_server_port: int) -> None:
        root_port, *worker_ports = free_ports(1 + len(STEP_TIMES_S))
        options = LocalJobSpec(
            mode="esync", network="lenet", num_servers=1, log_base=folder, data_dir=ROOT / "data", split_by_class=False,
            root_port=root_port, state_server_port=state_server_port, worker_arguments=WORKER_FLAGS, grace_s=60.0,
            cluster=Cluster(tuple(map(Worker, STEP_TIMES_S))), worker_ports=tuple(worker_ports),
        )  # fmt: skip
        options.host_folder.mkdir(parents=True)
        self._devices = [options.host_folder / device for device in options.devices]
        self._rounds: list[float] = []  # when each ended
        self.losses: list[str] = []
        self._stopped = threading.Event()
        roles = [role for role in build_roles(options, os.environ) if role.kind is not Kind.SERVICE]
        self._processes = [Process(role) for role in roles]
        self._watch = threading.Thread(target=self._note_rounds, daemon=True)
        self._watch.start()

    def _note_rounds(self) -> None:
        while not self._stopped.wait(LOOK_EVERY_S):
            while (self._devices[0] / f"iter-{len(self._rounds) + 1}.txt").exists():
                self._rounds.append(time.monotonic())

    def wait_until_it_trains(self) -> None:
        """Waits for its first rounds.

        Raises:
            SystemExit: it died, or none came.
        """
        give_up = time.monotonic() + START_TIMEOUT_S
        while len(self._rounds) < FIRST_ROUNDS:
            if time.monotonic() > give_up or not self.lives():
                self.kill()
                raise SystemExit(f"error: the job did not begin to train: {self.last_words()}")
            time.sleep(LOOK_EVERY_S)

    def lives(self) -> bool:
        """Whether all its processes run."""
        return all(process.exit_code is None for process in self._processes)

    def rate(self, begin: float, end: float) -> float:
        """Rounds a second between two moments."""
        return sum(begin <= moment < end for moment in self._rounds) / (end - begin)

    def longest(self, begin: float, end: float) -> float:
        """Seconds of the longest round that lay at least partly between two moments."""
        moments = [begin, *(moment for moment in self._rounds if begin <= moment < end), end]
        return max(later - earlier for earlier, later in itertools.pairwise(moments))

    def last_words(self) -> str:
        """The last line of each worker's log, and how it ended."""
        return " | ".join(
            f"{process.role.name} ({process.exit_code}): {(process.new_lines() or [''])[-1]}"
            for process in self._processes
            if process.role.kind is Kind.WORKER
        )

    def stop(self) -> str:
        """Tells the workers to end with their round; returns what they have done, and notes `losses`."""
        workers = [process for process in self._processes if process.role.kind is Kind.WORKER]
        for worker in workers:
            worker.send(signal.SIGTERM)
        give_up = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < give_up and any(worker.exit_code is None for worker in workers):
            time.sleep(LOOK_EVERY_S)
        codes = [worker.exit_code for worker in workers]
        if set(codes) != {0}:
            self.losses.append(f"the workers did not end in order: {self.last_words()}")
        rounds = [self._rounds_of(device) for device in self._devices]
        for device, numbers in zip(self._devices, rounds, strict=True):
            if numbers != list(range(1, len(numbers) + 1)) or len(numbers) != len(rounds[0]):
                self.losses.append(f"{device.name} has {len(numbers)} rounds, not each from 1 to {len(rounds[0])}")
        self.kill()
        return f"{len(rounds[0])} rounds, {'none' if not self.losses else 'some'} lost | workers ended with {codes}"

    @staticmethod
    def _rounds_of(device: Path) -> list[int]:
        records: list[dict[str, Any]] = list(read_rounds(device, print))
        return [int(record["num_iters"]) for record in records]

    def kill(self) -> None:
        """Ends what still runs."""
        self._stopped.set()
        for process in self._processes:
            if process.exit_code is None:
                process.send(signal.SIGKILL)
            process.reap()
