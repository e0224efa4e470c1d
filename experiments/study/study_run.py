"""One run of a study: what is to be run, and the line that it leaves in the results."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from algorithms import OWNERS
from config import LEARNING_RATES, Config
from experiments.run_lines import Line
from experiments.simulated import Ended, Simulations
from experiments.study.comparison import TUNING, RunLine, Workload
from report import metrics
from trainer import version
from trainer.simulation import cluster_file
from utils import STOPPED, SetupError

BATCH = Config().batch_size
Measure = Callable[[Line, dict[str, Any], metrics.Devices], dict[str, Any]]  # fields of a line, from what was logged


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

    def line(self, **more: Any) -> RunLine:
        """The line of the results that it is to become."""
        same = {name: getattr(self, name) for name in ("phase", "entry", "study", "trial", "seed", "momentum")}
        return RunLine(**same, **self.workload._asdict(), step_sizes={self.rate: self.step_size}, **more)

    def __str__(self) -> str:
        which = f"study {self.study} trial {self.trial}" if self.phase == TUNING else f"seed {self.seed}"
        momentum = "" if self.momentum is None else f", momentum {self.momentum:g}"
        return f"{self.phase} {' '.join(self.workload)} {self.entry}, {which}, step size {self.step_size:g}{momentum}"


def step_times_s(cluster: str) -> list[float]:
    """Seconds of a step of each worker with a batch of the usual size."""
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    return [row.shortest_step_s(BATCH) + row.overhead_s for row in rows]


def make(simulations: Simulations, line: Line, measure: Measure[Line]) -> Line | None:
    """Runs a line's command; returns the line with its results, or None where it was stopped. Only the logs of a run
    that failed stay."""
    ended = simulations.do(line.command, line.folder)
    if ended is None:
        return None
    made = result(line, ended, measure)
    if made is None or not made.failed:
        shutil.rmtree(ended.base, ignore_errors=True)
    return made


def result(line: Line, ended: Ended, measure: Measure[Line]) -> Line | None:
    """The line with the results of a run that has ended; None where a signal has ended it."""
    line = dataclasses.replace(
        line, diverged=ended.diverged, failed=ended.failed, commit=version.commit(), program=version.files_hash()
    )
    try:
        about, devices = ended.read()
    except SetupError as error:
        return dataclasses.replace(line, failed=str(error)) if line.has_model else line
    if about.get("ended") == STOPPED:
        return None
    return dataclasses.replace(line, **measure(line, about, devices), ended=about.get("ended") or "")


def duration_text(seconds: float) -> str:
    """`3 min`, `45 s` or `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def curve_of(devices: metrics.Devices) -> list[tuple[float, float]]:
    """[seconds, accuracy] of the worker that evaluates."""
    evaluator = metrics.evaluating_device(devices, lambda text: None)
    return [(round(s, 3), round(accuracy, 5)) for s, accuracy in (evaluator.curve if evaluator else ())]


def measured(line: RunLine, about: dict[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """The numbers of a study's line, from what its run has logged."""
    curve = curve_of(devices)
    return {
        "validation": curve if line.phase == TUNING else [],
        "test": [] if line.phase == TUNING else curve,
        "seconds": round(metrics.duration(devices.values()), 3),
        "samples_per_s": round(metrics.throughput(devices.values()), 2),
        "final_accuracy": curve[-1][1] if curve else None,
        "workers": about["num_workers"],
        "initial_weights": about.get("initial_weights_sha256", ""),
        "partition": about.get("partition_sha256", {}).get("all by rank", ""),
    }
