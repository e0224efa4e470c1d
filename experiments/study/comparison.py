"""The raw results of a comparison: one JSON line a run in FOLDER/runs.jsonl, which experiments/study/study.py writes,
and what they say of each job. The rules are those of results/comparison/README.md.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from algorithms import ENTRIES, entry_of, owner_of
from report import metrics
from report.metrics import Curve, reached
from scripts import run_lines
from scripts.run_lines import BY_CLASS, IID, SPLITS
from scripts.run_process import curve_of
from trainer.run_logs.rounds import is_quantity

TUNING, REPORT = PHASES = "tuning", "report"  # what a run is for
SPLIT_WORDS = {IID: "i.i.d.", BY_CLASS: "by class"}
ON_FEW = ("esync-k", "esync-outer-k")  # rows beside those of the table: on the K fastest machines, K searched
ROWS = ENTRIES | {name: entry for name in ON_FEW if (entry := entry_of(name))}


def running_means(curve: Curve, in_a_row: int, grid_s: float) -> Curve:
    """Means of evaluations in a row, each at the time of its last one, since single evaluations are noisy.

    Args:
        in_a_row: how many make a mean.
        grid_s: the first evaluation in each of these seconds counts, so that curves evaluated more often are not more
            often at a target by chance. One a hundredth of them early is in time: logged times are rounded.
    """
    by_cell: dict[int, tuple[float, float]] = {}
    for elapsed_s, value in curve:
        by_cell.setdefault(int(elapsed_s / grid_s + 0.01), (elapsed_s, value))
    points = list(by_cell.values())
    ends = range(in_a_row, len(points) + 1)
    return [(points[end - 1][0], sum(value for _, value in points[end - in_a_row : end]) / in_a_row) for end in ends]


class Workload(NamedTuple):
    """A job on which all algorithms are compared."""

    cluster: str
    split: str  # of SPLITS
    network: str


@dataclass(frozen=True, kw_only=True)
class RunLine(run_lines.Run):
    """One run of a comparison.

    Attributes:
        phase: TUNING on held-out samples; REPORT on the test set, with the numbers of the best trial.
        trial: from 0; of REPORT the best one.
        step_sizes: by field of Config.
        momentum: of the steps, where it was searched for too.
        in_a_row: evaluations whose mean has to be at a target, on the grid of its `--eval-seconds`; 1: the first
            evaluation at the target counts.
        parameters: of the row that were searched for too, by field of Config, or by a name of search.py.
        validation: [seconds, accuracy] on the held-out samples; empty where it was evaluated on the test set.
        test: the same on the test set.
        step_times_s: of all workers of the cluster, also of those that took no part.
        workers: that took part.
        mb_per_s: that all of them sent and received.
        initial_weights, partition: SHA-256.
    """

    cluster: str
    phase: str
    trial: int
    step_sizes: Mapping[str, float]
    momentum: float | None = None
    in_a_row: int = 1
    parameters: Mapping[str, float] = field(default_factory=dict)
    validation: Curve = ()
    test: Curve = ()
    final_accuracy: float | None = None
    step_times_s: Sequence[float] = ()
    workers: int = 0
    mb_per_s: float | None = None
    initial_weights: str = ""
    partition: str = ""

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("entry", self.entry, tuple(ROWS)),
            ("split", self.split, SPLITS),
            ("phase", self.phase, PHASES),
        ):
            if value not in allowed:
                raise ValueError(f"{name} is {value!r}; it should be one of {', '.join(allowed)}")
        for name, curve in (("validation", self.validation), ("test", self.test)):
            if not all(len(point) == 2 and all(map(is_quantity, point)) for point in curve):
                raise ValueError(f"{name} is no list of [seconds, accuracy]")
        if not self.step_sizes or not all(map(is_quantity, self.step_sizes.values())):
            raise ValueError(f"step_sizes are {self.step_sizes!r}; they should be a flag's field and a number each")

    @cached_property
    def workload(self) -> Workload:
        return Workload(self.cluster, self.split, self.network)

    @property
    def filed(self) -> str:
        return f"{self.entry}{self.parameters['fastest']:g}" if self.entry in ON_FEW else self.entry

    @property
    def key(self) -> tuple[Any, ...]:
        """The same for two reported runs of which other trials turned out best: the later one counts."""
        trial = self.trial if self.phase == TUNING else None
        return (self.phase, self.workload, self.entry, self.seed, trial)

    @property
    def curve(self) -> Curve:
        """On the samples that this run was evaluated on."""
        return self.validation if self.phase == TUNING else self.test

    @cached_property
    def smooth_curve(self) -> Curve:
        """The means of which one has to be at a target."""
        if self.in_a_row == 1:
            return self.curve
        return running_means(self.curve, self.in_a_row, float(run_lines.value_in(self.command, "eval_seconds")))

    @property
    def step_size(self) -> float:
        """The one that was searched for."""
        return next(iter(self.step_sizes.values()))

    def seconds_to(self, target: float) -> float:
        """Infinite where it did not reach the target, or has no model."""
        return reached(self.smooth_curve, target).by_s if self.has_model else math.inf

    @property
    def best_accuracy(self) -> float:
        """0 where it was never evaluated, or has no model."""
        return max((accuracy for _, accuracy in self.curve), default=0.0) if self.has_model else 0.0


def read(folder: Path) -> list[RunLine]:
    """All runs, in order; of those of the same thing only the last. Raises SetupError if they cannot be read."""
    return run_lines.read(folder, RunLine, "experiments/study/study.py")


def rate_of(entry: str) -> str:
    """The field of Config that is an algorithm's step size."""
    return owner_of(entry).settings.rate_field


