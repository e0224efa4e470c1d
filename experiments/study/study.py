#!/usr/bin/env python3
"""Makes the runs of a comparison by its rules (results/comparison/README.md), in virtual time by simulate.py.

    .venv/bin/python experiments/study/study.py --folder results/comparison --clusters half,nine-ways

For each job (cluster, split, network) and each algorithm --trials trials search step size, momentum and the algorithm's
own parameters together, and further ones near the best (experiments/study/search.py), evaluated on --validation
held-out training samples. What the same search chose on the other clusters of a crossing is tried too. Up to three of
the own trials and up to three of those, where they are nearly the best, are made again with two other seeds. Then come
--seeds runs with the numbers of the best median and other seeds, evaluated on the test set. A run is at the target from
the evaluation on with which the mean of three in a row is, on a grid of a hundredth of the limit, and ends there; a
trial also ends at 1.3 times the best one's time. The limit of a job is the time in which its fastest machine alone sees
all training samples --epochs times. Each run is a line of FOLDER/runs.jsonl (comparison.py beside this), also one that
diverged or failed. The same command makes the missing runs, those of this version of the program (or of any); Ctrl-C
ends it. What follows `--` goes to every run.
Exit codes: 0 all done, 1 some runs failed, 2 something to put right, 130 stopped.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import itertools
import logging
import math
import sys
import threading
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from algorithms import Workers, owner_of
from config import HUB, NETWORKS, Config, names_of
from experiments.study import comparison
from experiments.study.comparison import REPORT, ROWS, TUNING, Comparison, RunLine, Workload, measured, rate_of
from experiments.study.comparison_tables import FROM_OTHERS, NEAR_OTHERS, Fair, family, rank
from experiments.study.search import (
    BSP_SHARE,
    FASTEST,
    MOST_NEAR,
    STEP_SIZE,
    Parameter,
    Trial,
    first_trials,
    near,
    parameters,
)
from flag_parser import FlagParser
from flag_values import above_zero, accuracy, at_least, below_one, several
from scripts import run_lines
from scripts.launch import job_options
from scripts.run_lines import BY_CLASS, SPLITS
from scripts.run_process import Processes, at_signals, exit_code_of, make
from trainer import version
from trainer.simulation import cluster_file
from utils import EXIT_BUG, EXIT_OK, setup_logging, usable_cores

STEP_SIZES = 1e-4, 2e-2  # the range of the first trials, times 1 - momentum
SLACK = 1.3  # a trial ends at so many times the best one's seconds
FINALISTS, AGAIN_SEEDS = 3, (1, 2)  # the best trials within that are made again with these seeds
MOST_OTHERS = 7  # choices of other clusters of a crossing, or of another row, that are tried too
IN_A_ROW = 3  # evaluations whose mean is to be at the target
EVALUATIONS = 100  # in the limit
MODEL_BYTES = {"paper": 44.7e6, "journal": 44.7e6}  # ResNet-18's, whose times these clusters have
REPORT_SEEDS_FROM = 100  # trials have the seeds 0, 1, ...
TRAINING_SAMPLES = 60_000
BATCH = Config().batch_size
# CPU seconds of a step, of an evaluation, and of a run's start, measured on one core; for the estimate alone.
STEP_CPU_S = {"mlp": 0.0020, "lenet": 0.0090}
EVALUATION_CPU_S = {"mlp": 0.02, "lenet": 0.6}
START_CPU_S = 2.0


def step_times_s(cluster: str) -> list[float]:
    """Seconds of a step of each worker with a batch of the usual size."""
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    return [row.shortest_step_s(BATCH) + row.overhead_s for row in rows]


def entries_of(cluster: str) -> list[str]:
    """The rows that are not the runs of another row by construction.

    Standalone training on the fastest machine is `alone`; SSGD without the slowest machine is one K of `fastest-sync`;
    LB-BSP is SSGD where a smaller batch is no faster; `upload-aware` is ESync's own rule where no link is slow.
    """
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    left_out = {"local", "without-slow"}
    if not any(row.sample_time_s for row in rows):
        left_out.add("lb-bsp")
    if all(math.isinf(row.bandwidth_mbit_s) for row in rows):
        left_out.add("esync-outer-aware")
    return [entry for entry in ROWS if entry not in left_out]


@dataclass(frozen=True)
class Plan:
    """The runs of a study, as the command line says."""

    folder: Path
    workloads: Sequence[Workload]
    entries: Sequence[str] | None  # None: those of each cluster
    trials: int
    seeds: int
    momenta: Sequence[float]
    validation: int
    epochs: float
    target: float
    more: Sequence[str]

    @property
    def runs(self) -> int:
        """Those of a row, without further trials."""
        return self.trials + 2 * FINALISTS * len(AGAIN_SEEDS) + self.seeds

    @property
    def rows(self) -> list[tuple[Workload, str]]:
        return [
            (workload, entry)
            for workload in self.workloads
            for entry in entries_of(workload.cluster)
            if self.entries is None or entry in self.entries
        ]

    def tasks(
        self, workload: Workload, entry: str, others: Sequence[tuple[int, Trial]] = ()
    ) -> Generator[RunLine, RunLine, None]:
        """The runs of a row, one after the other: yields each before it is made, and is sent it with its results.

        Args:
            others: what was chosen for this row on other clusters of the crossing, with the numbers of these trials.
        """
        workers = len(step_times_s(workload.cluster))
        size = Parameter(STEP_SIZE, *STEP_SIZES, is_whole=False)
        searched: list[Parameter] = [size, *parameters(entry, workers)]
        tried: list[tuple[Trial, RunLine]] = []

        def by_rank(runs: list[tuple[Trial, RunLine]]) -> list[tuple[Trial, RunLine]]:
            return sorted(runs, key=lambda each: rank([each[1]], self.target))

        def tasked(trial: Trial, number: int) -> RunLine:
            limit_s = SLACK * by_rank(tried)[0][1].seconds_to(self.target) if tried else math.inf
            return self._task(TUNING, workload, entry, trial, number, 0, limit_s)

        for trial in first_trials(searched, self.momenta, self.trials):
            tried.append((trial, (yield tasked(trial, len(tried)))))
        of_others: list[tuple[Trial, RunLine]] = []

        def neighbour() -> Trial | None:
            (best, _), *rest = by_rank([*tried, *of_others])
            known = [trial for trial, _ in rest]
            return next((trial for trial in near(searched, self.momenta, best) if trial not in known), None)

        most_near = MOST_NEAR * (len(searched) + 1)
        while len(tried) < self.trials + most_near and (another := neighbour()):
            tried.append((another, (yield tasked(another, len(tried)))))
        for number, trial in others[:MOST_OTHERS]:
            if trial not in [known for known, _ in tried]:
                of_others.append((trial, (yield tasked(trial, number))))
        for number in range(NEAR_OTHERS, NEAR_OTHERS + most_near):
            if by_rank([*tried, *of_others])[0] in tried or not (another := neighbour()):
                break
            of_others.append((another, (yield tasked(another, number))))
        limit_s = SLACK * by_rank(tried)[0][1].seconds_to(self.target)
        best = [*by_rank(tried)[:FINALISTS], *by_rank(of_others)[:FINALISTS]]
        found = [(trial, [line]) for trial, line in best if line.seconds_to(self.target) <= limit_s]
        if len(found) > 1 and any(math.isfinite(line.seconds_to(self.target)) for _, (line,) in found):
            for (trial, lines), seed in itertools.product(found, AGAIN_SEEDS):
                lines.append((yield self._task(TUNING, workload, entry, trial, lines[0].trial, seed)))
        trial, lines = min(found, key=lambda each: rank(each[1], self.target))
        for seed in range(REPORT_SEEDS_FROM, REPORT_SEEDS_FROM + self.seeds):
            yield self._task(REPORT, workload, entry, trial, lines[0].trial, seed)

    def _task(
        self,
        phase: str,
        workload: Workload,
        entry: str,
        trial: Trial,
        number: int,
        seed: int,
        limit_s: float = math.inf,
    ) -> RunLine:
        task = RunLine(
            phase=phase,
            **workload._asdict(),
            entry=entry,
            trial=number,
            seed=seed,
            step_sizes={rate_of(entry): trial.step_size},
            momentum=trial.momentum,
            in_a_row=IN_A_ROW,
            parameters=trial.own,
            step_times_s=step_times_s(workload.cluster),
        )
        return replace(task, command=self._command(task, limit_s))

    def _command(self, task: RunLine, limit_s: float) -> list[str]:
        """The run's command, without a place for its logs."""
        (cluster, split, network), row = task.workload, owner_of(task.entry)
        whole_s = self.limit_s(cluster)
        words = ["simulate.py", "-m", task.entry.removesuffix("-k"), "--cluster", cluster, "-n", network]
        if FASTEST in task.parameters:
            words += ["--fastest", f"{task.parameters[FASTEST]:g}"]
        words += ["--seed", str(task.seed), names_of(rate_of(task.entry))[0], f"{task.step_size:g}"]
        words += ["--momentum", f"{task.momentum:g}"]
        if row.name == "async":  # MXNet's own DC-ASGD has no momentum
            words += ["--exchange", HUB]
        for name, value in task.parameters.items():
            if name == BSP_SHARE:
                steps = max(1, round(value * whole_s / max(step_times_s(cluster))))
                words += ["--switch-order", "10", "--train-steps", str(steps), "1000000"]
            elif name != FASTEST:
                words += [names_of(name)[0], f"{value:g}"]
        words += ["--max-seconds", f"{min(limit_s, whole_s):g}", "--eval-seconds", f"{whole_s / EVALUATIONS:g}"]
        words += ["--target-accuracy", f"{self.target:g}", "--target-evaluations", str(IN_A_ROW)]
        if cluster in MODEL_BYTES:
            words += ["--model-bytes", f"{MODEL_BYTES[cluster]:g}"]
        if split == BY_CLASS and row.is_distributed:  # one worker alone has all classes
            words += ["-s", "1"]
        if task.phase == TUNING:
            words += ["--validation", str(self.validation)]
        return [*words, "--log-form", "lines", *self.more]

    def limit_s(self, cluster: str) -> float:
        """The virtual seconds of each run: the fastest machine of the cluster alone sees all samples `epochs` times."""
        return float(f"{self.epochs * TRAINING_SAMPLES / BATCH * min(step_times_s(cluster)):.4g}")

    def hours(self) -> float:
        """CPU hours of all runs at most: if none reached the target, and all workers that take part always computed."""
        seconds = 0.0
        for workload, entry in self.rows:
            times_s = step_times_s(workload.cluster)
            taking_part = Workers.FASTEST if ROWS[entry].workers is Workers.FASTEST else Workers.ALL
            speed = sum(1 / times_s[place] for place in taking_part.among(times_s))
            step_s, evaluation_s = STEP_CPU_S[workload.network], EVALUATION_CPU_S[workload.network]
            run_s = self.limit_s(workload.cluster) * speed * step_s + EVALUATIONS * evaluation_s + START_CPU_S
            near_and_others = MOST_NEAR * (2 + len(parameters(entry, len(times_s)))) + MOST_OTHERS
            seconds += (self.runs + near_and_others) * run_s
        return seconds / 3600


