"""The raw results of a comparison: one JSON line a run in FOLDER/runs.jsonl, which experiments/study/study.py writes,
and what they say of each job. The rules are those of results/comparison-mlp/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from algorithms import ENTRIES
from experiments import run_lines
from report.metrics import Curve
from report.statistics import Estimate, time_to_target, times_as_fast
from trainer.run_logs.round_faults import is_quantity

TUNING, REPORT, UNTUNED = PHASES = "tuning", "report", "untuned"  # what a run is for
IID, BY_CLASS = SPLITS = "iid", "by-class"
ALONE = ("alone", "local")  # one machine by itself: the first of these that there is


class Workload(NamedTuple):
    """A job on which all algorithms are compared."""

    cluster: str
    split: str  # of SPLITS
    network: str


@dataclass(frozen=True, kw_only=True)
class RunLine:
    """One run. Its fields are the keys of the JSON.

    Attributes:
        entry: name of an algorithm or a preset, of algorithms.ENTRIES.
        phase: TUNING on held-out samples; REPORT and UNTUNED on the test set, with a chosen step size or the same for
            all.
        study: from 0; of REPORT that of the chosen trial; of UNTUNED 0.
        trial: from 0 in its study; the same.
        step_sizes: by field of Config.
        momentum: of the steps, where it was searched for too.
        validation: [seconds, accuracy] on the held-out samples; empty where it was evaluated on the test set.
        test: the same on the test set.
        seconds: virtual ones, that it took.
        ended: why, in words.
        diverged: its loss was no longer finite.
        failed: the error that ended it otherwise; empty in nearly all.
        step_times_s: of all workers of the cluster, also of those that took no part.
        workers: that took part.
        initial_weights, partition: SHA-256.
        command: of simulate.py, that makes it again.
        commit, program: that made it; the program's hash is known without git too.
    """

    entry: str
    cluster: str
    split: str
    network: str
    phase: str
    study: int
    trial: int
    seed: int
    step_sizes: Mapping[str, float]
    momentum: float | None = None
    validation: Curve = ()
    test: Curve = ()
    seconds: float = 0.0
    samples_per_s: float = 0.0
    final_accuracy: float | None = None
    ended: str = ""
    diverged: bool = False
    failed: str = ""
    step_times_s: Sequence[float] = ()
    workers: int = 0
    initial_weights: str = ""
    partition: str = ""
    command: Sequence[str] = ()
    commit: str | None = None
    program: str = ""

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("entry", self.entry, tuple(ENTRIES)),
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

    @property
    def workload(self) -> Workload:
        """The job."""
        return Workload(self.cluster, self.split, self.network)

    @property
    def key(self) -> tuple[Any, ...]:
        """What it is a run of; of two with the same the later one counts, as when other trials turned out best."""
        trial = (self.study, self.trial) if self.phase == TUNING else ()
        return (self.phase, self.workload, self.entry, self.seed, *trial)

    @property
    def curve(self) -> Curve:
        """On the samples that this run was evaluated on."""
        return self.validation if self.phase == TUNING else self.test

    @property
    def step_size(self) -> float:
        """The one that was searched for."""
        return next(iter(self.step_sizes.values()))

    def seconds_to(self, target: float) -> float:
        """Infinite where it did not reach the target, or diverged or failed: nobody would have its model."""
        return math.inf if self.diverged or self.failed else time_to_target(self.curve, target)

    @property
    def best_accuracy(self) -> float:
        """0 where it was never evaluated, or diverged or failed."""
        return 0.0 if self.diverged or self.failed else max((accuracy for _, accuracy in self.curve), default=0.0)


def read(folder: Path) -> list[RunLine]:
    """All runs, in order; of those of the same thing only the last.

    Raises:
        SetupError: as run_lines.read.
    """
    return run_lines.read(folder, RunLine, "experiments/study/study.py")


# ---------------------------------------------------------------------------------------------- what the runs say


@dataclass(frozen=True)
class Comparison:
    """The runs of a folder."""

    lines: Sequence[RunLine]
    _parts: dict[tuple[str, Workload, str], list[RunLine]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        for line in self.lines:
            self._parts.setdefault((line.phase, line.workload, line.entry), []).append(line)

    @cached_property
    def workloads(self) -> list[Workload]:
        """In the order of their first runs."""
        return list(dict.fromkeys(line.workload for line in self.lines))

    @cached_property
    def entries(self) -> list[str]:
        """In the order of the table of algorithms."""
        return [entry for entry in ENTRIES if any(line.entry == entry for line in self.lines)]

    def workloads_of(self, phase: str) -> list[Workload]:
        """Those that have runs of a phase."""
        there = {line.workload for line in self.lines if line.phase == phase}
        return [workload for workload in self.workloads if workload in there]

    def runs(self, phase: str, workload: Workload, entry: str) -> list[RunLine]:
        """Those of an algorithm on a job; empty where there are none."""
        return self._parts.get((phase, workload, entry), [])

    def seconds(self, phase: str, workload: Workload, entry: str, target: float) -> list[float]:
        """The times of its runs to a target."""
        return [line.seconds_to(target) for line in self.runs(phase, workload, entry)]

    def alone(self, phase: str, workload: Workload) -> str | None:
        """The row of one machine by itself; None where it was not run."""
        return next((entry for entry in ALONE if self.runs(phase, workload, entry)), None)

    def times_as_fast(
        self, phase: str, workload: Workload, entry: str, baseline: str, target: float
    ) -> Estimate | None:
        """How many times as soon as a baseline at the target, over the seeds that both have; None where a seed's ratio
        is not known, or there is no common seed."""
        sides = [
            {line.seed: line.seconds_to(target) for line in self.runs(phase, workload, name)}
            for name in (baseline, entry)
        ]
        seeds = [seed for seed in sides[0] if seed in sides[1]]
        return times_as_fast(*([side[seed] for seed in seeds] for side in sides)) if seeds else None

    def studies(self, workload: Workload, entry: str) -> list[list[RunLine]]:
        """The trials of each study."""
        trials: dict[int, list[RunLine]] = {}
        for line in self.runs(TUNING, workload, entry):
            trials.setdefault(line.study, []).append(line)
        return [trials[study] for study in sorted(trials)]

    def chosen(self, workload: Workload, entry: str, target: float) -> RunLine | None:
        """The trial whose step size is reported: the best one of the study whose best one is the median.

        Of trials that did not reach the target the one with the greatest accuracy is better. Of an even number of
        studies the slower of the two in the middle counts, as the score's would be worse than the faster.
        """

        def rank(line: RunLine) -> tuple[float, float]:
            return line.seconds_to(target), -line.best_accuracy

        best = sorted((min(trials, key=rank) for trials in self.studies(workload, entry)), key=rank)
        return best[len(best) // 2] if best else None

    def is_at_an_end(self, chosen: RunLine) -> bool:
        """Whether no trial of the same algorithm had a smaller step size, or none a greater one, with its momentum."""
        trials = self.runs(TUNING, chosen.workload, chosen.entry)
        tried = [line.step_size for line in trials if line.momentum == chosen.momentum]
        return chosen.step_size in (min(tried), max(tried))

    def speed_of_all(self, workload: Workload) -> float | None:
        """Sum of the workers' speeds over the greatest: no algorithm trains on more samples/s, beside that machine's.

        It bounds no time to an accuracy: an algorithm may need fewer samples than that machine alone.
        """
        times_s = next(
            (line.step_times_s for line in self.lines if line.workload == workload and line.step_times_s), ()
        )
        return sum(min(times_s) / time_s for time_s in times_s) if times_s else None

    def are_same(self, one: tuple[Workload, str], other: tuple[Workload, str]) -> bool:
        """Whether the reported runs of two rows have the same accuracies, evaluation by evaluation, with every seed;
        their seconds may differ."""
        curves = [
            {line.seed: [accuracy for _, accuracy in line.curve] for line in self.runs(REPORT, *row)}
            for row in (one, other)
        ]
        return bool(curves[0]) and curves[0] == curves[1]

    def differences(self) -> list[str]:
        """Where runs with the same seed of the same job began with other weights, or with another partition."""
        found = []
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
                    sides = " against ".join(", ".join(sorted(entries)) for entries in values.values())
                    found.append(f"{name} differ on {', '.join(workload)}, seed {seed}: {sides}")
        return found