def measured(line: RunLine, about: dict[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """The numbers of a study's line, from what its run has logged."""
    curve, mb_per_s = curve_of(devices), metrics.traffic(devices.values())
    return {
        "validation": curve if line.phase == TUNING else [],
        "test": [] if line.phase == TUNING else curve,
        "seconds": round(metrics.duration(devices.values()), 3),
        "samples_per_s": round(metrics.throughput(devices.values()), 2),
        "final_accuracy": curve[-1][1] if curve else None,
        "workers": about["num_workers"],
        "mb_per_s": None if mb_per_s is None else round(mb_per_s, 4),
        "initial_weights": about.get("initial_weights_sha256", ""),
        "partition": about.get("partition_sha256", {}).get("all by rank", ""),
    }


# ---------------------------------------------------------------------------------------------- what the runs say


@dataclass(frozen=True)
class Comparison:
    """The runs of a folder; those of each job, the jobs in the order of their first runs."""

    lines: Sequence[RunLine]
    workloads: dict[Workload, list[RunLine]] = field(default_factory=dict, init=False)
    _parts: dict[tuple[str, Workload, str], list[RunLine]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for line in self.lines:
            self.workloads.setdefault(line.workload, []).append(line)
            self._parts.setdefault((line.phase, line.workload, line.entry), []).append(line)

    @cached_property
    def entries(self) -> list[str]:
        """The algorithms in the order of their table."""
        return [entry for entry in ROWS if any(line.entry == entry for line in self.lines)]

    def workloads_of(self, phase: str) -> list[Workload]:
        return [job for job, lines in self.workloads.items() if any(line.phase == phase for line in lines)]

    def runs(self, phase: str, workload: Workload, entry: str) -> list[RunLine]:
        return self._parts.get((phase, workload, entry), [])

    def step_times_s(self, workload: Workload) -> Sequence[float]:
        """Those of all workers of its cluster."""
        return self.workloads[workload][0].step_times_s

    def speed_of_all(self, workload: Workload) -> float:
        """Sum of the workers' speeds over the greatest. It bounds the samples/s of all algorithms, but no time to an
        accuracy: an algorithm may need fewer samples than the fastest machine alone."""
        times_s = self.step_times_s(workload)
        return sum(min(times_s) / time_s for time_s in times_s)

    def are_same(self, one: tuple[Workload, str], other: tuple[Workload, str]) -> bool:
        """Whether the reported runs of two rows have the same accuracies, with every seed; seconds may differ."""
        curves = [
            {line.seed: [accuracy for _, accuracy in line.curve] for line in self.runs(REPORT, *row)}
            for row in (one, other)
        ]
        return bool(curves[0]) and curves[0] == curves[1]

    def differences(self) -> list[str]:
        """Jobs and seeds whose runs began with different weights or partitions, in words."""
        found: dict[tuple[str, str], dict[int, None]] = {}
        weights, parts = (lambda line: (line.initial_weights,)), (lambda line: (line.partition, line.workers))
        for name, of_line in (("initial weights", weights), ("partitions", parts)):
            by_job: dict[Any, dict[str, set[str]]] = {}
            for line in self.lines:
                value, *more = of_line(line)
                if value:
                    same = by_job.setdefault((line.workload, line.phase == TUNING, line.seed, *more), {})
                    same.setdefault(value, set()).add(line.entry)
            for (workload, _, seed, *_), values in by_job.items():
                if len(values) > 1:
                    sides = " against ".join(sorted(", ".join(sorted(entries)) for entries in values.values()))
                    found.setdefault((f"{name} differ on {', '.join(workload)}", sides), {})[seed] = None
        return [f"{where}, seed {', '.join(map(str, its))}: {sides}" for (where, sides), its in found.items()]