# ------------------------------------------------------------------------------------------------------ all of them


@dataclass
class Study:
    """Makes the runs of a plan that are missing.

    Attributes:
        any_version: runs of another version of the program count.
    """

    plan: Plan
    processes: Processes
    jobs: int
    any_version: bool
    failed: int = 0
    made: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        there = (self.plan.folder / run_lines.RUNS_FILE).exists()
        self._lines = {line.key: line for line in (comparison.read(self.plan.folder) if there else ())}
        self._program = version.files_hash()

    def do(self) -> None:
        """Makes them, several rows side by side. Raises KeyboardInterrupt if it was stopped."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for done in [pool.submit(self._row, *row) for row in self.plan.rows]:
                done.result()
        if self.processes.stopped:
            raise KeyboardInterrupt

    def _row(self, workload: Workload, entry: str) -> None:
        tasks = self.plan.tasks(workload, entry, self._others(workload, entry))
        task = next(tasks)
        with contextlib.suppress(StopIteration):
            while line := self._there(task) or self._make(task):
                task = tasks.send(line)

    def _others(self, workload: Workload, entry: str) -> list[tuple[int, Trial]]:
        """What this row's own searches chose on the other clusters of its crossing, where it is complete; of rows on
        few machines with an outer optimiser also ESync's numbers here, on all. What was tried keeps its number."""
        its = Fair(Comparison([*self._lines.values()]))
        jobs = [job for job in its.made.workloads if job != workload and family(job) == family(workload)]
        made = its.trials(workload, entry).items()
        found = [(number, Trial.of(lines[0])) for number, lines in made if FROM_OTHERS <= number < NEAR_OTHERS]
        chosen = [Trial.of(its.best(job, entry)) for job in jobs if its.made.runs(REPORT, job, entry)]
        steps = {"fastest-outer": "sync_every", "esync-outer-k": "anchor"}.get(entry, "")
        for line in its.made.runs(REPORT, workload, "esync-outer")[:1] if steps else ():
            own = {FASTEST: len(line.step_times_s), steps: line.parameters["anchor"]}
            chosen.append(Trial.of(replace(line, parameters=own)))
        for trial in chosen:
            if trial not in [known for _, known in found]:
                found.append((1 + max([FROM_OTHERS - 1, *(number for number, _ in found)]), trial))
        return found

    def _make(self, task: RunLine) -> RunLine | None:
        if self.processes.stopped:
            return None
        begin = time.monotonic()
        line = make(self.processes, task, measured)
        if line is None:
            return None
        with self._lock:
            run_lines.append(self.plan.folder, line)
            self.made += 1
            self.failed += bool(line.failed)
        seconds = line.seconds_to(self.plan.target)
        said = line.failed or ("diverged" if line.diverged else f"{seconds:.1f} s; {line.best_accuracy:.4f} at best")
        logging.info("%d made, this in %.0f s: %s: %s", self.made, time.monotonic() - begin, named(task), said)
        return line

    def _there(self, task: RunLine) -> RunLine | None:
        """The line of this very run, if it was made by a version of the program that counts, and has not failed."""
        line = self._lines.get(task.key)
        if line is None or line.failed:
            return None
        # A run that reached the target under another limit is the same up to there.
        compared = _without_limit if math.isfinite(line.seconds_to(self.plan.target)) else list
        if compared(line.command) != compared(task.command):
            return None
        return line if self.any_version or line.program == self._program else None


