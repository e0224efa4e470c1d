"""What becomes of a job when its processes die: real clusters on this machine, each with one fault, in a table.

    scripts/fault_drill.sh                                  # all ways to survive, modes and faults: about an hour
    scripts/fault_drill.sh --ways continue --faults worker,rank-0
    scripts/fault_drill.sh --table                          # what was measured so far

LeNet-5, three workers of 0.03, 0.06 and 0.15 s a step, for --seconds each. The fault comes in the middle of a round,
when every worker has done some. `noticed` is when another process says so first; `trains again` when all workers that
are left (all of them, where all are started again) have done two more rounds; both in seconds from the fault. A run is
a line of FOLDER/drill.jsonl; what stands there is not done again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms import MEMBERS
from config import CONTINUE, RESTART
from utils import append_line, read_rounds

ROOT = Path(__file__).resolve().parents[1]
WORKERS = "0.03,0.06,0.15"
NUM_WORKERS = 3
ROUNDS_BEFORE = 4  # of each worker
MORE_ROUNDS = 2
AGAIN_S = 0.3  # after a death, another one
FREEZE_S = 20.0
LONGEST_S = 60.0  # from a fault until all train again
END_S = 60.0  # and beyond --seconds for the job to end
NOTICED = re.compile(
    r" is gone|was killed by signal|did not answer|is frozen|ended with exit code|closed its connection"
)
# What each mode is given beside the fault's own flags; learning rates as in nine_ways.sh.
FLAGS = {
    "esync": "-ll 0.003", "local-sgd": "-ll 0.003 --sync-every 4", "sync": "-l 0.003", "async": "-l 0.0015",
    "dcasgd": "-l 0.0015", "ssp": "-l 0.00075", "wbsp": "-ll 0.006", "wbsp-pcc": "-ll 0.006", "backup": "-l 0.003",
    "sync-switch": "-l 0.006 --switch-order 10 --train-steps 20 100000", "lb-bsp": "-l 0.003",
}  # fmt: skip
# A schedule of sums for each of the modes that can do without a parameter server: all three are drilled.
AMONG_WORKERS = {"esync": "ring", "sync": "butterfly", "local-sgd": "binary-blocks"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """Something that happens to a job.

    Attributes:
        victims: processes that it happens to, by the names of their logs.
        ways: to survive, in which it is tried.
    """

    victims: Sequence[str]
    ways: Sequence[str] = (CONTINUE, RESTART)
    then: Sequence[str] = ()  # die AGAIN_S later
    freezes: bool = False


FAULTS = {
    "none": Fault(()),
    "worker": Fault(["worker2"]),
    "rank-0": Fault(["worker0"]),
    "two": Fault(["worker0", "worker2"]),
    "again": Fault(["worker2"], then=["worker0"]),
    "freeze": Fault(["worker2"], ways=(CONTINUE,), freezes=True),
    "server": Fault(["server0"], ways=(RESTART,)),
    "scheduler": Fault(["scheduler"], ways=(RESTART,)),
    "state-server": Fault(["state-server"]),
}


class Job:
    """A job that runs, by its launcher's process."""

    def __init__(self, way: str, mode: str, seconds: float, log_base: Path) -> None:
        shutil.rmtree(log_base, ignore_errors=True)
        own = ["-m", mode, "-n", "lenet", "--workers", WORKERS, "--log-base", str(log_base)]
        flags = [*FLAGS[mode].split(), "--max-seconds", str(seconds), "--eval-seconds", "3", "--on-worker-death", way]
        if way == CONTINUE:
            own += ["--collective", AMONG_WORKERS[mode]]
        else:
            flags += ["--ckpt-frequency", "5"]
        self.command = [sys.executable, "-m", "scripts.local_cluster", *own, "--", *flags]
        self._folder = log_base / "lenet" / mode
        self._launcher = subprocess.Popen(
            self.command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self.lines: list[tuple[float, str]] = []  # that it said, and when
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._launcher.stdout is not None
        for line in self._launcher.stdout:
            self.lines.append((time.time(), line.rstrip()))

    def pids(self) -> dict[str, int]:
        """The processes that run now, by the names of their logs."""
        found = {}
        for task in Path(f"/proc/{self._launcher.pid}/task").glob("*"):
            for pid in map(int, (task / "children").read_text().split()):
                with contextlib.suppress(OSError):
                    found[Path(f"/proc/{pid}/fd/1").readlink().stem] = pid
        return found

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
            if self._launcher.poll() is not None:
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

    def accuracy(self) -> float | None:
        """The last one that any worker has measured."""
        found = [
            (record["total_time"], record["accuracy"])
            for folder in self._folder.glob("*/cpu*")
            for record in read_rounds(folder, lambda text: None)
            if "accuracy" in record
        ]
        return max(found)[1] if found else None

    def events(self) -> list[str]:
        """What the logs tell of lost workers, and of those that have come."""
        return [
            event["text"]
            for folder in sorted(self._folder.glob("*/cpu*"))
            for record in read_rounds(folder, lambda text: None)
            for event in record.get("events", [])
            if event["kind"] in (MEMBERS.name, "resume")
        ]

    def steps(self, key: str = "") -> int:
        """Local steps of all workers that are in the logs; or those that were lost, by their key."""
        records = (
            record for folder in self._folder.glob("*/cpu*") for record in read_rounds(folder, lambda text: None)
        )
        return sum(record.get(key, 0) if key else record["num_samples"] // 64 for record in records)

    def left_running(self) -> int:
        """Processes of the job that outlive it."""
        return sum(str(self._folder.parent.parent) in command for command in _commands())


def _commands() -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def drill(way: str, mode: str, name: str, seconds: float, folder: Path) -> dict[str, Any]:
    """One job with one fault."""
    fault = FAULTS[name]
    job = Job(way, mode, seconds, folder / "logs")
    workers = [f"worker{rank}" for rank in range(NUM_WORKERS)]
    row: dict[str, Any] = {"way": way, "mode": mode, "fault": name, "seconds": seconds}
    try:
        has_begun = job.wait_for(lambda: all(len(job.rounds(one)) >= ROUNDS_BEFORE for one in workers), LONGEST_S)
        if has_begun and fault.victims:
            row |= _strike(job, fault, way, workers)
        row["exit_code"] = job.end(seconds + END_S)
    finally:
        job.end(0.0)
    time.sleep(0.5)
    if "began" in row:  # its line on the console may come after the next rounds
        row["noticed_s"] = _noticed(job, row.pop("began"))
    row |= {
        "accuracy": job.accuracy(),
        "steps": job.steps(),
        "steps_lost": job.steps("steps_lost"),
        "events": job.events(),
        "left_running": job.left_running(),
        "said": [line for _, line in job.lines if NOTICED.search(line)][:4],
    }
    return row


def _strike(job: Job, fault: Fault, way: str, workers: Sequence[str]) -> dict[str, Any]:
    pids, began = job.pids(), time.time()
    before = {one: set(job.rounds(one)) for one in workers}
    _send(pids, fault.victims, signal.SIGSTOP if fault.freezes else signal.SIGKILL)
    if fault.freezes:
        threading.Timer(FREEZE_S, _send, (pids, fault.victims, signal.SIGCONT)).start()
    gone = set(fault.victims)
    if fault.then:
        time.sleep(AGAIN_S)
        began = time.time()
        _send(job.pids(), fault.then, signal.SIGKILL)
        gone |= set(fault.then)
    left = [one for one in workers if way == RESTART or one not in gone]

    def trains_again() -> bool:
        return all(sum(at > began for at in job.rounds(one).values()) >= MORE_ROUNDS for one in left)

    if not job.wait_for(trains_again, LONGEST_S):
        return {"began": began, "again_s": None}
    again = max(sorted(at for at in job.rounds(one).values() if at > began)[MORE_ROUNDS - 1] for one in left)
    done = {one: max(before[one]) for one in left}
    first = {one: min(n for n, at in job.rounds(one).items() if at > began) for one in left}
    return {
        "began": began,
        "again_s": round(again - began, 2),
        "rounds_lost": max(0, *(done[one] + 1 - first[one] for one in left)),
    }


def _send(pids: Mapping[str, int], victims: Sequence[str], number: int) -> None:
    for victim in victims:
        with contextlib.suppress(ProcessLookupError, KeyError):
            os.kill(pids[victim], number)


def _noticed(job: Job, began: float) -> float | None:
    return next((round(at - began, 2) for at, line in job.lines if at > began and NOTICED.search(line)), None)


def table(rows: Sequence[Mapping[str, Any]]) -> None:
    """A line for each run."""
    calm = {(row["way"], row["mode"]): row for row in rows if row["fault"] == "none"}
    print("| way | mode | fault | noticed, s | trains again, s | rounds lost | accuracy | undisturbed | left running |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for row in rows:
        if row["fault"] != "none":
            undisturbed = calm.get((row["way"], row["mode"]), {}).get("accuracy")
            cells = [row["way"], row["mode"], row["fault"], *map(row.get, ("noticed_s", "again_s", "rounds_lost"))]
            cells += [row["accuracy"], undisturbed, row["left_running"]]
            print("| " + " | ".join("-" if cell is None else f"{cell}" for cell in cells) + " |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what is not done yet, and prints the table."""
    parser = argparse.ArgumentParser(
        prog="scripts/fault_drill.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ways", default=f"{CONTINUE},{RESTART}")
    parser.add_argument("--modes", default=",".join(FLAGS))
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--seconds", type=float, default=20.0, help="of each job")
    parser.add_argument("--folder", type=Path, default=Path("logs/fault-drill"))
    parser.add_argument("--table", action="store_true", help="only print what there is")
    given = parser.parse_args(arguments)
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "drill.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(row["way"], row["mode"], row["fault"]) for row in rows}
    todo = [
        (way, mode, name)
        for way in given.ways.split(",")
        for mode in given.modes.split(",")
        for name in given.faults.split(",")
        if way in FAULTS[name].ways and (way == RESTART or mode in AMONG_WORKERS) and (way, mode, name) not in done
    ]
    for number, (way, mode, name) in enumerate([] if given.table else todo, start=1):
        row = drill(way, mode, name, given.seconds, folder)
        append_line(path, json.dumps(row))
        rows.append(row)
        print(f"{number} of {len(todo)}: {json.dumps(row)}", flush=True)
    table(rows)
    return int(any(row["exit_code"] != 0 or row["left_running"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
