"""Runs a whole job on this machine, and leaves no process behind whatever happens.

The state server (if the mode has one), scheduler, servers and CPU workers run on 127.0.0.1. Each worker pads
its steps to a given time, so one machine emulates several of different speeds. What follows `--` goes to every worker's
main.py. Logs: LOG_BASE/NETWORK/MODE/HOST/cpuN/iter-*.txt, as summary.py reads them, and one log a process in
LOG_BASE/NETWORK/MODE/. Ctrl-C ends the job with the workers' rounds, a second one at once. A process that dies ends it
too; with --ckpt-frequency N --on-worker-death restart behind `--` all go on from the newest checkpoint.
Exit codes: 0 done or stopped, 2 something to put right first, 3 a process died, 4 as 0, but without all logs, 130
killed.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import dataclasses
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence

from algorithms import ENTRIES, OWNERS, Workers
from flag_parser import FlagParser
from flag_values import several
from scripts.launch import job_options, previous_run, restart_policy, roles
from scripts.launch.console import console, unhurried
from scripts.launch.forking import FORK_SERVER_LOG, IMPORT_S, ForkServer
from scripts.launch.hosts_file import ROLES, Host, Hosts, HostWorker
from scripts.launch.hosts_layout import free_ports, make_layout, num_ports
from scripts.launch.process import Process
from scripts.launch.restarts import Survival
from scripts.launch.roles import HOST, ROOT, Build, JobSpec, Layout, Node, base_environment
from scripts.launch.supervisor import JobOutcome
from trainer.rendezvous.cluster import allow_files
from trainer.simulation import cluster_file
from trainer.simulation.cluster_file import ClusterProfile, Worker
from trainer.survival.checkpoint_rounds import written_in
from utils import SetupError

DEFAULT_WORKERS = "0.03,0.06,0.3"
STANDALONE_WORKERS = "0.0"
MOST_WORKERS = 100  # that a number alone asks for: each is a process with MXNet


# ------------------------------------------------------------------------------------------------- the command line


def parse(arguments: Sequence[str]) -> JobSpec:
    """Parses the command line; a bad value ends the process with exit code 2. Raises SetupError if a port is in use,
    the cluster file is wrong, an option does nothing in the mode, or a flag behind `--` contradicts the cluster."""
    parser = FlagParser(prog="scripts/local_cluster.sh", description=__doc__, formatter_class=job_options.HelpFormatter)
    job_options.add_mode(parser)
    add_job(parser)
    given, worker_arguments = job_options.parse(parser, arguments)
    job_options.check_options(given)
    job = _with_workers(given, chosen_cluster(given), worker_arguments)
    job_options.check_flags(*place(job))
    return job


def add_job(parser: argparse.ArgumentParser) -> None:
    """Adds all options of a job on this machine but its mode."""
    job_options.add_job(parser, data_dir=ROOT / "data")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--workers",
        type=_workers,
        default=argparse.SUPPRESS,
        help="shortest time of a local step in seconds, one number a worker, with commas (0: as fast as this "
        "machine); a whole number alone, such as 3: that many workers, as fast as this machine (3.0: one of 3 s) "
        f"(default: {DEFAULT_WORKERS}; in mode local: {STANDALONE_WORKERS})",
    )
    which.add_argument(
        "--cluster",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="in place of --workers: a CSV file with one row for each worker (step_time_s, sample_time_s, "
        "straggler_trace), or the name of a ready-made one in scripts/clusters",
    )


def chosen_cluster(given: argparse.Namespace) -> ClusterProfile:
    """The cluster that --workers or --cluster asks for, or the mode's default. Raises SetupError if the cluster file,
    or a trace that it names, is missing or malformed."""
    if "cluster" in given:
        return cluster_file.read(cluster_file.find(given.cluster))
    one_will_do = not OWNERS[given.mode].is_distributed and ENTRIES[given.mode].workers is Workers.ALL
    default = step_times_or_count(STANDALONE_WORKERS if one_will_do else DEFAULT_WORKERS)
    asked = getattr(given, "workers", default)
    return ClusterProfile(tuple(map(Worker, (0.0,) * asked if isinstance(asked, int) else asked)))


def to_job_spec(given: argparse.Namespace, cluster: ClusterProfile, worker_arguments: tuple[str, ...]) -> JobSpec:
    """The job that was asked for. Raises SetupError if a port that was asked for is in use."""
    for flag, port in (("--root-port", given.root_port), ("--state-server-port", given.state_server_port)):
        try:
            socket.create_server(("", port)).close()  # 0: any
        except OSError:
            raise SetupError(f"{flag} {port} is in use: choose another, or leave the flag out for a free one") from None
    name = socket.gethostname()
    workers = tuple(
        HostWorker(f"worker {n}", name, "cpu", f"cpu{n}", (), its.step_time_s, its.sample_time_s, its.straggler_trace)
        for n, its in enumerate(cluster.workers)
    )
    hosts = Hosts({name: Host(name, HOST)}, workers, dict.fromkeys(ROLES, (name,)))
    job = job_options.spec_of(given, worker_arguments, hosts)
    count, notes = getattr(given, "workers", ()), []  # or step times
    if isinstance(count, int):
        notes = [f"--workers {count}: {count} worker(s), each as fast as this machine ({one_of(count)})"]
    if ignored := cluster_file.left_out(cluster):
        notes.append(f"warning: {ignored}")
    return dataclasses.replace(job, data_dir=job.data_dir.resolve(), notes=(*notes, *job.notes))


def _with_workers(given: argparse.Namespace, cluster: ClusterProfile, worker_arguments: tuple[str, ...]) -> JobSpec:
    """The job with those workers of the cluster that take part in the mode."""
    job = to_job_spec(given, cluster, worker_arguments)
    if ENTRIES[given.mode].workers is Workers.ALL and not given.fastest:
        return job
    configs = [*job_options.worker_configs(*place(job))]
    step_times_s = [parsed.shortest_step_s for parsed in configs]
    rows = job_options.taking_part(given.mode, step_times_s, given.fastest, configs[0].settings.sync_every)
    names = [f"row {row} ({seconds:g} s a step)" for row, seconds in enumerate(step_times_s)]
    return job_options.of_fastest(to_job_spec(given, cluster.of(rows), worker_arguments), given.fastest, names, rows)


_step_times = several(
    job_options.seconds,
    "step times; give seconds with commas, such as 0.02,0.04,0.2, or a number of workers, such as 3 (3.0: one of 3 s)",
)


def step_times_or_count(text: str) -> tuple[float, ...] | int:
    """Parses --workers: step times, or a number of workers."""
    try:
        return int(text)
    except ValueError:
        times: tuple[float, ...] = _step_times(text)
        return times


def one_of(seconds: int) -> str:
    """Tells how to ask for a single worker."""
    return f"{seconds}.0 is one worker {f'of {seconds} s a step' if seconds else 'as fast as this machine'}"


def _workers(text: str) -> tuple[float, ...] | int:
    asked = step_times_or_count(text)
    if isinstance(asked, int) and not 1 <= asked <= MOST_WORKERS:
        instead = f" ({one_of(asked)})" if asked >= 0 else ""
        raise argparse.ArgumentTypeError(f"{text} is no number of workers from 1 to {MOST_WORKERS}{instead}")
    return asked


# -------------------------------------------------------------------------------------------------------- the job


def place(job: JobSpec, environment: Mapping[str, str] = os.environ) -> tuple[JobSpec, Layout]:
    """Places all processes on this machine, at ports that are free now."""
    ((name, count),) = num_ports(job).items()
    variables = base_environment(environment)
    here = Node(name, HOST, "lo", sys.executable, ROOT, job.log_folder, variables, is_here=True)
    return make_layout(job, {name: here}, {name: free_ports(count)})


def run(asked: JobSpec, build: Build = roles.build, say: Callable[[str], None] = console) -> JobOutcome:
    """Runs one job to its end. `build` makes the processes; tests give stand-ins."""
    job, layout = place(asked)
    allow_files(len(roles.build(job, layout)))
    worker_config = job_options.first_config(job, layout)
    dataset, data_dir, modules = job_options.forked(job, worker_config)
    if dataset and not (ROOT / data_dir / dataset).is_dir():
        from trainer.datasets import loading  # numpy, whose threads would hear the signals of programs that import this

        loading.load(dataset, str(ROOT / data_dir))  # as the workers will: where it is missing this tells it now
    with job_options.claimed(job.log_folder), unhurried(say) as say:
        for line in job_options.warnings(job, layout):
            say(line)
        before = previous_run.of_job(job, layout, say)
        files = lambda host="": written_in(ROOT / worker_config.checkpoint_folder)  # noqa: E731
        policy = restart_policy.of_job(asked, job, layout, worker_config, files, lambda: job.hosts.hosts, place, build)
        forks = ForkServer((dataset, data_dir, modules), job.log_folder / FORK_SERVER_LOG, IMPORT_S)
        with contextlib.closing(forks):
            start = forks.start if len(layout.workers) > 1 or policy.survival is not Survival.NONE else Process
            outcome = previous_run.supervise(job, build(job, layout), before, say, start, policy=policy)
        job_options.last_word(job, outcome, say)
        return outcome


def main(arguments: Sequence[str], build: Build = roles.build) -> int:
    """The command: parses, runs, returns the exit code. Raises SetupError as `parse`, or if the job cannot begin."""
    return run(parse(arguments), build).exit_code


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
