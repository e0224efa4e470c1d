"""Where the processes of a job on several hosts are: by the command line, the hosts file and what the hosts say."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.launch import hosts_file
from scripts.launch.hosts_file import Hosts
from scripts.launch.roles import ROOT, Job, Layout, Seat, Site, base_environment, worker_flags
from utils import SetupError

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
    sites = {name: _site(job, name, facts[name], processes[name]) for name in plan.hosts.hosts}
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
        log_folder=root / job.folder_there,
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
