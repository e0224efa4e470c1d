#!/usr/bin/env python3
"""Makes the runs of a comparison by its rules (results/comparison-mlp/README.md), in virtual time by simulate.py.

    .venv/bin/python experiments/study/study.py --folder results/comparison --networks mlp --jobs 2

For each job (cluster, split, network) and each algorithm each study has --trials step sizes, drawn from --range, with
each of --momenta, evaluated on --validation held-out training samples. Then come the chosen step size and momentum with
other seeds on the test set, and the step size --untuned, with the same seeds, for all. A run is at a target from the
evaluation on with which the mean of --in-a-row of them is; one that is to end there gets a target 0.01 above it behind
`--`, since it ends with a single evaluation. Each run is a line of FOLDER/runs.jsonl (experiments/study/comparison.py),
also one that diverged or failed. The limit of a job is the time in which its fastest machine alone sees all training
samples --epochs times. What follows `--` goes to every run. The same command makes the missing runs, those of this
version of the program (or of any); Ctrl-C ends it. experiments/study/write_comparison.py makes the tables. A job that
differs from one of another comparison only in its limit or its target can take that one's step sizes: --tuned-in
FOLDER; with --tuned-on CLUSTER those of another cluster.
Exit codes: 0 all done or the budget is spent, 1 some runs failed, 2 something to put right, 130 stopped.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import itertools
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from algorithms import ENTRIES, OWNERS, Workers
from config import NETWORKS, names_of
from experiments.study import comparison
from experiments.study.comparison import PHASES, REPORT, TUNING, UNTUNED, Comparison, RunLine, Workload
from experiments.study.study_run import MODEL_BYTES, REPORT_SEEDS_FROM, Task, limit_of, measured, step_times_s
from experiments.study.write_comparison import TARGET, TARGETS
from flag_parser import FlagParser
from flag_values import above_zero, accuracy, at_least, below_one, several
from scripts import run_lines
from scripts.launch import job_options
from scripts.run_lines import BY_CLASS, SPLITS
from scripts.run_process import Processes, exit_code_of, make
from trainer import version
from trainer.simulation import cluster_file
from utils import EXIT_BUG, EXIT_OK, SetupError, setup_logging, usable_cores

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ("paper", "nine-ways", "slow-link", "sync-switch-2x30ms")  # the last: transient stragglers
# Workers of presets that choose the fastest: those that are not slow, where these are not half of the cluster.
FASTEST = {"nine-ways": 3, "nine-ways-per-sample": 3, "paper": 4, "slow-link": 3, "sync-switch-2x30ms": 6}
# Flags that a mode needs in so short a job; the same for all step sizes.
FLAGS = {
    "sync-switch": ("--switch-order", "10", "--train-steps", "30", "1000000"),
    "esync-anchor": ("--anchor", "2"),  # where the exchange is cheap, auto is ESync itself
}
# The row of one machine alone is standalone training on the fastest, where there is such a preset.
ALL_ENTRIES = tuple(name for name in ENTRIES if name != "local" or "alone" not in ENTRIES)
DRAW_SEED = 2026  # of the step sizes


def step_sizes(study: int, trials: int, low: float, high: float) -> list[float]:
    """The step sizes of a study, of three digits, the same for all algorithms: log-uniform in the range, equally far
    apart, all moved by the same random amount and round the end (Cranley and Patterson 1976). Of independent draws five
    often leave out a factor of ten."""
    moved = np.random.default_rng((DRAW_SEED, study)).random()
    places = sorted((moved + trial / trials) % 1 for trial in range(trials))
    return [float(f"{low * (high / low) ** place:.3g}") for place in places]


def with_momentum(step_size: float, momentum: float | None) -> float:
    """The step size with which steps of this momentum go as far: v <- mu * v + gradient sums up to 1 / (1 - mu)
    gradients. So one range of step sizes suits all momenta."""
    return step_size if not momentum else float(f"{step_size * (1 - momentum):.3g}")


@dataclass(frozen=True)
class Plan:
    """The runs of a study, as the command line says."""

    folder: Path
    workloads: Sequence[Workload]
    entries: Sequence[str]
    phases: Sequence[str]
    studies: int
    trials: int
    seeds: int
    low: float
    high: float
    momenta: Sequence[float | None]
    in_a_row: int
    untuned: float
    validation: int
    epochs: float
    evaluations: int
    target: float
    more: Sequence[str]
    tuned_on: str | None = None  # the cluster of the trials that choose step sizes; None: each job's own
    tuned_in: Path | None = None  # the folder of these trials; None: the plan's own

    def tuned(self, workload: Workload) -> Workload:
        """The job whose trials choose its step sizes."""
        return workload._replace(cluster=self.tuned_on or workload.cluster)

    def tuning(self, workload: Workload) -> Iterator[Task]:
        """The trials of all algorithms, a study after the other."""
        for study in range(self.studies):
            sizes = step_sizes(study, self.trials, self.low, self.high)
            tried = enumerate(itertools.product(self.momenta, sizes))
            for (trial, (momentum, size)), entry in itertools.product(tried, self.entries):
                tried_size = with_momentum(size, momentum)
                yield Task(TUNING, workload, entry, study, trial, study, tried_size, momentum, self.in_a_row)

    def reporting(self, workload: Workload, trials: Sequence[RunLine]) -> Iterator[Task]:
        """The runs on the test set with the best step sizes of the trials."""
        its = Comparison(trials)
        for seed, entry in itertools.product(self.report_seeds, self.entries):
            if chosen := its.chosen(self.tuned(workload), entry, self.target):
                best = chosen.step_size, chosen.momentum
                yield Task(REPORT, workload, entry, chosen.study, chosen.trial, seed, *best, self.in_a_row)

    def trials_in(self, folder: Path) -> list[RunLine]:
        """The runs of another comparison, with the trials of these jobs.

        Raises:
            SetupError: they cannot be read, or an algorithm has no trials on one of these jobs, or fewer than another.
        """
        lines = comparison.read(folder)
        its = Comparison(lines)
        for workload in map(self.tuned, self.workloads):
            numbers = {entry: len(its.runs(TUNING, workload, entry)) for entry in self.entries}
            for entry, number in numbers.items():
                if number == 0 or number < max(numbers.values()):
                    job = ", ".join(workload)
                    raise SetupError(f"{folder} has {number or 'no'} trials of {entry} on {job}: not yet all of them")
        return lines

    def without_tuning(self, workload: Workload) -> Iterator[Task]:
        """The runs on the test set with one step size for all, and the first momentum."""
        for seed, entry in itertools.product(self.report_seeds, self.entries):
            size = with_momentum(self.untuned, self.momenta[0])
            yield Task(UNTUNED, workload, entry, 0, 0, seed, size, self.momenta[0], self.in_a_row)

    def apart(self) -> list[Plan]:
        """A plan for each momentum alone, in a folder of its own."""
        return [replace(self, momenta=(each,), folder=self.folder / f"momentum-{each:g}") for each in self.momenta]

    @property
    def report_seeds(self) -> range:
        return range(REPORT_SEEDS_FROM, REPORT_SEEDS_FROM + self.seeds)

    @property
    def runs(self) -> int:
        """How many runs there are in all."""
        of_phase = {TUNING: self.studies * self.trials * len(self.momenta), REPORT: self.seeds, UNTUNED: self.seeds}
        return len(self.workloads) * len(self.entries) * sum(of_phase[phase] for phase in self.phases)

    def command(self, task: Task) -> list[str]:
        """The run's command, without a place for its logs."""
        (cluster, split, network), row = task.workload, OWNERS[task.entry]
        limit_s = self.limit_s(cluster)
        words = ["simulate.py", "-m", task.entry, "--cluster", cluster, "-n", network]
        if ENTRIES[task.entry].workers is Workers.K_FASTEST and cluster in FASTEST:
            words += ["--fastest", str(FASTEST[cluster])]
        words += ["--seed", str(task.seed), names_of(task.rate)[0], f"{task.step_size:g}"]
        words += FLAGS.get(task.entry, ())
        if task.momentum is not None:
            words += ["--momentum", f"{task.momentum:g}"]
        words += ["--max-seconds", f"{limit_s:g}", "--eval-seconds", f"{limit_s / self.evaluations:g}"]
        if cluster in MODEL_BYTES:
            words += ["--model-bytes", f"{MODEL_BYTES[cluster]:g}"]
        if split == BY_CLASS and "split_by_class" in row.all_flags:  # one worker alone has all classes
            words += ["-s", "1"]
        if task.phase == TUNING:
            words += ["--validation", str(self.validation)]
            if self.in_a_row == 1:  # a run ends with the last target
                words += ["--target-accuracy", f"{max(*TARGETS, self.target):g}"]
        return [*words, "--log-form", "lines", *self.more]

    def limit_s(self, cluster: str) -> float:
        """The virtual seconds of each run on a cluster."""
        return limit_of(cluster, self.epochs)


