"""Finds Sync-Switch's switch point for a job that recurs: the smallest share of BSP that keeps BSP's accuracy.

A binary search. A trial is a whole job on this machine (scripts/local_cluster.sh -m sync-switch) that trains a part of
--total-steps with BSP, then the rest with ASP; the first two trials are BSP alone and ASP alone. A trial is judged by
the mean of its last five evaluations; it has converged, as published, if they differ by less than 0.1 %. A trial that
diverges is below the margin. What follows `--` goes to every worker's main.py, in all trials. The table of the trials
is written after each of them. Ctrl-C ends the running trial, which does not count; the same command runs those that are
missing, also with another --margin, --resolution or --runs.
Logs: LOG_BASE/trials/NAME OF THE TABLE/bsp-B-asp-A-seed-S/NETWORK/sync-switch/HOST/cpuN/.
Exit codes: 0 found, 2 something to put right first, 3 a process of a trial died, 130 stopped before it was found.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import summary
from experiments.switch_point import trial_table
from experiments.switch_point.switch_search import Goal, Plan, Trial, converged_accuracy, next_trial, phases
from experiments.switch_point.trial_table import result_lines, trial_line
from flag_parser import FlagParser
from flag_values import above_zero, at_least, fraction
from report import metrics
from scripts.launch import job_options, local_cluster
from scripts.launch.console import console
from scripts.launch.roles import Build, JobSpec, build
from trainer import command_line, straggler_trace
from trainer.run_logs.rounds import Warn
from trainer.simulation.cluster_file import ClusterProfile
from utils import DIVERGED, EXIT_FORCED, EXIT_OK, SetupError

TABLE_FILE = "switch-points.json"

# main.py's flags that a trial sets, or that would end it before its last step.
TRIALS_OWN = ("switch_order", "train_steps", "resume", "max_rounds", "max_seconds", "target_accuracy", "target")


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """The search's own options with those of a local cluster, and the flags for main.py."""
    name, form = "scripts/find_switch_point.sh", job_options.HelpFormatter
    parser = FlagParser(name, description=__doc__, formatter_class=form)
    parser.set_defaults(mode="sync-switch")

    def option(flag: str, words: str, **more: Any) -> None:
        parser.add_argument(flag, help=words, **{"default": argparse.SUPPRESS, **more})

    option("--total-steps", "of a trial, as main.py's --train-steps counts them", type=at_least(1), required=True)
    option("--margin", "how far the accuracy may be below that of BSP alone", type=fraction, default=0.01)
    option("--resolution", "smallest difference of shares that is worth a trial", type=above_zero, default=0.01)
    option("--runs", "trials of each share, each with its own seed; means count", type=at_least(1), default=1)
    option("--table", f"file of the trials (default: LOG_BASE/NETWORK/{TABLE_FILE})", type=Path)
    local_cluster.add_job(parser)
    given, for_main = job_options.parse(parser, arguments)
    given.log_base = job_options.log_base(given)  # of the table and all trials
    given.run = ""
    if "table" not in given:
        given.table = given.log_base / given.network / TABLE_FILE
    return given, for_main


# ----------------------------------------------------------------------------------------------------- the trials


@dataclass(frozen=True)
class Job:
    """The settings of all trials."""

    given: argparse.Namespace
    cluster: ClusterProfile  # read once: later trials must not see a changed file
    flags: tuple[str, ...]  # the user's for main.py

    @property
    def folder(self) -> Path:
        """The folder of the trials' log trees."""
        base: Path = self.given.log_base
        return base.resolve() / "trials" / self.given.table.stem

    @property
    def first_seed(self) -> int:
        """The user's --seed, or main.py's own."""
        bsp = Plan(self.given.total_steps, seed=0)
        return command_line.parse(["-m", self.given.mode, *self._phases(bsp), *self.flags]).seed

    def options(self, plan: Plan) -> JobSpec:
        """The trial as a local cluster. Its seed comes last, because the user's is only the first of several.

        Raises:
            SetupError: a port that was asked for is in use.
        """
        bsp_steps, asp_steps = self._split(plan)
        folder = self.folder / f"bsp-{bsp_steps}-asp-{asp_steps}-seed-{plan.seed}"
        given = argparse.Namespace(**vars(self.given) | {"log_base": folder})
        return local_cluster.to_job_spec(given, self.cluster, (*self._phases(plan), *self.flags, *_seed(plan)))

    def own_flags(self, plan: Plan) -> tuple[str, ...]:
        """The trial's flags for main.py without the user's."""
        return (*self._phases(plan), *_seed(plan))

    def trial(self, plan: Plan, accuracies: Sequence[float] | None, seconds: float) -> Trial:
        """A finished trial, with its evaluations; None: it diverged."""
        accuracy, converged = converged_accuracy(accuracies) if accuracies is not None else (None, False)
        return Trial(*self._split(plan), plan.seed, accuracy, seconds, converged)

    def _split(self, plan: Plan) -> tuple[int, int]:
        return plan.bsp_steps, self.given.total_steps - plan.bsp_steps

    def _phases(self, plan: Plan) -> tuple[str, ...]:
        order, steps = phases(plan.bsp_steps, self.given.total_steps)
        # All evaluations that are due count, as published.
        return ("--switch-order", order, "--train-steps", *map(str, steps), "--evaluator", "0")


