"""One run of a study: simulate.py as a process, and the line that it leaves in the results (benchmarks/study.py)."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import summary
from algorithms import OWNERS, folder_name
from config import LEARNING_RATES, Config
from report import metrics
from report.comparison import TUNING, RunLine, Workload
from trainer import cluster_file, version
from trainer.virtual_job import HOST
from utils import DIVERGED, EXIT_OK, RUN_FILE, STOPPED, SetupError, read_json

ROOT = Path(__file__).resolve().parents[1]
BATCH = Config().batch_size


@dataclass(frozen=True)
class Task:
    """One run to do."""

    phase: str
    workload: Workload
    entry: str
    study: int
    trial: int
    seed: int
    step_size: float

    @property
    def rate(self) -> str:
        """The field of Config that is its step size."""
        return next(field for field in LEARNING_RATES if field in OWNERS[self.entry].all_flags)

    @property
    def key(self) -> tuple[Any, ...]:
        """As RunLine's."""
        return self.line().key

    def line(self, **more: Any) -> RunLine:
        """The line of the results that it is to become."""
        sizes = {self.rate: self.step_size}
        same = {name: getattr(self, name) for name in ("phase", "entry", "study", "trial", "seed")}
        return RunLine(**same, **self.workload._asdict(), step_sizes=sizes, **more)

    def __str__(self) -> str:
        which = f"study {self.study} trial {self.trial}" if self.phase == TUNING else f"seed {self.seed}"
        return f"{self.phase} {' '.join(self.workload)} {self.entry}, {which}, step size {self.step_size:g}"


def step_times_s(cluster: str) -> list[float]:
    """Of its workers, a step of a batch as a whole."""
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    return [row.shortest_step_s(BATCH) + row.overhead_s for row in rows]


class Runner:
    """Does runs as processes, several at a time, and ends them all when it is asked to."""

    def __init__(self, work: Path) -> None:
        """
        Args:
            work: where the logs of a run are while it goes on, and stay if it fails.
        """
        self._work = work
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.RLock()  # a second signal may come while the first is heard
        self.stopped = False

    def stop(self) -> None:
        """Ends all runs at the end of their round, and begins no other."""
        with self._lock:
            self.stopped = True
            for process in self._running:
                process.send_signal(signal.SIGINT)

    def run(self, task: Task, command: Sequence[str]) -> RunLine | None:
        """Does one, by its command without a place for the logs; None where it was stopped."""
        base = self._work / hashlib.sha256(repr(command).encode()).hexdigest()[:16]
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir(parents=True)
        with (base / "output.txt").open("wb") as output:
            with self._lock:
                if self.stopped:
                    return None
                process = subprocess.Popen(
                    [sys.executable, str(ROOT / command[0]), *command[1:], "--log-base", str(base)],
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                    start_new_session=True,  # so that Ctrl-C reaches it once: from here
                )
                self._running.add(process)
            code = process.wait()
            with self._lock:
                self._running.discard(process)
        line = None if self.stopped and code else result(task, command, base, code)
        if line is None or not line.failed:
            shutil.rmtree(base, ignore_errors=True)
        return line


def result(task: Task, command: Sequence[str], base: Path, code: int) -> RunLine | None:
    """What a run has left behind; None where a signal has ended it.

    Args:
        base: its log tree, with what it printed.
        code: that it ended with.
    """
    text = (base / "output.txt").read_text(errors="replace")
    diverged = code != EXIT_OK and DIVERGED in text
    folder = base / task.workload.network / folder_name(task.entry, "-s" in command)
    line = task.line(
        diverged=diverged,
        failed="" if code == EXIT_OK or diverged else _last_line(text) or f"exit code {code}",
        step_times_s=step_times_s(task.workload.cluster),
        command=command,
        commit=version.commit(),
        program=version.files_hash(),
    )
    try:
        about = read_json(next(iter(sorted(folder.glob(f"{HOST}/*/{RUN_FILE}"))), folder / RUN_FILE))
        devices = summary.summarise_mode(folder, lambda text: None)
    except (SetupError, OSError) as error:  # it did not get as far as the end of a round
        return line if line.diverged or line.failed else dataclasses.replace(line, failed=str(error))
    if about.get("ended") == STOPPED:
        return None
    evaluator = metrics.evaluating_device(devices, lambda text: None)
    curve = [(round(s, 3), round(accuracy, 5)) for s, accuracy in (evaluator.curve if evaluator else [])]
    return dataclasses.replace(
        line,
        validation=curve if task.phase == TUNING else [],
        test=[] if task.phase == TUNING else curve,
        seconds=round(metrics.duration(devices.values()), 3),
        samples_per_s=round(metrics.throughput(devices.values()), 2),
        final_accuracy=curve[-1][1] if curve else None,
        ended=about.get("ended") or "",
        workers=about["num_workers"],
        initial_weights=about.get("initial_weights_sha256", ""),
        partition=about.get("partition_sha256", {}).get("all by rank", ""),
    )


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].partition(" | ")[2] or lines[-1] if lines else ""
