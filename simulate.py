"""A whole cluster in one process, in virtual time, with real gradients: main.py's algorithms on machines and networks
that you do not have.

    python simulate.py -m esync --cluster paper -n lenet --model-bytes 44.7e6 --max-seconds 600 -ll 0.0005

The cluster file has each worker's step times and network (scripts/clusters/README.md). All other flags are main.py's
(`python main.py --help`), without those of real devices and addresses. The logs are those of a real job,
LOG_BASE/NETWORK/MODE/virtual/cpuN/rounds.jsonl, for summary.py and draw.py. Several modes or seeds are a set of runs,
each with the flags that count in its mode; those of several seeds go to LOG_BASE/seed-N. Finished runs are skipped.
Exit codes: 0 done, or stopped by a first Ctrl-C with complete logs; 1, 2, 4 and 130 as main.py's.
"""

if __name__ == "__main__":
    import sys

    sys.path.insert(0, __file__.rpartition("/")[0] or ".")  # PYTHONSAFEPATH leaves it out
    import start  # first: what it does is for the other imports too

import argparse
import dataclasses
import functools
import gc
import logging
import math
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from algorithms import ENTRIES, OWNERS, Workers, entry_name, filed_as, folder_name
from config import MPI, NETWORKS, NO_NETWORK, Config, names_of, preset_flags
from flag_parser import FlagParser
from flag_values import above_zero, at_least, seeds
from main import guarded
from scripts.launch import job_options, local_cluster
from scripts.launch.previous_run import PreviousRun
from scripts.launch.side_by_side import run_side_by_side
from trainer import command_line
from trainer.jobs.sources import sources
from trainer.run_logs.earlier_runs import date_time
from trainer.runtime.environment import set_unless_given
from trainer.simulation import cluster_file
from trainer.simulation.cluster_file import ClusterProfile
from trainer.simulation.virtual_job import HOST, VirtualJob
from utils import EARLIER, EXIT_OK, SetupError, setup_logging, usable_cores

EVALUATIONS = 50  # of a run whose flags do not say when; the last round has one more
GARBAGE = 50_000  # objects after which Python looks for circles among the new ones
STUB_BYTES = 44.7e6  # of the model of -n none by default: ResNet-18's

NOWHERE = {
    **dict.fromkeys(("gpu", "cpu", "device_name"), "its workers are no devices, and are called cpu0, cpu1, ..."),
    **dict.fromkeys(
        ("min_step_time", "sample_time", "straggler_trace"),
        "the cluster file (--cluster) has them, one for each worker",
    ),
    "evaluator": "evaluations take no virtual time but --evaluation-time",
    **dict.fromkeys(("state_server_ip", "state_server_port", "page"), "the state server is in this process"),
    "of_workers": "--fastest sets it",
    **dict.fromkeys(("log_dir", "earlier"), "the logs are below --log-base"),
    **dict.fromkeys(("start_timeout", "job_name"), "its workers are all there"),
    **dict.fromkeys(("on_worker_death", "min_workers", "fault_timeout", "leave"), "its workers do not die"),
}
STUB_NOWHERE = {
    **dict.fromkeys(("dataset", "data_dir", "split_by_class", "augment"), f"-n {NO_NETWORK} looks at no data"),
    "job": f"-n {NO_NETWORK} trains nothing",
    **dict.fromkeys(("target_accuracy", "target", "validation"), f"-n {NO_NETWORK} has no accuracy"),
    **dict.fromkeys(
        ("init_from", "max_bad_steps", "ckpt_frequency", "ckpt_keep", "checkpoint", "resume", "estimate_statistics"),
        f"-n {NO_NETWORK} computes nothing",
    ),
}
STUB_EVALUATES_NOT = dict.fromkeys(
    ("eval_duration", "eval_seconds", "evaluate"),
    f"-n {NO_NETWORK} has no accuracy, and only with --evaluation-time its evaluations take time",
)