# ------------------------------------------------------------------------------------------------------ all of them


class Study:
    """Makes the runs of a plan that are missing.

    Args:
        again_failed: runs that have failed before are missing too.
        any_version: runs of another version of the program are not.
    """

    def __init__(
        self, plan: Plan, processes: Processes, jobs: int, budget_s: float, again_failed: bool, any_version: bool
    ) -> None:
        self._plan, self._processes, self._jobs = plan, processes, jobs
        self._until = time.monotonic() + budget_s
        self._progress = run_lines.Progress(plan.runs)
        self._again_failed, self._any_version = again_failed, any_version
        there = (plan.folder / run_lines.RUNS_FILE).exists()
        self._lines = {line.key: line for line in (comparison.read(plan.folder) if there else ())}
        self._fresh: set[Any] = set()  # the keys of the runs of this call
        self._failed = 0
        self._program = version.files_hash()
        self._elsewhere = None if plan.tuned_in is None else plan.trials_in(plan.tuned_in)

    def do(self) -> int:
        """Returns how many runs have failed.

        Raises:
            KeyboardInterrupt: it was stopped.
        """
        plan = self._plan
        for workload in plan.workloads:
            if TUNING in plan.phases:
                self._do(list(plan.tuning(plan.tuned(workload))))
            if REPORT in plan.phases and (trials := self._trials_of(workload)) is not None:
                self._do(list(plan.reporting(workload, trials)))
            elif REPORT in plan.phases and not self.is_over:
                logging.info("%s: its trials are not complete, so no step size is chosen yet", " ".join(workload))
            if UNTUNED in plan.phases:
                self._do(list(plan.without_tuning(workload)))
        return self._failed

    def _trials_of(self, workload: Workload) -> Sequence[RunLine] | None:
        """The trials that choose a job's step sizes; None while some are missing."""
        if self._elsewhere is not None:
            return self._elsewhere
        trials = [self._line_of(task) for task in self._plan.tuning(self._plan.tuned(workload))]
        known = [line for line in trials if line is not None]
        return known if len(known) == len(trials) else None

    @property
    def is_over(self) -> bool:
        """Whether no other run is to be begun."""
        return self._processes.stopped or time.monotonic() > self._until

    def _do(self, tasks: Sequence[Task]) -> None:
        to_do = [task for task in tasks if self._line_of(task) is None]
        self._progress.done += len(tasks) - len(to_do)
        for task, line in run_lines.made(to_do, self._make, self._jobs, self._plan.folder):
            self._lines[line.key] = line
            self._fresh.add(line.key)
            self._failed += bool(line.failed)
            self._tell(task, line)
        if self._processes.stopped:
            raise KeyboardInterrupt

    def _make(self, task: Task) -> RunLine | None:
        if self.is_over:
            return None
        line = task.line(command=self._plan.command(task), step_times_s=step_times_s(task.workload.cluster))
        return make(self._processes, line, measured)

    def _line_of(self, task: Task) -> RunLine | None:
        """The line of this very run, if it was made by a version of the program that counts."""
        line = self._lines.get(task.line().key)
        if line is None or list(line.command) != self._plan.command(task) or line.in_a_row != task.in_a_row:
            return None
        if line.program != self._program and not self._any_version:
            return None
        return None if line.failed and self._again_failed and line.key not in self._fresh else line

    def _tell(self, task: Task, line: RunLine) -> None:
        said = line.failed or ("diverged" if line.diverged else f"{line.best_accuracy:.4f} at best")
        logging.info("%s", self._progress.ended(f"{task}: {said}"))


