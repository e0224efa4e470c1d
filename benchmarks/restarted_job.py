"""How soon a job trains again when its processes are killed (--on-worker-death restart), and what is lost.

    .venv/bin/python -m benchmarks.restarted_job

Starts a job of three workers (LeNet-5) in each mode for each case: kill -9 of a worker, of rank 0, the scheduler, the
parameter server, the state server, of a worker and the server at once, and of a worker and then of another one that
starts again. Prints the seconds from the (first) kill to rank 0's next round after the start, and how many rounds of
rank 0 are lost. Then the job is stopped, and its logs must hold every round once. Takes about 20 s for each case.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.process import STARTED_AGAIN
from utils import iter_files

ROOT = Path(__file__).resolve().parents[1]
FREQUENCY = 20  # rounds between two checkpoints
ROUNDS = 25  # at least before the kill
WAIT_S = 120.0
LOOK_S = 0.005
STATE_SERVER_S = 6.0  # in which its death would be felt
_LOGGED = re.compile(r"\| round (\d+), ", re.MULTILINE)

MODES = {
    "sync": (),
    "esync": (),
    "async": (),
    "ssp": (),
    "wbsp": (),
    "sync-switch": ("--train-steps", "90000", "90000"),
    "local-sgd --collective ring": (),
}
CASES = {
    "a worker": ("cpu1",),
    "rank 0": ("cpu0",),
    "the scheduler": ("scheduler",),
    "the server": ("server",),
    "the state server": ("state server",),
    "a worker and the server at once": ("cpu1", "server"),
    "a worker, and one that starts again": ("cpu1", "then cpu2"),
}


@dataclass(frozen=True)
class Measured:
    """Of one job: seconds until rank 0 did a round again, and its rounds that were lost."""

    seconds: float
    lost: int


def processes(launcher: int) -> dict[str, int]:
    """The job's processes by what they are: a device, scheduler, server, state server."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[1]) != launcher:
                continue
            words = (process / "cmdline").read_bytes().decode().split("\0")
            variables = (process / "environ").read_bytes().decode().split("\0")
        except OSError:  # it has just ended
            continue
        role = next((text.partition("=")[2] for text in variables if text.startswith("DMLC_ROLE=")), "state server")
        found[words[words.index("--device-name") + 1] if "--device-name" in words else role] = int(process.name)
    return found


class Job:
    """A job on this machine, and what its rank 0 writes."""

    def __init__(self, mode: str, folder: Path) -> None:
        name, *more = mode.split()
        command = [sys.executable, "-m", "scripts.local_cluster", "-m", name, *more, "--workers", "0.02,0.02,0.04"]
        flags = ["-e", "100000", "-b", "16", "--ckpt-frequency", str(FREQUENCY), "--on-worker-death", "restart"]
        self._output = folder / "launcher.log"
        with self._output.open("wb") as output:
            self.launcher = subprocess.Popen(
                [*command, "--log-base", str(folder), "--", *flags, *MODES[mode]],
                cwd=ROOT, stdout=output, stderr=output,
            )  # fmt: skip
        self._folder = folder / "lenet" / name

    def log(self, name: str) -> str:
        """What a process has written; nothing if there is no such."""
        path = self._folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def rounds(self) -> list[int]:
        """What rank 0 has told of, since it was started last."""
        return list(map(int, _LOGGED.findall(self.log("worker0").rpartition(STARTED_AGAIN)[2])))

    def has_done_more(self, count: int) -> bool:
        """Whether rank 0 has done more than so many rounds."""
        return len(self.rounds()) > count

    def has(self, name: str) -> bool:
        """Whether a process is there."""
        return name in processes(self.launcher.pid)

    def starts(self, name: str = "worker0") -> int:
        """How often a process was started again."""
        return self.log(name).count(STARTED_AGAIN)

    def wait(self, condition: Callable[[], object]) -> None:
        """Looks until it holds.

        Raises:
            SystemExit: the job has ended, or it took too long.
        """
        give_up = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > give_up or self.launcher.poll() is not None:
                raise SystemExit(self._output.read_text())
            time.sleep(LOOK_S)

    def kill(self, *names: str) -> None:
        """kill -9."""
        running = processes(self.launcher.pid)
        for name in names:
            os.kill(running[name], signal.SIGKILL)

    def stop(self) -> None:
        """Ends it with the round, and looks at its logs.

        Raises:
            SystemExit: it did not end well, or the logs do not hold each round once.
        """
        self.launcher.send_signal(signal.SIGINT)
        code = self.launcher.wait(WAIT_S)
        numbers = {path.name: list(iter_files(path)) for path in self._folder.glob("*/cpu*")}
        if code or any(found != list(range(1, len(found) + 1)) for found in numbers.values()):
            raise SystemExit(f"exit code {code}, rounds {numbers}\n{self._output.read_text()}")


def measure(mode: str, case: Sequence[str], folder: Path, rounds: int) -> Measured:
    """One job, from its start to its end.

    Args:
        rounds: before the kill.
    """
    job = Job(mode, folder)
    try:
        job.wait(lambda: len(job.rounds()) >= rounds and list(folder.rglob("worker-0-*.ckpt")))
        job.kill(*(name for name in case if not name.startswith("then ")))
        killed = time.monotonic()
        if case == ("state server",):
            return Measured(longest_pause(job), 0)
        before = job.rounds()
        job.wait(lambda: job.starts() == 1)
        starts = 1
        for name in (name.removeprefix("then ") for name in case if name.startswith("then ")):
            job.wait(partial(job.has, name))
            job.kill(name)
            starts += 1
        job.wait(lambda: job.starts() == starts and job.rounds())
        seconds = time.monotonic() - killed
        return Measured(seconds, before[-1] - job.rounds()[0] + 1)
    finally:
        try:
            if job.launcher.poll() is None:
                time.sleep(1.0)
                job.stop()
        finally:
            job.launcher.kill()
            job.launcher.wait()


def longest_pause(job: Job) -> float:
    """Seconds between two rounds of rank 0, at most, while the state server dies and is started again."""
    longest_s, last, count = 0.0, time.monotonic(), len(job.rounds())
    until = last + STATE_SERVER_S
    while last < until or not job.starts("state-server"):
        job.wait(partial(job.has_done_more, count))
        now, count = time.monotonic(), len(job.rounds())
        longest_s, last = max(longest_s, now - last), now
    return longest_s


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a row a job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), metavar="MODE")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--seed", type=int, default=0, help="of the rounds after which somebody is killed")
    options = parser.parse_args(arguments)
    choose = random.Random(options.seed)
    print("| killed | mode | trains again after, s | rounds lost |\n| --- | --- | --- | --- |", flush=True)
    for case in options.cases:
        for mode in options.modes:
            is_ring, has_state_server = "ring" in mode, mode.split()[0] in ("esync", "wbsp", "sync-switch", "local-sgd")
            if (is_ring and {"scheduler", "server"} & {*CASES[case]}) or (
                "state server" in CASES[case] and not has_state_server
            ):
                continue
            with tempfile.TemporaryDirectory() as name:
                found = measure(mode, CASES[case], Path(name), ROUNDS + choose.randrange(FREQUENCY))
            print(f"| {case} | {mode} | {found.seconds:.1f} | {found.lost} |", flush=True)


if __name__ == "__main__":
    main()