@dataclasses.dataclass(frozen=True)
class SimulatedRun:
    """One job of a set, and the command line that runs it alone."""

    name: str
    job: VirtualJob
    arguments: tuple[str, ...]


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[SimulatedRun]]:
    """Parses the command line; a bad value ends the process with exit code 2. Raises SetupError if the cluster file is
    wrong, or a flag means nothing here."""
    parser = FlagParser(prog="simulate.py", description=__doc__, formatter_class=job_options.HelpFormatter)
    parser.add_argument("-m", "--mode", default="esync", help=f"one or several, with commas: {', '.join(ENTRIES)}")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cluster", default="nine-ways", metavar="FILE", help="a CSV file, or one of scripts/clusters")
    which.add_argument("--workers", type=_step_times, help="step times in place of --cluster, with commas (one: 3.0)")
    parser.add_argument("--worker", type=at_least(0), default=0, help="row of the cluster that trains in mode local")
    job_options.add_fastest(parser)
    parser.add_argument(
        "--model-bytes", type=above_zero, default=0.0, help="size of the model in transfers (0: its own)"
    )
    parser.add_argument(
        "--evaluation-time", type=at_least(0, float), default=0.0, help="virtual seconds of an evaluation"
    )
    parser.add_argument("--seed", "--seeds", dest="seeds", type=seeds, default="0", help="such as 0,1,2 or 0..4")
    parser.add_argument(
        "--jobs", type=at_least(1), default=len(usable_cores()), help="runs of a set at the same time (default: cores)"
    )
    job_options.add_log_base(parser, Path("logs"))
    parser.add_argument("--again", action="store_true", help="repeat runs that are done")
    parser.add_argument("--beside", default="", help=argparse.SUPPRESS)  # modes of the set that a run belongs to
    parser.add_argument("--set-aside", default="", type=Path, help=argparse.SUPPRESS)  # where a set moves earlier runs
    # The others are main.py's, whose parser refuses unknown ones. In a launcher's command line `--` divides the two.
    own, others = parser.parse_known_args([word for word in arguments if word != "--"])
    own.flags = parser.flags
    modes = own.mode.split(",")
    own.is_of_set = bool(own.beside)  # whose parent has said the warnings
    if not own.is_of_set:
        own.log_base = job_options.log_base(own)
        own.set_aside = own.log_base / EARLIER / date_time()
    own.beside = own.beside or own.mode
    for mode in modes:
        if mode not in ENTRIES:
            parser.error(f"unknown mode {mode!r}; choose from {', '.join(ENTRIES)}")
    job_options.check_fastest(own.fastest, own.beside.split(","))
    cluster, name = _cluster(own)
    return own, [_run(own, others, cluster, name, mode, seed) for seed in own.seeds for mode in modes]


def _step_times(text: str) -> tuple[float, ...]:
    """Parses --workers; local_cluster.sh also takes a number of workers, which has no step times."""
    asked = local_cluster.step_times_or_count(text)
    if isinstance(asked, int):
        raise argparse.ArgumentTypeError(
            f"{text} is a number of workers, and a virtual worker needs its step time: give the seconds "
            f"of each with commas, such as 0.1,0.1,0.2, or of a single one with a point, such as {max(1, asked)}.0"
        )
    return asked


def _cluster(own: argparse.Namespace) -> tuple[ClusterProfile, str]:
    if own.workers:
        return ClusterProfile(tuple(map(cluster_file.Worker, own.workers))), "workers"
    path = cluster_file.find(own.cluster)
    return cluster_file.read(path), path.stem


def _run(
    own: argparse.Namespace, others: Sequence[str], cluster: ClusterProfile, name: str, mode: str, seed: int
) -> SimulatedRun:
    algorithm = OWNERS[mode]
    base = own.log_base / f"seed-{seed}" if len(own.seeds) > 1 else own.log_base
    words = ["-m", algorithm.name, *preset_flags(mode), "--seed", str(seed), *others]
    program = command_line.Program(
        "simulate.py", own.flags, (*NETWORKS, NO_NETWORK), partial(_nowhere, own.evaluation_time)
    )
    warn = (lambda text: None) if own.is_of_set else _warn
    given = command_line.parse(words, warn, program, own.beside.split(","))
    if given.job:
        sources(Path(given.job))  # cannot be read, or parsed
    made = entry_name(algorithm.name, given.values_by_name(), ENTRIES[mode].workers)
    if made != mode:
        raise SetupError(f"the other flags make {made} of -m {mode}: leave them out, or give -m {made}")
    if given.log_form == "auto":  # else a file for each round of a thousand workers
        given = given.but(log_form="lines")
    if given.network != NO_NETWORK or own.evaluation_time:
        given = _evaluated_at_moments(given, others)
    model_bytes = own.model_bytes or (STUB_BYTES if given.network == NO_NETWORK else 0.0)
    job = _with_workers(own, VirtualJob(given, cluster, name, model_bytes, own.evaluation_time, mode))
    folder = base / given.run_name / folder_name(job.entry, bool(given.split_by_class)) / HOST
    job = dataclasses.replace(job, config=job.config.but(log_dir=str(folder)), earlier=own.set_aside)
    for rank in range(len(job.cluster.workers)):
        command_line.check_step_time(job.worker_config(rank))
    alone = ("-m", mode, "--seed", str(seed), "--log-base", str(base))
    of_set = ("--beside", own.beside, "--set-aside", str(own.set_aside))
    return SimulatedRun(f"{job.entry} seed {seed}", job, (*alone, *of_set))