def _seed(plan: Plan) -> tuple[str, str]:
    return "--seed", str(plan.seed)


def check(job: Job) -> None:
    """Checks that the workers of every trial will start, and do all of its steps. Wrong flags end the process.

    Raises:
        SetupError: a flag behind `--` contradicts the search.
    """
    total = job.given.total_steps
    for bsp_steps in sorted({total, 0, total // 2}, reverse=True):  # one of each order of phases
        plan = Plan(bsp_steps, seed=0)
        placed = local_cluster.place(job.options(plan))
        job_options.check_flags(*placed, job.own_flags(plan), TRIALS_OWN, "the search")


def settings(job: Job) -> dict[str, Any]:
    """The settings that all trials of a table share, as JSON, without the machine and the number of runs."""
    plan = Plan(job.given.total_steps, seed=0)
    options = job.options(plan)
    flags: dict[str, Any] = {}
    placed, layout = local_cluster.place(options)
    plain = replace(placed, worker_arguments=job.own_flags(plan))
    for told, own in zip(*(job_options.worker_configs(each, layout) for each in (placed, plain)), strict=True):
        flags |= {name: value for name, value in vars(told).items() if value != getattr(own, name)}
    return {
        "total_steps": job.given.total_steps,
        "network": options.network,
        "servers": options.num_servers,
        "split_by_class": options.split_by_class,
        "workers": [
            {
                "step_time_s": worker.step_time_s,
                # Left out where there is none, so that earlier tables stay comparable.
                **({"sample_time_s": worker.sample_time_s} if worker.sample_time_s else {}),
                "stragglers": _entries(worker.straggler_trace),
            }
            for worker in job.cluster.workers
        ],
        "flags": flags,
    }


def _entries(trace: Path | None) -> list[dict[str, Any]]:
    return [vars(entry) for entry in straggler_trace.read(trace)] if trace else []


def measured(options: JobSpec, warn: Warn) -> tuple[list[float], float]:
    """All accuracies of a trial, and its seconds, from the round logs of its workers.

    Raises:
        SetupError: there are none, or none with an accuracy.
    """
    found = summary.summarise_mode(options.log_folder, warn)
    # An earlier trial with more workers, or on another host, may have left other logs there.
    ours = {(worker.host, worker.folder) for worker in options.hosts.workers}
    devices = {key: device for key, device in found.items() if key in ours}
    evaluating = metrics.evaluating_device(devices, warn)
    if evaluating is None:
        raise SetupError(f"the round logs in {options.log_folder} have no accuracy: the trial cannot be judged")
    return list(evaluating.values), metrics.duration(devices.values())


# ----------------------------------------------------------------------------------------------------- the search


def search(job: Job, goal: Goal, build: Build, say: Callable[[str], None]) -> int:
    """Runs the missing trials and prints the result; returns the exit code.

    Args:
        build: makes the processes of a trial.
        say: prints a line.

    Raises:
        SetupError: the table is of another search or cannot be written, a trial cannot be started or judged, or BSP
            alone, with which all is compared, diverges.
    """
    table, common = job.given.table, settings(job)
    trials = trial_table.read(table, common)
    trial_table.write(table, common, trials, goal)  # before hours of training, not after
    if trials:
        say(f"{len(trials)} trial(s) are in {table} already")
    code = EXIT_OK
    while (plan := next_trial(trials, goal)) is not None:
        options = job.options(plan)
        say(f"\n== trial {len(trials) + 1}: {shlex.join(job.own_flags(plan))}; its logs: {options.log_folder}")
        began = time.monotonic()
        outcome = local_cluster.run(options, build, say)
        if not outcome.was_stopped and DIVERGED in outcome.error:
            if plan.bsp_steps == goal.total_steps:
                raise SetupError("BSP alone diverges, so nothing can be compared with it: lower the learning rate (-l)")
            trial = job.trial(plan, None, time.monotonic() - began)
        elif outcome.was_stopped or outcome.exit_code != EXIT_OK:  # a job that was stopped ends well, but early
            code = outcome.exit_code or EXIT_FORCED
            break
        else:
            trial = job.trial(plan, *measured(options, lambda text: say(f"warning: {text}")))
        trials.append(trial)
        trial_table.write(table, common, trials, goal)
        say(trial_line(trial, trials, goal))
    if trials:
        say(f"\n{trial_table.text(trials, goal)}\n\nthese trials are in {table}")
    if code == EXIT_OK:
        say("\n".join(result_lines(trials, goal)))
    else:
        say("not found yet: the last trial did not end and does not count; the same command continues")
    return code


def main(arguments: Sequence[str], build: Build = build) -> int:
    """The command: searches, returns the exit code. Raises SetupError where it cannot begin or go on."""
    given, flags = parse(arguments)
    job = Job(given, local_cluster.chosen_cluster(given), flags)
    check(job)
    seeds = tuple(range(job.first_seed, job.first_seed + given.runs))
    with job_options.claimed(job.folder):
        return search(job, Goal(given.total_steps, given.margin, given.resolution, seeds), build, console)


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