# ---------------------------------------------------------------------------------------------------- command line


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, Plan]:
    """Parses the command line; a bad value ends the process with exit code 2.

    Raises:
        SetupError: a cluster file is wrong.
    """
    name, form = "experiments/study/study.py", job_options.HelpFormatter
    parser = FlagParser(name, description=__doc__, formatter_class=form)
    names = job_options.names
    parser.add_argument("--folder", type=Path, default=Path("results/comparison"), help="of the results")
    parser.add_argument("--clusters", type=names(None), default=",".join(CLUSTERS), help="files, or ready-made ones")
    parser.add_argument("--tuned-on", metavar="CLUSTER", help="take the step sizes of another cluster's trials")
    parser.add_argument("--tuned-in", type=Path, metavar="FOLDER", help="take them from another comparison's trials")
    parser.add_argument("--splits", type=names(SPLITS), default=",".join(SPLITS), help="of the data")
    parser.add_argument("--networks", type=names(NETWORKS), default="mlp,lenet", help="with commas")
    entries = ",".join(ALL_ENTRIES)
    parser.add_argument("--entries", type=names(ENTRIES), default=entries, help="algorithms and presets")
    parser.add_argument("--phases", type=names(PHASES), default=",".join(PHASES), help="what to do")
    parser.add_argument("--studies", type=at_least(1), default=3, help="each with its own step sizes and seed")
    parser.add_argument("--trials", type=at_least(1), default=5, help="of a study")
    parser.add_argument("--seeds", type=at_least(1), default=5, help="runs with a chosen step size")
    parser.add_argument("--range", type=above_zero, nargs=2, default=(2e-4, 5e-2), help="of the step sizes")
    words, momenta = "each is tried with all step sizes, times 1 - momentum", several(below_one, "momenta with commas")
    parser.add_argument("--momenta", type=momenta, default="0,0.9", help=words)
    words = "choose a step size for each momentum, as comparisons of their own in FOLDER/momentum-M"
    parser.add_argument("--momenta-apart", action="store_true", help=words)
    parser.add_argument("--in-a-row", type=at_least(1), default=3, help="evaluations whose mean is to be at a target")
    parser.add_argument("--untuned", type=above_zero, default=0.001, help="the one step size for all")
    parser.add_argument("--target", type=accuracy, default=TARGET, help="accuracy, whose time chooses the step sizes")
    parser.add_argument("--validation", type=at_least(1), default=5000, help="held-out training samples")
    parser.add_argument("--epochs", type=above_zero, default=8.0, help="of the fastest machine alone, in a run's time")
    parser.add_argument("--evaluations", type=at_least(1), default=100, help="in that time")
    parser.add_argument("--jobs", type=at_least(1), default=len(usable_cores()), help="runs at the same time")
    parser.add_argument("--budget", type=above_zero, default=float("inf"), help="seconds after which no run is begun")
    parser.add_argument("--again-failed", action="store_true", help="also runs that have failed before")
    parser.add_argument("--any-version", action="store_true", help="runs of another version of the program count")
    given, more = job_options.parse(parser, arguments)
    if given.range[0] >= given.range[1]:
        parser.error(f"--range {given.range[0]:g} {given.range[1]:g}: the first must be less than the second")
    if given.tuned_in and TUNING in given.phases:
        parser.error(f"--tuned-in {given.tuned_in}: the trials are that folder's; leave {TUNING} out of --phases")
    for cluster in (*given.clusters, *filter(None, [given.tuned_on])):
        cluster_file.find(cluster)
    every = itertools.product(given.networks, given.clusters, given.splits)
    plan = Plan(
        workloads=[Workload(cluster, split, network) for network, cluster, split in every],
        low=given.range[0],
        high=given.range[1],
        more=more,
        **{field.name: getattr(given, field.name) for field in fields(Plan) if field.name in given},
    )
    return given, plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and makes the missing runs; returns the exit code."""
    return exit_code_of(lambda: _do(list(sys.argv[1:] if arguments is None else arguments)))


def _do(arguments: Sequence[str]) -> int:
    setup_logging("study")
    given, plan = parse(arguments)
    processes = Processes(Path("logs") / "study" / plan.folder.name)
    failed, until = 0, time.monotonic() + given.budget
    with processes.stopped_by_signals():
        for part in plan.apart() if given.momenta_apart else [plan]:
            part.folder.mkdir(parents=True, exist_ok=True)
            left_s = until - time.monotonic()
            study = Study(part, processes, given.jobs, left_s, given.again_failed, given.any_version)
            failed += study.do()
    return EXIT_BUG if failed else EXIT_OK


if __name__ == "__main__":
    start.run(main)
