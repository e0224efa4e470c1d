"""Starts a whole job on this machine, waits for it, and leaves no process behind whatever happens.

State server (where the mode has one), scheduler, parameter servers and CPU workers on 127.0.0.1; each worker pads its
steps to the time that it is given, so that one machine stands for several of different speeds. What follows `--` goes
to every worker's main.py. Logs: LOG_BASE/NETWORK/MODE/HOST/cpuN/iter-*.txt, as summary.py reads them, and one log a
process in LOG_BASE/NETWORK/MODE/. Ctrl-C ends the job with the workers' rounds, a second one at once. A process that
dies ends it too; with --ckpt-frequency N --on-worker-death restart behind `--` all go on from the newest checkpoint.
Exit codes: 0 done or stopped, 2 something to put right first, 3 a process died, 130 killed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence

import config
from algorithms import ENTRIES, OWNERS, Workers
from flag_values import several
from scripts.launch import job_options, survival
from scripts.launch.console import console
from scripts.launch.forking import FORK_SERVER_LOG, IMPORT_S, ForkServer
from scripts.launch.ports import free_ports, is_free
from scripts.launch.process import Process, Role, Running
from scripts.launch.roles import ROOT, Options, build_roles, local_layout
from scripts.launch.run_before import run_before
from scripts.launch.run_option import run_of
from scripts.launch.supervisor import Outcome, Supervisor, Waits
from scripts.launch.survival import Survival, files_in
from trainer import straggler_trace
from trainer.simulation import cluster_file
from trainer.simulation.cluster_file import SimulatedCluster, Worker
from utils import SetupError

DEFAULT_WORKERS = "0.03,0.06,0.3"
STANDALONE_WORKERS = "0.0"
MOST_WORKERS = 100  # that a number alone asks for: each is a process with MXNet


# ------------------------------------------------------------------------------------------------- the command line


def parse(arguments: Sequence[str]) -> Options:
    """Parses the command line; a bad value ends the process with exit code 2.

    Raises:
        SetupError: a port is in use, the cluster file is wrong, an option does nothing in the mode, or a flag behind
            `--` contradicts the cluster.
    """
    own, worker_arguments = job_options.split(arguments)
    parser = argparse.ArgumentParser(
        prog="scripts/local_cluster.sh",
        description=__doc__,
        formatter_class=job_options.HelpFormatter,
        allow_abbrev=False,
    )
    job_options.add_mode(parser)
    add_job(parser)
    given = parser.parse_args(own)
    job_options.check_split(given.mode, given.split_by_class)
    job_options.check_collective(given)
    options = _with_workers(given, chosen_cluster(given), worker_arguments)
    check_worker_flags(options)
    return options


def add_job(parser: argparse.ArgumentParser) -> None:
    """Adds all options of a job on this machine but its mode."""
    job_options.add_job(parser, data_dir=ROOT / "data")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--workers",
        type=_workers,
        default=argparse.SUPPRESS,
        help="shortest time of a local step in seconds, one number a worker, with commas (0: as fast as this "
        "machine); a whole number alone, such as 3: so many workers that are as fast as this machine (3.0: one of 3 s) "
        f"(default: {DEFAULT_WORKERS}; in mode local: {STANDALONE_WORKERS})",
    )
    which.add_argument(
        "--cluster",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="in place of --workers: a CSV file with one row for each worker (step_time_s, sample_time_s, "
        "straggler_trace), or the name of a ready-made one in scripts/clusters",
    )


def chosen_cluster(given: argparse.Namespace) -> SimulatedCluster:
    """The cluster that --workers or --cluster asks for, or the mode's own.

    Raises:
        SetupError: the cluster file, or a trace that it names, is missing or malformed.
    """
    if "cluster" in given:
        return cluster_file.read(cluster_file.find(given.cluster))
    one_will_do = not OWNERS[given.mode].is_distributed and ENTRIES[given.mode].workers is Workers.ALL
    default = step_times_or_count(STANDALONE_WORKERS if one_will_do else DEFAULT_WORKERS)
    asked = getattr(given, "workers", default)
    return SimulatedCluster(tuple(map(Worker, (0.0,) * asked if isinstance(asked, int) else asked)))


def counted(given: argparse.Namespace) -> str:
    """What --workers was taken for, where it is a number of workers; else empty."""
    if not isinstance(count := getattr(given, "workers", ()), int):
        return ""
    return f"--workers {count}: {count} worker(s), each as fast as this machine ({one_of(count)})"


def to_options(given: argparse.Namespace, chosen: SimulatedCluster, worker_arguments: tuple[str, ...]) -> Options:
    """The job that was asked for, with ports that are free now.

    Raises:
        SetupError: a port that was asked for is in use.
    """
    root_port, state_server_port, *worker_ports = _ports(given.root_port, given.state_server_port, len(chosen.workers))
    return Options(
        mode=given.mode,
        network=given.network,
        num_servers=given.servers,
        step_times_s=tuple(worker.step_time_s for worker in chosen.workers),
        sample_times_s=tuple(worker.sample_time_s for worker in chosen.workers),
        straggler_traces=tuple(worker.straggler_trace for worker in chosen.workers),
        log_base=job_options.log_base(given).resolve(),
        data_dir=given.data_dir.resolve(),
        split_by_class=given.split_by_class,
        root_port=root_port,
        state_server_port=state_server_port,
        run=run_of(given),
        worker_ports=tuple(worker_ports),
        worker_arguments=worker_arguments,
        grace_s=given.grace,
        left_out=cluster_file.left_out(chosen),
        collective=given.collective,
        restarts=given.restarts,
        has_free_root_port=not given.root_port,
        counted=counted(given),
    )


def _with_workers(given: argparse.Namespace, cluster: SimulatedCluster, worker_arguments: tuple[str, ...]) -> Options:
    """The job of those workers of the cluster that take part in the mode."""
    options = to_options(given, cluster, worker_arguments)
    if ENTRIES[given.mode].workers is Workers.ALL:
        return options
    step_times_s = [told.shortest_step_s for told, _ in worker_configs(options)]
    rows = job_options.taking_part(given.mode, step_times_s)
    names = [f"row {row} ({step_times_s[row]:g} s a step)" for row in rows]
    options = to_options(given, cluster.of(rows), worker_arguments)
    return dataclasses.replace(options, chosen=job_options.chosen(given.mode, names))


def check_worker_flags(
    options: Options, ours: tuple[str, ...] = (), fixed: Sequence[str] = (), whose: str = "the cluster"
) -> None:
    """Makes sure that every worker will start, and as what it is logged as; job_options.check_flags has the arguments.

    Raises:
        SetupError: a flag behind `--` contradicts the cluster. Wrong flags end the process, as in main.py.
    """
    for parsed in job_options.check_flags(options, local_layout(options, {}), ours, fixed, whose):
        if parsed.straggler_trace:
            straggler_trace.read(ROOT / parsed.straggler_trace)


def worker_configs(options: Options, ours: tuple[str, ...] = ()) -> Iterator[tuple[config.Config, config.Config]]:
    """What each worker's flags say, and what they would say without the user's behind `--`, with only `ours` there."""
    return job_options.worker_configs(options, local_layout(options, {}), ours)


def _ports(root_port: int, state_server_port: int, num_workers: int) -> list[int]:
    for flag, port in (("--root-port", root_port), ("--state-server-port", state_server_port)):
        if port and not is_free(port):
            raise SetupError(f"{flag} {port} is in use: choose another, or leave the flag out for a free one")
    job_options.check_ports(root_port, state_server_port)
    free_root_port, free_state_server_port, *worker_ports = free_ports(num_workers + 2)
    return [root_port or free_root_port, state_server_port or free_state_server_port, *worker_ports]


_step_times = several(
    job_options.seconds,
    "step times; give seconds with commas, such as 0.02,0.04,0.2, or a number of workers, such as 3 (3.0: one of 3 s)",
)


def step_times_or_count(text: str) -> tuple[float, ...] | int:
    """Parses what --workers holds: step times, or, where it is a whole number alone, how many workers there are."""
    try:
        return int(text)
    except ValueError:
        times: tuple[float, ...] = _step_times(text)
        return times


def one_of(seconds: int) -> str:
    """How to ask for a single worker."""
    return f"{seconds}.0 is one worker {f'of {seconds} s a step' if seconds else 'as fast as this machine'}"


def _workers(text: str) -> tuple[float, ...] | int:
    asked = step_times_or_count(text)
    if isinstance(asked, int) and not 1 <= asked <= MOST_WORKERS:
        instead = f" ({one_of(asked)})" if asked >= 0 else ""
        raise argparse.ArgumentTypeError(f"{text} is no number of workers from 1 to {MOST_WORKERS}{instead}")
    return asked


# -------------------------------------------------------------------------------------------------------- the job


def warnings(options: Options) -> list[str]:
    """What the user should know before the job begins."""
    left_out = f"warning: {options.left_out}" if options.left_out else ""
    return [*filter(None, [options.counted, left_out]), *job_options.warnings(options, local_layout(options, {}))]


def run(
    options: Options,
    build: Callable[[Options], list[Role]] = build_roles,
    say: Callable[[str], None] = console,
) -> Outcome:
    """Runs one job to its end.

    Args:
        options: what to run.
        build: makes the processes; the tests give stand-ins.
        say: prints a line for the user.
    """
    with job_options.claimed(options.log_folder):
        for line in warnings(options):
            say(line)
        before = run_before(options, local_layout(options, {}), say)
        waits, together = Waits(grace_s=options.grace_s), options.algorithm.is_distributed
        told = next(worker_configs(options))[0]
        kept = survival_of(options, told, build)
        roles = [dataclasses.replace(role, appends=before.goes_on) for role in build(options)]
        with contextlib.ExitStack() as stack:
            start: Callable[[Role], Running] = Process
            if len(options.devices) > 1 or (kept and not told.leaves_out):
                log = options.log_folder / FORK_SERVER_LOG
                forks = ForkServer(told.dataset, told.data_dir, log, IMPORT_S)
                stack.callback(forks.close)
                start = forks.start
            outcome = Supervisor(
                roles, say, waits, start, leave_together=together, survival=kept, begins=before.begins
            ).run()
        for line in job_options.last_word(options, outcome):
            say(line)
        return outcome


def survival_of(options: Options, told: config.Config, build: Callable[[Options], list[Role]]) -> Survival | None:
    """What is done when a process dies: None where the job ends.

    Args:
        told: a worker's flags.
        build: makes the processes.
    """

    def build_again(resumes: bool, start: int) -> list[Role]:
        free_root_port, *worker_ports = free_ports(len(options.worker_ports) + 1)
        root_port = free_root_port if options.has_free_root_port else options.root_port
        fresh = dataclasses.replace(options, root_port=root_port, worker_ports=tuple(worker_ports))
        return build(survival.again(fresh, told, resumes, start))

    folder = ROOT / told.checkpoint_folder
    return survival.of_job(options, told, lambda: files_in(folder), lambda: len(options.devices), build_again)


def main(arguments: Sequence[str], build: Callable[[Options], list[Role]] = build_roles) -> int:
    """The command: parses, runs, returns the exit code."""
    try:
        return run(parse(arguments), build).exit_code
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
