"""A real job on this machine whose processes are killed: LeNet-5, three workers of 0.03, 0.06 and 0.15 s a step."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from algorithms import folder_name
from config import CONTINUE, HUB
from experiments.fault_drill.drilled_logs import CHECKPOINT_EVERY, LONGEST_S, NOTICED, ROUNDS_BEFORE, Logs, wait_for
from experiments.fault_drill.faults import AMONG_WORKERS, NAMES, Fault, leaves_out
from flag_parser import FlagParser
from scripts.launch import forking
from scripts.launch.hosts_layout import free_ports
from scripts.launch.restarts import DEFAULT_RESTARTS
from scripts.launch.roles import base_environment

ROOT = Path(__file__).resolve().parents[2]
WORKERS = "0.03,0.06,0.15"
WRITTEN_S = 0.5  # in which a checkpoint is written
AGAIN_S = 0.3  # between two deaths
FLAP_S = 5.0  # between two of one worker
# The modes' flags; the step sizes were chosen by hand for LeNet-5.
FLAGS = {
    "esync": "-ll 0.003", "local-sgd": "-ll 0.003 --sync-every 4", "sync": "-l 0.003", "async": "-l 0.0015",
    "dcasgd": "-l 0.0015", "ssp": "-l 0.00075", "wbsp": "-ll 0.003", "wbsp-pcc": "-ll 0.003", "backup": "-l 0.003",
    "decoupled": "-ll 0.0003 --sync-every 4",
    "sync-switch": "-l 0.006 --switch-order 10 --train-steps 20 100000", "lb-bsp": "-l 0.003",
    "async-local": "-ll 0.003",
}  # fmt: skip


def parsed(
    parser: FlagParser, arguments: Sequence[str] | None, seconds: float, folder: str, table: str
) -> tuple[Namespace, Path]:
    """Adds the flags of both drills and parses; the folder of the results is there then. `seconds` and `folder` are
    defaults, `table` is a help."""
    parser.add_argument("--seconds", type=float, default=seconds, help="of each job")
    parser.add_argument("--folder", type=Path, default=Path(folder))
    parser.add_argument("--table", action="store_true", help=table)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    return given, given.folder.resolve()


Its = TypeVar("Its", bound="Job")


class Job:
    """A running job: its launcher's process. As a context manager it ends with its block.

    Attributes:
        logs: of its workers.
        lines: of its output, with their times.
    """

    network, workers = "lenet", WORKERS
    exchanges: Mapping[str, str] = AMONG_WORKERS

    def __init__(self, way: str, mode: str, seconds: float, log_base: Path, restarts: int = DEFAULT_RESTARTS) -> None:
        shutil.rmtree(log_base, ignore_errors=True)
        self._leaves_out = leaves_out(way, mode) or (way == CONTINUE and self.exchanges[mode] == HUB)
        launcher, self.logs = self.plan(mode, log_base)
        launcher += ["--restarts", str(restarts)]
        if way == CONTINUE and mode in self.exchanges:
            launcher += ["--exchange", self.exchanges[mode]]
        flags = [*FLAGS[mode].split(), "--max-seconds", str(seconds), "--eval-seconds", "3", "--on-worker-death", way]
        if not self._leaves_out:  # a job that goes on at a hub has no checkpoints
            flags += ["--ckpt-frequency", str(CHECKPOINT_EVERY)]
        flags += self.more_flags(way, log_base)
        command = self.at_desk([sys.executable, "-m", *launcher, "-m", mode, "-n", self.network, "--", *flags])
        self._launcher = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=base_environment(os.environ),  # with the token of a worker that comes
        )  # fmt: skip
        self._late: subprocess.Popen[bytes] | None = None
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def at_desk(self, command: list[str]) -> list[str]:
        """The command that starts the launcher on the user's machine."""
        return command

    def more_flags(self, way: str, log_base: Path) -> list[str]:
        """Further flags of main.py."""
        return []

    def plan(self, mode: str, log_base: Path) -> tuple[list[str], Logs]:
        """The launcher and its options without mode and network, and the logs of its workers."""
        options = ["scripts.launch.local_cluster", "--workers", self.workers, "--log-base", str(log_base)]
        return options, Logs(log_base, log_base / self.network / folder_name(mode, split_by_class=False))

    def _read(self) -> None:
        assert self._launcher.stdout is not None
        for line in self._launcher.stdout:
            self.lines.append((time.time(), line.rstrip()))

    def __enter__(self: Its) -> Its:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(0.0)

    @property
    def is_over(self) -> bool:
        return self._launcher.poll() is not None

    def notices(self) -> list[str]:
        """The first lines of its output on faults."""
        return [line for _, line in self.lines if NOTICED.search(line)][:4]

    def _children(self) -> Iterator[int]:
        for task in Path(f"/proc/{self._launcher.pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())

    def pids(self) -> dict[str, int]:
        """The running processes by the names of their logs."""
        found = {}
        for pid in self._children():
            with contextlib.suppress(OSError):
                found[Path(f"/proc/{pid}/fd/1").readlink().stem] = pid
        return found

    def has_begun(self) -> bool:
        """Whether every worker has done some rounds, and workers can be forked."""
        return all(len(self.logs.rounds(name)) >= ROUNDS_BEFORE for name in NAMES) and self.can_fork()

    def can_fork(self) -> bool:
        """Whether every host has a process to fork workers from."""
        return any(name_of(pid) == forking.NAME for pid in self._children())

    def wait_for(self, condition: Callable[[], bool], longest_s: float) -> bool:
        """Whether the condition held in time, before the job ended."""
        return wait_for(condition, longest_s, lambda: self.is_over)

    def signal(self, number: signal.Signals) -> None:
        """Sends it to the launcher."""
        self._launcher.send_signal(number)

    def end(self, longest_s: float) -> int | None:
        """Waits for the end; returns the launcher's exit code, or None where it had to be killed."""
        try:
            return self._launcher.wait(longest_s)
        except subprocess.TimeoutExpired:
            self._launcher.kill()
            self._launcher.wait()
            return None
        finally:
            if self._late is not None:
                self._late.terminate()
                self._late.wait()

    # ------------------------------------------------------------------------------------------------- faults

    def strike(self, fault: Fault, way: str) -> dict[str, Any]:
        """Makes a fault happen, and waits until all train again.

        Returns:
            began: its time; again_s: seconds until all that are left have done two more rounds (None: never);
            rounds_lost; back_s: until restarted workers have, too, where the others do not wait for them.
        """
        if fault.damages:
            time.sleep(WRITTEN_S)
        pids, before = self.pids(), self.logs.all_rounds()
        if fault.damages:
            newest = max(self.logs.folder.glob("*/.checkpoints/worker-0-*.ckpt"))
            os.truncate(newest, newest.stat().st_size // 2)
        first = began = time.time()
        for _ in range(fault.times - 1):
            send(self.pids(), fault.victims, signal.SIGKILL)
            time.sleep(FLAP_S)
            self.wait_for(lambda: self.pids().keys() >= {*fault.victims}, LONGEST_S)
            pids, began = self.pids(), time.time()
        if fault.comes:
            self._come(pids["worker2"])
        send(pids, fault.victims, signal.SIGSTOP if fault.freeze_s else signal.SIGKILL)
        if fault.freeze_s:
            threading.Timer(fault.freeze_s, send, (pids, fault.victims, signal.SIGCONT)).start()
        gone = {*fault.victims, *fault.then} if way == CONTINUE and {*NAMES} - {*fault.victims} else set()
        gone |= {*fault.victims} if fault.times > 1 else set()  # started again only after a new checkpoint
        never_back = fault.freeze_s or fault.times > 1
        if fault.then:
            time.sleep(AGAIN_S)
            began = time.time()
            send(self.pids(), fault.then, signal.SIGKILL)
        left = [name for name in NAMES if name not in gone]
        back = ["worker3"] if fault.comes else [] if never_back else [name for name in NAMES if name in gone]
        row: dict[str, Any] = {"began": began, "again_s": self.train_again(left, began)}
        if row["again_s"] is not None:
            row["rounds_lost"] = self.logs.rounds_lost(before, left, began)
        row |= {"pause_s": max(self.logs.pause_s(name, first) for name in left)} if fault.times > 1 else {}
        if back:
            row["back_s"] = self.train_again(back, began)
        return row

    def train_again(self, workers: Sequence[str], since: float) -> float | None:
        """Waits until all of them have done two more rounds; returns the seconds, or None."""
        self.wait_for(lambda: self.logs.again_s(workers, since) is not None, LONGEST_S)
        return self.logs.again_s(workers, since)

    def _come(self, like: int) -> None:
        """Starts a worker with the command of another one, but with its own device name."""
        words = Path(f"/proc/{like}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
        words[words.index("--device-name") + 1] = "cpu3"
        cluster = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": str(len(NAMES)), "DMLC_INTERFACE": "lo"}
        environment = base_environment(os.environ) | cluster | {"PORT": str(free_ports(1)[0])}
        with (self.logs.folder / "worker3.log").open("wb") as log:
            self._late = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log, env=environment)


def kib(pid: int) -> int:
    """Of memory in which a process resides."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def name_of(pid: int) -> str:
    """The process's name of `ps -o comm`; empty once it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def send(pids: Mapping[str, int], victims: Sequence[str], number: int) -> None:
    """Sends a signal to those that still run."""
    for victim in victims:
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(pids[victim], number)