def named(run: RunLine) -> str:
    """A run in words, for the progress."""
    which = f"trial {run.trial}" if run.phase == TUNING else f"seed {run.seed}"
    own = "".join(f", {name} {value:g}" for name, value in run.parameters.items())
    job = f"{run.phase} {' '.join(run.workload)} {run.entry}"
    return f"{job}, {which}, step size {run.step_size:g}, momentum {run.momentum:g}{own}"


def _without_limit(command: Sequence[str]) -> list[str]:
    place = list(command).index("--max-seconds")
    return [*command[:place], *command[place + 2 :]]


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
    parser.add_argument("--clusters", type=names(None), default="half", help="files, or ready-made ones")
    parser.add_argument("--splits", type=names(SPLITS), default="iid", help="of the data")
    parser.add_argument("--networks", type=names(NETWORKS), default="mlp", help="with commas")
    parser.add_argument("--entries", type=names(ROWS), help="algorithms and presets (default: all that differ)")
    parser.add_argument("--trials", type=at_least(1), default=12, help="of a row")
    parser.add_argument("--seeds", type=at_least(1), default=7, help="runs with the best trial's numbers")
    momenta = several(below_one, "momenta with commas")
    parser.add_argument("--momenta", type=momenta, default="0,0.9", help="step sizes are times 1 - momentum")
    parser.add_argument("--target", type=accuracy, default=0.85, help="accuracy")
    parser.add_argument("--validation", type=at_least(1), default=5000, help="held-out training samples")
    parser.add_argument("--epochs", type=above_zero, default=4.0, help="of the fastest machine alone, in a run's time")
    parser.add_argument("--jobs", type=at_least(1), default=len(usable_cores()), help="runs at the same time")
    parser.add_argument("--any-version", action="store_true", help="runs of another version of the program count")
    given, more = job_options.parse(parser, arguments)
    if given.trials % len(given.momenta):
        parser.error(f"--trials {given.trials} is no multiple of the number of --momenta, {len(given.momenta)}")
    for cluster in given.clusters:
        cluster_file.find(cluster)
    every = itertools.product(given.networks, given.clusters, given.splits)
    plan = Plan(
        workloads=[Workload(cluster, split, network) for network, cluster, split in every],
        more=more,
        **{each.name: getattr(given, each.name) for each in fields(Plan) if each.name in given},
    )
    return given, plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and makes the missing runs; returns the exit code."""
    return exit_code_of(lambda: _do(list(sys.argv[1:] if arguments is None else arguments)))


def _do(arguments: Sequence[str]) -> int:
    setup_logging("study")
    given, plan = parse(arguments)
    rows = len(plan.rows)
    logging.info("%d rows, %d runs and further trials, at most %.1f hours of CPU", rows, rows * plan.runs, plan.hours())
    plan.folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(Path("logs") / "study" / plan.folder.name)
    study = Study(plan, processes, given.jobs, given.any_version)
    with at_signals(processes.stop):
        study.do()
    return EXIT_BUG if study.failed else EXIT_OK


if __name__ == "__main__":
    start.run(main)