def _with_workers(own: argparse.Namespace, job: VirtualJob) -> VirtualJob:
    """The job with the workers of its cluster that take part."""
    count = len(job.cluster.workers)
    if ENTRIES[job.entry].workers is not Workers.ALL or own.fastest:
        step_times_s = [job.worker_config(row).shortest_step_s for row in range(count)]
        rows = job_options.taking_part(job.entry, step_times_s, own.fastest, job.config.settings.sync_every)
        config = job.config.but(of_workers=count)
        job = dataclasses.replace(job, entry=filed_as(job.entry, len(rows) if own.fastest else 0), config=config)
    elif job.config.algorithm.is_distributed:
        return job
    elif own.worker < count:
        rows = (own.worker,)
    else:
        raise SetupError(f"--worker {own.worker}: the cluster has rows 0 to {count - 1}")
    return dataclasses.replace(job, cluster=job.cluster.of(rows), rows=rows)


@functools.cache  # each line once
def _warn(text: str) -> None:
    logging.warning("warning: %s", text)


def _evaluated_at_moments(given: Config, words: Sequence[str]) -> Config:
    """With evaluations at `EVALUATIONS` moments of the run, unless the words say when, or a target ends it: that is
    looked at after each round."""
    asked = FlagParser(add_help=False)
    for name in ("eval_duration", "eval_seconds"):
        asked.add_argument(*names_of(name), dest=name)
    says_when = any(vars(asked.parse_known_args(words)[0]).values())
    if says_when or given.target_accuracy or given.target is not None:
        return given
    if given.max_seconds:
        return given.but(eval_seconds=given.max_seconds / EVALUATIONS)
    return given.but(eval_duration=max(1, math.ceil(given.max_rounds / EVALUATIONS)))


def _nowhere(evaluation_s: float, given: Config) -> dict[str, str]:
    if given.transport == MPI:
        return {"exchange": "how MPI sums is its own matter; choose ring, butterfly or binary-blocks"}
    if given.network != NO_NETWORK:
        return NOWHERE
    return NOWHERE | STUB_NOWHERE | ({} if evaluation_s else STUB_EVALUATES_NOT)


def train(run: SimulatedRun, is_of_set: bool) -> int:
    """Does one run in this process, of a set with others beside it; returns the exit code."""
    # One operation at a time, on one core: runs are reproducible, and several fit side by side.
    os.environ["MXNET_ENGINE_TYPE"] = "NaiveEngine"
    set_unless_given("OMP_NUM_THREADS", "1")
    from trainer.runtime.stop_signals import SignalWatch

    signals = SignalWatch(on_first="stopping at the end of this round")
    devices = {(HOST, f"cpu{rank}") for rank in range(len(run.job.cluster.workers))}
    config, mode_folder = run.job.config, Path(run.job.config.log_dir).parent
    assert run.job.earlier is not None
    lines: list[str] = []  # logged at the end: until then only one worker's lines are shown
    before = PreviousRun(mode_folder, run.job.earlier, devices, config, lines.append)
    from trainer.simulation import virtual_cluster
    from trainer.simulation.virtual_progress import ProgressLine

    def begins() -> None:
        gc.freeze()  # what the workers are made of stays until the end
        gc.set_threshold(GARBAGE)
        signals.be_patient()
        before.begins()

    progress = ProgressLine(config.max_seconds, begins, alone=not is_of_set, quiet=bool(config.quiet))
    try:
        digest = virtual_cluster.VirtualRun(run.job, lambda: signals.requested, progress).run()
    finally:
        progress.end()
        before.tell()
        for line in lines:
            logging.info("%s", line)
    logging.info("the final weights of all workers have SHA-256 %s", digest)
    return EXIT_OK


def main(arguments: Sequence[str] | None = None) -> int:
    """Parses and does the runs that are not done; every failure becomes one line and an exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    setup_logging("simulate")
    return guarded(lambda: _do(words))


def _do(words: Sequence[str]) -> int:
    own, runs = parse(words)
    to_do = [run for run in runs if own.again or not run.job.is_done()]
    for run in runs:
        if run not in to_do:
            logging.info("%s is done already: %s (--again repeats it)", run.name, run.job.config.log_dir)
    if len(runs) > 1:
        program = [sys.executable, __file__, *words]
        return run_side_by_side({run.name: [*program, *run.arguments] for run in to_do}, own.jobs)
    for run in to_do:
        setup_logging(run.name)
        return train(run, own.is_of_set)
    return EXIT_OK


if __name__ == "__main__":
    start.run(main)
