"""A real job on this machine that something is done to: its processes, its rounds, what it says and what it leaves.

LeNet-5, three workers of 0.03, 0.06 and 0.15 s a step.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithms import MEMBERS, OWNERS, TransportKind, folder_name
from config import CONTINUE, RESTART
from scripts import forking
from scripts.ports import free_ports
from scripts.roles import base_environment
from utils import read_rounds

ROOT = Path(__file__).resolve().parents[1]
WORKERS = "0.03,0.06,0.15"
NAMES = ("worker0", "worker1", "worker2")
BATCH = 64
CHECKPOINT_EVERY = 5  # rounds
ROUNDS_BEFORE = 2 * CHECKPOINT_EVERY  # of each worker, before a fault
MORE_ROUNDS = 2
WRITTEN_S = 0.5  # in which a checkpoint is written that was begun
AGAIN_S = 0.3  # after a death, another one
FREEZE_S = 20.0
LONGEST_S = 60.0  # from a fault until all train again
END_S = 60.0  # and beyond the job's own seconds for it to end
NOTICED = re.compile(
    r" is gone|was killed by signal|did not answer|is frozen|ended with exit code|closed its connection"
)
# What each mode is given beside the fault's own flags; learning rates as in nine_ways.sh.
FLAGS = {
    "esync": "-ll 0.003", "local-sgd": "-ll 0.003 --sync-every 4", "sync": "-l 0.003", "async": "-l 0.0015",
    "dcasgd": "-l 0.0015", "ssp": "-l 0.00075", "wbsp": "-ll 0.003", "wbsp-pcc": "-ll 0.003", "backup": "-l 0.003",
    "sync-switch": "-l 0.006 --switch-order 10 --train-steps 20 100000", "lb-bsp": "-l 0.003",
}  # fmt: skip
# A schedule of sums for each of the modes that can do without a parameter server: all three are drilled.
AMONG_WORKERS = {"esync": "ring", "sync": "butterfly", "local-sgd": "binary-blocks"}


@dataclass(frozen=True)
class Fault:
    """Something that happens to a job.

    Attributes:
        victims: processes that it happens to, by the names of their logs.
        ways: to survive, in which it is tried.
        then: die AGAIN_S later.
        freezes: for FREEZE_S, in place of a kill -9.
        damages: the newest checkpoint of rank 0 first, half of which is gone.
        comes: another worker comes; nobody dies.
        leaves_out: a parameter server that waits for nobody can go on without the victims, who do not come back.
    """

    victims: Sequence[str]
    ways: Sequence[str] = (CONTINUE, RESTART)
    then: Sequence[str] = ()
    freezes: bool = False
    damages: bool = False
    comes: bool = False
    leaves_out: bool = False


FAULTS = {
    "none": Fault((), leaves_out=True),
    "worker": Fault(["worker2"], leaves_out=True),
    "rank-0": Fault(["worker0"], leaves_out=True),
    "two": Fault(["worker0", "worker2"], leaves_out=True),
    "all": Fault([*NAMES, "state-server"]),
    "again": Fault(["worker2"], then=["worker0"]),
    "freeze": Fault(["worker2"], freezes=True, leaves_out=True),
    "late": Fault((), ways=(CONTINUE,), comes=True),
    "server": Fault(["server0"], ways=(RESTART,)),
    "scheduler": Fault(["scheduler"], ways=(RESTART,)),
    "worker-and-server": Fault(["worker2", "server0"], ways=(RESTART,)),
    "damaged": Fault(["worker2"], ways=(RESTART,), damages=True),
    "state-server": Fault(["state-server"]),
}


def can_happen(fault: str, way: str, mode: str) -> bool:
    """Whether a job of this mode can survive in this way, and has what the fault happens to."""
    if way not in FAULTS[fault].ways:
        return False
    if way == CONTINUE and mode not in AMONG_WORKERS:
        return FAULTS[fault].leaves_out and OWNERS[mode].transport is TransportKind.SERVER
    return fault != "state-server" or OWNERS[mode].has_state_server or way == CONTINUE


class Job:
    """A job that runs, by its launcher's process.

    Attributes:
        command: it was started with.
        lines: that it said, and when.
    """

    def __init__(self, way: str, mode: str, seconds: float, log_base: Path) -> None:
        shutil.rmtree(log_base, ignore_errors=True)
        own = ["-m", mode, "-n", "lenet", "--workers", WORKERS, "--log-base", str(log_base)]
        flags = [*FLAGS[mode].split(), "--max-seconds", str(seconds), "--eval-seconds", "3", "--on-worker-death", way]
        self._leaves_out = way == CONTINUE and mode not in AMONG_WORKERS
        if way == CONTINUE and not self._leaves_out:
            own += ["--collective", AMONG_WORKERS[mode]]
        if not self._leaves_out:
            flags += ["--ckpt-frequency", str(CHECKPOINT_EVERY)]
        self.command = [sys.executable, "-m", "scripts.local_cluster", *own, "--", *flags]
        self._log_base = log_base
        self._folder = log_base / "lenet" / folder_name(mode, split_by_class=False)
        self._launcher = subprocess.Popen(
            self.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self._late: subprocess.Popen[bytes] | None = None
        self.lines: list[tuple[float, str]] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._launcher.stdout is not None
        for line in self._launcher.stdout:
            self.lines.append((time.time(), line.rstrip()))

    @property
    def is_over(self) -> bool:
        """Whether the launcher has ended."""
        return self._launcher.poll() is not None

    def _children(self) -> Iterator[int]:
        for task in Path(f"/proc/{self._launcher.pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                yield from map(int, (task / "children").read_text().split())

    def pids(self) -> dict[str, int]:
        """The processes that run now, by the names of their logs."""
        found = {}
        for pid in self._children():
            with contextlib.suppress(OSError):
                found[Path(f"/proc/{pid}/fd/1").readlink().stem] = pid
        return found

    def has_begun(self) -> bool:
        """Whether every worker has done some rounds, and processes can be forked."""
        trains = all(len(self.rounds(name)) >= ROUNDS_BEFORE for name in NAMES)
        return trains and (self._leaves_out or any(_name_of(pid) == forking.NAME for pid in self._children()))

    def rounds(self, worker: str) -> dict[int, float]:
        """The rounds in a worker's log, and when each was written."""
        found = {}
        for path in self._folder.glob(f"*/cpu{worker[-1]}/iter-*.txt"):
            with contextlib.suppress(OSError):  # it is one of those that are done again
                found[int(path.stem[5:])] = path.stat().st_mtime
        return found

    def wait_for(self, condition: Callable[[], bool], longest_s: float) -> bool:
        """Whether it came true in time, and before the job ended."""
        give_up = time.time() + longest_s
        while time.time() < give_up:
            if condition():
                return True
            if self.is_over:
                return condition()
            time.sleep(0.01)
        return False

    def end(self, longest_s: float) -> int | None:
        """The launcher's exit code; None where it had to be killed."""
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
        """Lets it happen, and waits until all train again.

        Returns:
            began: when it happened; again_s: seconds until all that are left have done two more rounds (None: never);
            rounds_lost; back_s: until those that had died have, too, where the others do not wait for them.
        """
        if fault.damages:
            time.sleep(WRITTEN_S)
        pids, before = self.pids(), {name: set(self.rounds(name)) for name in NAMES}
        if fault.damages:
            newest = max(self._folder.glob("*/.checkpoints/worker-0-*.ckpt"))
            os.truncate(newest, newest.stat().st_size // 2)
        began = time.time()
        if fault.comes:
            self._come(pids["worker2"])
        _send(pids, fault.victims, signal.SIGSTOP if fault.freezes else signal.SIGKILL)
        if fault.freezes:
            threading.Timer(FREEZE_S, _send, (pids, fault.victims, signal.SIGCONT)).start()
        gone = {*fault.victims, *fault.then} if way == CONTINUE and {*NAMES} - {*fault.victims} else set()
        never_back = fault.freezes or self._leaves_out
        if fault.then:
            time.sleep(AGAIN_S)
            began = time.time()
            _send(self.pids(), fault.then, signal.SIGKILL)
        left = [name for name in NAMES if name not in gone]
        back = ["worker3"] if fault.comes else [] if never_back else [name for name in NAMES if name in gone]
        row: dict[str, Any] = {"began": began, "again_s": self._train_again(left, began)}
        if row["again_s"] is not None:
            first = {name: min(n for n, at in self.rounds(name).items() if at > began) for name in left}
            row["rounds_lost"] = max(0, *(max(before[name]) + 1 - first[name] for name in left))
        if back:
            row["back_s"] = self._train_again(back, began)
        return row

    def _train_again(self, workers: Sequence[str], since: float) -> float | None:
        """Seconds until all of them have done two more rounds; None: never."""

        def later(name: str) -> list[float]:
            return sorted(at for at in self.rounds(name).values() if at > since)

        if not self.wait_for(lambda: all(len(later(name)) >= MORE_ROUNDS for name in workers), LONGEST_S):
            return None
        return round(max((later(name)[MORE_ROUNDS - 1] for name in workers), default=since) - since, 2)

    def _come(self, like: int) -> None:
        """Starts a worker with the same command as another one, but for its device's name."""
        words = Path(f"/proc/{like}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
        words[words.index("--device-name") + 1] = "cpu3"
        cluster = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": str(len(NAMES)), "DMLC_INTERFACE": "lo"}
        environment = base_environment(os.environ) | cluster | {"PORT": str(free_ports(1)[0])}
        with (self._folder / "worker3.log").open("wb") as log:
            self._late = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=log, env=environment)

    def noticed_s(self, began: float) -> float | None:
        """Seconds from a fault until another process said so."""
        return next((round(at - began, 2) for at, line in self.lines if at > began and NOTICED.search(line)), None)

    # --------------------------------------------------------------------------------------- what it has left

    def _records(self) -> Iterator[dict[str, Any]]:
        for folder in sorted(self._folder.glob("*/cpu*")):
            yield from read_rounds(folder, lambda text: None)

    def accuracy(self) -> float | None:
        """The last one that any worker has measured."""
        found = [(record["total_time"], record["accuracy"]) for record in self._records() if "accuracy" in record]
        return max(found)[1] if found else None

    def events(self) -> list[str]:
        """What the logs tell of lost workers, and of those that have come."""
        return [
            event["text"]
            for record in self._records()
            for event in record.get("events", [])
            if event["kind"] in (MEMBERS.name, "resume")
        ]

    def steps(self) -> int:
        """Local steps of all workers that are in the logs."""
        return sum(record["num_samples"] // BATCH for record in self._records())

    def steps_lost(self) -> int:
        """Local steps of all workers that were done, and have no part in the model."""
        return sum(record.get("steps_lost", 0) for record in self._records())

    def trained_s(self) -> float:
        """Seconds from the first round to the last, with all in which nothing was trained."""
        times = [at for name in NAMES for at in self.rounds(name).values()]
        return max(times) - min(times) if times else 0.0

    def numbers_missing(self) -> int:
        """Rounds that no worker has in its log, of those below its last."""
        return sum(max(found) - len(found) for name in NAMES if (found := self.rounds(name)))

    def left_running(self) -> int:
        """Processes of the job that outlive it."""
        return sum(str(self._log_base) in command for command in _commands())

    def resources(self) -> dict[str, dict[str, int]]:
        """Of the processes that last as long as the job: KiB of memory, open files."""
        pids = {name: pid for name, pid in self.pids().items() if name == "state-server"}
        found = {}
        for name, pid in {"launcher": self._launcher.pid, **pids}.items():
            with contextlib.suppress(OSError, IndexError):  # it has just ended
                found[name] = {"kib": _kib(pid), "files": len(list(Path(f"/proc/{pid}/fd").iterdir()))}
        return found


def listening() -> int:
    """TCP ports of this machine at which somebody listens."""
    tables = [path for name in ("tcp", "tcp6") if (path := Path("/proc/net") / name).exists()]
    return sum(line.split()[3] == "0A" for path in tables for line in path.read_text().splitlines()[1:])


def _kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


def _name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _commands() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def _send(pids: Mapping[str, int], victims: Sequence[str], number: int) -> None:
    for victim in victims:
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(pids[victim], number)
