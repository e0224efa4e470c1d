"""Runs a whole job by Open MPI's mpiexec, which starts its processes here, over ssh, or on the nodes of Slurm or PBS.

    scripts/mpi.sh -m sync -n lenet workers=3 -- --max-seconds 600
    scripts/mpi.sh --hosts hosts.csv -m esync -n resnet18-v1 -- -ll 0.0005 --max-seconds 3600

Inside a job of Slurm or PBS the processes are on its nodes, with --hosts on those of the hosts file, else on this
machine. NAME=VALUE with a column of the hosts file (workers, devices, flags, step_time_s, ...) holds for each node;
other words that are no option here go to mpiexec. What follows `--` goes to every worker's main.py. Each process is an
application context of one mpiexec; beside it, on this machine, runs the state server where the job has one. All nodes
see the project, its data and the log tree; ports follow from the job's id. Ctrl-C and SIGTERM end the job with the
workers' rounds. A process that fails ends all.
Exit codes: 0 done or stopped, 2 something to put right first, 3 a process died, 4 as 0, but without all logs, 130
killed.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import dataclasses
import os
import re
import shlex
import signal
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import config
from flag_parser import FlagParser
from scripts.launch import host_network, hosts_file, job_options, node_groups, previous_run
from scripts.launch.console import console, unhurried
from scripts.launch.hosts_layout import make_layout, node_of, port_ranges
from scripts.launch.process import Kind, Process, Role
from scripts.launch.roles import HOST, ROOT, TOKEN, JobSpec, Layout, base_environment, build
from utils import EXIT_OK, EXIT_SETUP, PROCESS, SetupError, usable_cores

CONTEXT = ("DMLC_", "PORT", "OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PS_", "MXNET_")  # variables of a process
UNUSED = ("user", "port", "folder", "interface")  # columns of the hosts file
OTHERS_ROUND = re.compile(
    r"[\d :-]+ worker [1-9]\d*\b[^|]*\| round [^,]+, [^,]+, [\d.]+ s(, loss [^,]+)?(, \S+ s left)?$"
)


class Mpiexec(Process):
    """The running mpiexec. It passes SIGUSR1 on, and kills all that it has started when it gets SIGTERM."""

    def new_lines(self) -> list[str]:
        return [line for line in super().new_lines() if not OTHERS_ROUND.match(line)]

    def send(self, number: signal.Signals) -> None:
        super().send(signal.SIGUSR1 if number is signal.SIGTERM else signal.SIGTERM)


def parse(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[JobSpec, list[str]]:
    """Parses the command line; returns the job, and mpiexec with the user's options. Raises as cluster.parse."""
    parser = FlagParser("scripts/mpi.sh", description=__doc__, formatter_class=job_options.HelpFormatter)
    parser.add_argument("--hosts", type=Path, metavar="FILE", help="a hosts file, as of scripts/cluster.sh")
    own = Path(sys.executable).with_name("mpiexec")
    parser.add_argument("--mpiexec", default=str(own if own.exists() else "mpiexec"), help="the program")
    request = node_groups.parse(parser, arguments)
    given, group = request.given, request.groups[0]
    nodes = [name for names in node_groups.in_slurm(environment) for name in names]
    if "PBS_NODEFILE" in environment:
        nodes = [*dict.fromkeys(Path(environment["PBS_NODEFILE"]).read_text().split())]
    if given.hosts and group.columns:
        raise SetupError(f"--hosts has the columns: leave {next(iter(group.columns))}=... out")
    hosts = hosts_file.read(given.hosts) if given.hosts else node_groups.hosts_of([group], [nodes or [HOST]])
    for host in hosts.hosts.values():
        if column := next((name for name in UNUSED if getattr(host, name)), ""):
            raise SetupError(f"{host.where}, column {column}: mpiexec does not take it: leave it out")
    job = node_groups.job_on(given, hosts, node_groups.id_of(environment, os.getpid()), request.flags)
    return job, [given.mpiexec, "--oversubscribe", "--bind-to", "none", *group.options]


def place(job: JobSpec) -> tuple[JobSpec, Layout]:
    """Places the processes on the nodes, and the state server here. Raises SetupError where a name has no address."""
    try:
        addresses = {name: socket.gethostbyname(host.address) for name, host in job.hosts.hosts.items()}
    except OSError as error:
        raise SetupError(f"the name of a node has no address: {error}") from None
    about = (sys.executable, str(ROOT), len(usable_cores()))
    there = {name: node_of(job, name, *about, address, "") for name, address in addresses.items()}
    nodes = {name: dataclasses.replace(node, is_here=True) for name, node in there.items()}  # what is here is on all
    job, layout = make_layout(job, nodes, port_ranges(job, job.base_port, nodes))
    here, _ = host_network.find("", "", toward=layout.root.address)
    service = dataclasses.replace(layout.state_server, address=here, environment=base_environment(os.environ))
    return job, dataclasses.replace(layout, state_server=service)


def roles_of(job: JobSpec, layout: Layout, mpiexec: Sequence[str]) -> list[Role]:
    """The state server, if any, and mpiexec with all other processes."""
    services = [role for role in build(job, layout) if role.kind is Kind.SERVICE]
    others = [role for role in build(job, layout) if role.kind is not Kind.SERVICE]
    words = [*mpiexec]
    for number, role in enumerate(others):
        variables = [f"{name}={value}" for name, value in role.environment.items() if name.startswith(CONTEXT)]
        is_here = layout.nodes[role.node].address == HOST
        where = [] if is_here else ["--host", job.hosts.hosts[role.node].address]
        words += [":"] if number else []
        # The supervisor names mpiexec, which would hand its name on to all processes.
        named = ["env", "-u", PROCESS, *variables]
        words += ["-n", "1", "-x", TOKEN, *where, "--wdir", str(role.folder), *named, *role.command]
    log = job.log_folder / "mpiexec.log"
    environment = os.environ | {TOKEN: others[0].environment[TOKEN]}
    return [*services, Role("mpiexec", Kind.WORKER, words, environment, ROOT, log, show_all=True)]


def run(job: JobSpec, mpiexec: Sequence[str]) -> int:
    """Runs the job to its end; returns the exit code."""
    if job.number is not None:
        raise SetupError(
            "which workers are the fastest is not known, and a job of mpiexec has no step timed: give each a "
            "step_time_s above 0, or choose yourself, by fewer hosts"
        )
    job, layout = place(job)
    if (survives := job_options.first_config(job, layout).on_worker_death) != config.END:
        raise SetupError(f"--on-worker-death {survives}: mpiexec ends all processes when one fails: leave it out")
    roles = roles_of(job, layout, mpiexec)
    if job.is_dry_run:
        for role in roles:
            console(shlex.join(role.command))
        return EXIT_OK
    where = "requirements-mpi.txt has an mpiexec; --mpiexec names another"
    # Here alone: in a job of Slurm or PBS it would begin on all nodes.
    node_groups.printed_by([*mpiexec, "-n", "1", "echo", "ready"], where, without=node_groups.OF_JOB)
    with job_options.claimed(job.log_folder), unhurried(console) as say:
        before = previous_run.of_job(job, layout, say)
        start = lambda role: (Mpiexec if role.kind is Kind.WORKER else Process)(role)  # noqa: E731
        outcome = previous_run.supervise(job, roles, before, say, start)
        job_options.last_word(job, outcome, say)
    return outcome.exit_code


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """The command: parses, runs, returns the exit code."""
    try:
        return run(*parse(arguments, environment))
    except (SetupError, OSError) as error:
        print(f"scripts/mpi.sh: error: {error}", file=sys.stderr)
        return EXIT_SETUP


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
