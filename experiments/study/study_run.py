"""One run of a study: simulate.py as a process, and the line that it leaves in the results
(experiments/study/study.py)."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from algorithms import OWNERS, folder_name
from config import LEARNING_RATES, Config
from experiments.simulated import Ended, Simulations, was_stopped
from experiments.study.comparison import TUNING, RunLine, Workload
from report import metrics
from trainer import version
from trainer.simulation import cluster_file
from utils import SetupError

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
    momentum: float | None = None  # None: the program's

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
        same = {name: getattr(self, name) for name in ("phase", "entry", "study", "trial", "seed", "momentum")}
        return RunLine(**same, **self.workload._asdict(), step_sizes=sizes, **more)

    def __str__(self) -> str:
        which = f"study {self.study} trial {self.trial}" if self.phase == TUNING else f"seed {self.seed}"
        momentum = "" if self.momentum is None else f", momentum {self.momentum:g}"
        return f"{self.phase} {' '.join(self.workload)} {self.entry}, {which}, step size {self.step_size:g}{momentum}"


def step_times_s(cluster: str) -> list[float]:
    """Of its workers, a step of a batch as a whole."""
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    return [row.shortest_step_s(BATCH) + row.overhead_s for row in rows]


class Runner(Simulations):
    """Does runs as processes, several at a time, and ends them all when it is asked to."""

    def run(self, task: Task, command: Sequence[str]) -> RunLine | None:
        """Does one, by its command without a place for the logs; None where it was stopped."""
        its = task.line(command=command)
        ended = self.do(command, folder_of(its))
        line = None if ended is None else result(its, ended)
        if ended is not None and (line is None or not line.failed):
            shutil.rmtree(ended.base, ignore_errors=True)
        return line


def folder_of(line: RunLine) -> str:
    """Of its mode in the log tree."""
    return f"{line.network}/{folder_name(line.entry, '-s' in line.command)}"


def result(line: RunLine, ended: Ended) -> RunLine | None:
    """The line with what its command's run has left behind; None where a signal has ended it."""
    line = dataclasses.replace(
        line,
        validation=(),
        test=(),
        final_accuracy=None,
        diverged=ended.diverged,
        failed=ended.failed,
        step_times_s=step_times_s(line.cluster),
        commit=version.commit(),
        program=version.files_hash(),
    )
    try:
        about, devices = ended.read()
    except SetupError as error:
        return line if line.diverged or line.failed else dataclasses.replace(line, failed=str(error))
    if was_stopped(about):
        return None
    evaluator = metrics.evaluating_device(devices, lambda text: None)
    curve = [(round(s, 3), round(accuracy, 5)) for s, accuracy in (evaluator.curve if evaluator else [])]
    return dataclasses.replace(
        line,
        validation=curve if line.phase == TUNING else [],
        test=[] if line.phase == TUNING else curve,
        seconds=round(metrics.duration(devices.values()), 3),
        samples_per_s=round(metrics.throughput(devices.values()), 2),
        final_accuracy=curve[-1][1] if curve else None,
        ended=about.get("ended") or "",
        workers=about["num_workers"],
        initial_weights=about.get("initial_weights_sha256", ""),
        partition=about.get("partition_sha256", {}).get("all by rank", ""),
    )
