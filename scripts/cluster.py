"""Starts a whole job on several hosts over ssh, waits for it, brings the logs home, and leaves no process behind.

    scripts/cluster.sh --hosts hosts.csv -m esync -n resnet18-v1 -- -ll 0.0005 --max-seconds 600

The hosts file has one line a host below a header with the columns, of which only address is needed. On the first host
the scheduler, the parameter servers and the state server run too, unless the column roles says otherwise. What follows
`--` goes to every worker's main.py. Each host has the project with its .venv, and the workers' hosts the data
(scripts/setup.sh, scripts/get_data.sh); ssh logs in without a question. Ctrl-C ends the job with the workers' rounds, a
second one at once; a process that dies ends it, and so does the end of this program or of a connection. Logs:
LOG_BASE/NETWORK/MODE/HOST/DEVICE/iter-*.txt, as summary.py reads them, and one log a process in LOG_BASE/NETWORK/MODE/.
Exit codes: 0 done or stopped, 2 something to put right first, 3 a process or a host was lost, 130 killed.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from algorithms import ENTRIES, Workers
from scripts import hosts_file, launch
from scripts.hosts_file import Hosts
from scripts.link import Link, ssh_command
from scripts.process import Kind, Role, Running
from scripts.roles import ROOT, Job, Layout, Seat, Site, base_environment, build, worker_flags
from scripts.supervisor import Outcome, Supervisor, Waits, console
from trainer.flag_values import port
from utils import EXIT_FORCED, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError

SECRET = ("ESYNC_TOKEN",)  # variables whose values are not shown
# Variables of this shell that the processes on all hosts get.
PASSED_ON = ("OMP_NUM_THREADS", *SECRET, "PS_", "MXNET_")
# Stand for what the hosts would say.
EXAMPLE_PORT = 9091
EXAMPLE_CARD = "CARD"
LAST_PORT = 65535


@dataclass(frozen=True)
class Plan:
    """What the command line and the hosts file ask for."""

    job: Job  # ports are 0 where any free one will do
    hosts: Hosts
    ssh: tuple[str, ...]
    base_port: int
    is_dry_run: bool


@dataclass(frozen=True)
class Facts:
    """What a host says of itself."""

    python: str
    root: str
    cores: int
    address: str
    interface: str


# ------------------------------------------------------------------------------------------------- the command line


def parse(arguments: Sequence[str]) -> Plan:
    """Parses the command line; a bad value ends the process with exit code 2.

    Raises:
        SetupError: the hosts file is wrong, or a flag for the workers contradicts the job.
    """
    own, worker_arguments = launch.split(arguments)
    columns = "\n".join(f"  {name:<16} {text}" for name, text in hosts_file.COLUMNS.items())
    parser = argparse.ArgumentParser(
        prog="scripts/cluster.sh",
        description=__doc__,
        epilog=f"columns of the hosts file, in any order:\n{columns}",
        formatter_class=launch.HelpFormatter,
        allow_abbrev=False,
    )
    launch.add_mode(parser)
    parser.add_argument("--hosts", type=Path, required=True, default=argparse.SUPPRESS, metavar="FILE", help="a CSV")
    launch.add_job(parser, data_dir=Path("data"))
    parser.add_argument(
        "--base-port",
        type=lambda text: int(port(text)),
        default=0,
        help="MXNet listens on this port of a host and those above it, one a process, but for those "
        "that have a flag; 0: on free ones",
    )
    parser.add_argument("--ssh", default="ssh", help="the ssh command and its options, such as 'ssh -F FILE'")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be started")
    given = parser.parse_args(own)
    launch.check_split(given.mode, given.split_by_class)
    launch.check_collective(given)
    launch.check_ports(given.root_port, given.state_server_port)
    job = Job(
        mode=given.mode,
        network=given.network,
        num_servers=given.servers,
        log_base=given.log_base.resolve(),
        data_dir=given.data_dir,
        split_by_class=given.split_by_class,
        root_port=given.root_port,
        state_server_port=given.state_server_port,
        worker_arguments=worker_arguments,
        grace_s=given.grace,
        collective=given.collective,
    )
    hosts = hosts_file.read(given.hosts)
    plan = _with_workers(Plan(job, hosts, tuple(shlex.split(given.ssh)), given.base_port, given.dry_run))
    launch.check_flags(*example(plan), where="behind `--` or in the hosts file")
    return plan


def _with_workers(plan: Plan) -> Plan:
    """The job of those workers of the hosts that take part in the mode.

    Raises:
        SetupError: the mode chooses them, and nothing says how fast they are.
    """
    mode, workers = plan.job.mode, plan.hosts.workers
    if ENTRIES[mode].workers is Workers.ALL:
        return plan
    names = [f"{worker.host} {worker.folder}" for worker in workers]
    step_times_s = [told.shortest_step_s for told, _ in launch.worker_configs(*example(plan))]
    launch.check_known(mode, dict(zip(names, step_times_s, strict=True)))
    places = launch.taking_part(mode, step_times_s)
    hosts = dataclasses.replace(plan.hosts, workers=tuple(workers[place] for place in places))
    job = dataclasses.replace(plan.job, chosen=launch.chosen(mode, [names[place] for place in places]))
    return dataclasses.replace(plan, job=job, hosts=hosts)


# -------------------------------------------------------------------------------------------------------- the layout


def make_layout(plan: Plan, facts: Mapping[str, Facts], ports: Mapping[str, Sequence[int]]) -> tuple[Job, Layout]:
    """Where the job's processes are.

    Args:
        plan: what was asked for.
        facts: by host.
        ports: free ones of each host, ascending; as many as `num_ports` says.
    """
    left = {name: iter(numbers) for name, numbers in ports.items()}
    scheduler, state_server, servers = _places(plan)
    has_scheduler = plan.job.has_parameter_server
    job = dataclasses.replace(
        plan.job,
        root_port=plan.job.root_port or (next(left[scheduler]) if has_scheduler else 0),
        state_server_port=plan.job.state_server_port or next(left[state_server]),
    )
    processes = Counter([*servers, *(worker.host for worker in plan.hosts.workers)])
    sites = {name: _site(job, name, fact, processes[name]) for name, fact in facts.items()}
    scheduler_port = next(left[scheduler]) if has_scheduler else 0
    server_ports = tuple(next(left[name]) for name in servers)
    seats = []
    for worker in plan.hosts.workers:
        site = sites[worker.host]
        trace = str(site.folder / trace_file(worker)) if worker.straggler_trace else ""
        seats.append(
            Seat(
                site=site,
                device=worker.folder,
                flags=worker_flags(worker.device, worker.step_time_s, worker.sample_time_s, trace),
                port=next(left[worker.host]),
                name=f"{worker.host} {worker.folder}",
                log=f"{worker.host}-{worker.folder}.log",
                more_flags=worker.flags,
            )
        )
    where = tuple(sites[name] for name in servers)
    return job, Layout(sites[scheduler], sites[state_server], where, tuple(seats), scheduler_port, server_ports)


def _places(plan: Plan) -> tuple[str, str, list[str]]:
    """Hosts of the scheduler, where there is one, and the state server, and of each parameter server."""
    places = plan.hosts.places
    among = places["server"]
    count = plan.job.num_servers if plan.job.has_parameter_server else 0
    servers = [among[number % len(among)] for number in range(count)]
    return places["scheduler"][0], places["state-server"][0], servers


def num_ports(plan: Plan) -> Counter[str]:
    """How many ports each host must find, beside those that have a flag.

    The scheduler has two: where all meet, and where its MXNet listens.
    """
    scheduler, state_server, servers = _places(plan)
    found = [] if plan.job.state_server_port else [state_server]
    if plan.job.has_parameter_server:
        found += [scheduler] if plan.job.root_port else [scheduler, scheduler]
    return Counter([*found, *servers, *(worker.host for worker in plan.hosts.workers)])


def port_ranges(plan: Plan, base: int, addresses: Mapping[str, str]) -> dict[str, Sequence[int]]:
    """The ports of each host from a base port on, without those that have a flag of their own.

    Args:
        addresses: by host; two names may be one machine.

    Raises:
        SetupError: there are not so many.
    """
    given = (plan.job.root_port, plan.job.state_server_port)
    left: dict[str, Iterator[int]] = {}
    ports: dict[str, Sequence[int]] = {}
    for name, count in num_ports(plan).items():
        numbers = left.setdefault(addresses[name], (port for port in itertools.count(base) if port not in given))
        ports[name] = list(itertools.islice(numbers, count))
        if ports[name][-1] > LAST_PORT:
            raise SetupError(
                f"--base-port {base}: {name} needs ports up to {ports[name][-1]}, and the last is {LAST_PORT}: "
                "choose a lower one"
            )
    return ports


def _site(job: Job, name: str, facts: Facts, num_processes: int) -> Site:
    root = Path(facts.root)
    # Where several processes share the cores, more threads than cores cost far more than they bring.
    threads = max(1, facts.cores // num_processes) if num_processes > 1 else None
    given = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    return Site(
        name=name,
        address=facts.address,
        interface=facts.interface,
        python=facts.python,
        root=root,
        log_folder=root / "logs" / job.mode_folder,
        environment=base_environment(given, threads),
    )


def trace_file(worker: hosts_file.Worker) -> str:
    """Name of a worker's straggler trace in the host's log folder."""
    return f".straggler-trace-{worker.folder}.csv"


def example(plan: Plan) -> tuple[Job, Layout]:
    """The job without a word from the hosts."""
    facts = {
        name: Facts(".venv/bin/python", host.folder or str(ROOT), 1, host.address, host.interface or EXAMPLE_CARD)
        for name, host in plan.hosts.hosts.items()
    }
    addresses = {name: fact.address for name, fact in facts.items()}
    return make_layout(plan, facts, port_ranges(plan, plan.base_port or EXAMPLE_PORT, addresses))


def show(plan: Plan, say: Callable[[str], None]) -> None:
    """Says what would be started."""
    job, layout = example(plan)
    say(f"# {EXAMPLE_CARD}, ports and numbers of threads that nobody gave are examples: the hosts find them\n")
    for name, host in plan.hosts.hosts.items():
        say(f"{name}: {shlex.join(ssh_command(plan.ssh, host, host.folder or str(ROOT)))}")
    for role in build(job, layout):
        variables = {key: value for key, value in role.environment.items() if key != "PYTHONUNBUFFERED"}
        variables |= {key: "..." for key in SECRET if key in variables}
        words = [*(f"{key}={value}" for key, value in variables.items()), *role.command]
        say(f"{role.host}: cd {shlex.quote(str(role.folder))} && {shlex.join(words)}")


# -------------------------------------------------------------------------------------------------------- the job


@contextlib.contextmanager
def connected(plan: Plan) -> Iterator[dict[str, Link]]:
    """Connections to all hosts. What still runs there when the block is left ends with them."""
    links: dict[str, Link] = {}

    def pump_all() -> None:
        for link in links.values():
            link.pump()

    try:
        for name, host in plan.hosts.hosts.items():
            command = ssh_command(plan.ssh, host, host.folder or str(ROOT))
            links[name] = Link(host, command, plan.job.log_folder / f"{name}-ssh.log", pump_all)
        yield links
    except FileNotFoundError as error:
        raise SetupError(f"{plan.ssh[0]} cannot be started: {error.strerror}; choose another with --ssh") from None
    finally:
        for link in links.values():
            link.hang_up()
        for link in links.values():
            link.reap()
            if not link.role.log.read_bytes():
                link.role.log.unlink()


def meet(plan: Plan, links: Mapping[str, Link]) -> tuple[Job, Layout]:
    """Asks the hosts what only they know.

    Raises:
        SetupError: a host cannot be reached, or cannot take part. The message names the host.
    """
    hellos = {name: next(link.answers()) for name, link in links.items()}
    first = plan.hosts.places["scheduler"][0]
    toward = ""
    facts = {}
    for name in sorted(links, key=lambda name: name != first):
        host, hello = plan.hosts.hosts[name], hellos[name]
        found = links[name].ask(do="network", address=host.address, interface=host.interface, toward=toward)
        toward = toward or found["address"]
        facts[name] = Facts(hello["python"], hello["root"], hello["cores"], found["address"], found["interface"])
    if toward.startswith("127.") and len({fact.address for fact in facts.values()}) > 1:
        raise SetupError(
            f"the first host is at {toward}, which the others cannot reach: give the address that they know"
        )
    if plan.base_port:
        ports = port_ranges(plan, plan.base_port, {name: fact.address for name, fact in facts.items()})
    else:
        ports = {name: links[name].ask(do="ports", count=count)["ports"] for name, count in num_ports(plan).items()}
    return make_layout(plan, facts, ports)


def begin(plan: Plan, links: Mapping[str, Link], layout: Layout) -> None:
    """Lets every host take note of the logs that are there before the job, and gives it the workers' traces.

    Raises:
        SetupError: the log folder of a host cannot be written to.
    """
    for name, site in layout.sites.items():
        workers = [worker for worker in plan.hosts.workers if worker.host == name]
        traces = {trace_file(worker): worker.straggler_trace for worker in workers}
        links[name].ask(
            do="begin",
            folder=str(site.folder),
            devices=[worker.folder for worker in workers],
            files={name: path.read_text() for name, path in traces.items() if path},
        )


def run(plan: Plan, say: Callable[[str], None] = console) -> int:
    """Runs the job to its end and brings its logs home; returns the exit code."""
    with launch.claimed(plan.job.log_folder), connected(plan) as links:
        job, layout = meet(plan, links)
        begin(plan, links, layout)
        for line in launch.warnings(job, layout):
            say(line)
        address = f"{layout.scheduler.address}:{job.root_port}"
        meeting = f"; the scheduler is at {address}" if job.has_parameter_server else ""
        say(f"connected to {', '.join(links)}{meeting}")
        outcome = supervise(job, layout, links, say)
        for link in links.values():
            if lost := link.unconfirmed():
                say(
                    f"warning: nobody saw the end of {', '.join(lost)}: the connection is gone, and without it they "
                    "are killed within a minute"
                )
        are_home = [bring_home(job, layout, link, say) for name, link in links.items() if name in layout.sites]
        for line in launch.last_word(job, outcome):
            say(line)
        return outcome.exit_code or (EXIT_OK if all(are_home) else EXIT_PEER_LOST)


def supervise(job: Job, layout: Layout, links: Mapping[str, Link], say: Callable[[str], None]) -> Outcome:
    """Runs the processes on their hosts until all have ended."""
    service = (layout.state_server.address, job.state_server_port)

    def start(role: Role) -> Running:
        is_service = role.kind is Kind.SERVICE
        return links[role.host].start(role, layout.sites[role.host].folder, service if is_service else None)

    roles = [
        dataclasses.replace(role, is_ready=partial(links[role.host].is_ready, role.name))
        if role.kind is Kind.SERVICE
        else role
        for role in build(job, layout)
    ]
    waits, together = Waits(grace_s=job.grace_s), job.algorithm.is_distributed
    return Supervisor(roles, say, waits, start, list(links.values()), together).run()


def bring_home(job: Job, layout: Layout, link: Link, say: Callable[[str], None]) -> bool:
    """Fetches one host's logs; says where they are if that does not work, and returns whether it did."""
    name = link.host.name
    try:
        link.fetch_logs(job.log_folder / name)
    except (SetupError, OSError) as error:
        say(f"error: the logs of {name} stay there, in {layout.sites[name].folder}: {error}")
        return False
    return True


def main(arguments: Sequence[str]) -> int:
    """The command: parses, runs, returns the exit code."""
    try:
        plan = parse(arguments)
        if plan.is_dry_run:
            show(plan, console)
            return EXIT_OK
        return run(plan)
    except (SetupError, OSError) as error:  # the disk here is full, say
        print(f"error: {error}", file=sys.stderr)
        return EXIT_SETUP
    except KeyboardInterrupt:  # before the job or after it; while it runs the supervisor obeys
        print("stopped; logs that are not here stay on their hosts", file=sys.stderr)
        return EXIT_FORCED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
