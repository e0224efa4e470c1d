"""The layout of a job on several hosts, from the command line, the hosts file and the hosts' answers."""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.launch.host_connection import ssh_command
from scripts.launch.hosts_file import Host, Hosts, HostWorker
from scripts.launch.roles import ROOT, TOKEN, JobSpec, Layout, Node, Placement, base_environment, worker_flags
from utils import SetupError

# Prefixes of this shell's variables that all hosts get
PASSED_ON = ("OMP_NUM_THREADS", TOKEN, "ESYNC_RECORD", "PS_", "MXNET_")
# Stand for the hosts' answers.
EXAMPLE_PORT = 9091
EXAMPLE_INTERFACE = "INTERFACE"
LAST_PORT = 65535


@dataclass(frozen=True)
class LaunchPlan:
    """What the command line and the hosts file ask for."""

    job: JobSpec  # port 0: any free one
    hosts: Hosts
    ssh: tuple[str, ...]
    base_port: int
    is_dry_run: bool
    sources: Mapping[str, bytes] = field(default_factory=dict)  # of the job file
    connect: Callable[[Host], list[str]] | None = None  # in place of ssh
    number: int | str | None = None  # --fastest, while the step times have to be measured; None: all workers take part

    def command(self, host: Host) -> list[str]:
        """The command that starts the agent on a host."""
        return self.connect(host) if self.connect else ssh_command(self.ssh, host, host.folder or str(ROOT))


@dataclass(frozen=True)
class HostInfo:
    """What only the host itself knows."""

    python: str
    root: str
    cores: int
    address: str
    interface: str


def make_layout(
    plan: LaunchPlan, infos: Mapping[str, HostInfo], ports: Mapping[str, Sequence[int]]
) -> tuple[JobSpec, Layout]:
    """Places the job's processes. `infos` are by host, and so are `ports`: free ones, ascending, `num_ports` of
    them."""
    left = {name: iter(numbers) for name, numbers in ports.items()}
    root, state_server, servers = _places(plan)
    job = dataclasses.replace(
        plan.job,
        root_port=plan.job.root_port or (next(left[root]) if plan.job.has_server else 0),
        state_server_port=plan.job.state_server_port or next(left[state_server]),
    )
    processes = Counter([*servers, *(worker.host for worker in plan.hosts.workers)])
    nodes = {name: _node(job, name, infos[name], processes[name]) for name in plan.hosts.hosts}
    scheduler_port = next(left[root]) if job.has_scheduler else 0
    server_ports = () if job.has_hub else tuple(next(left[name]) for name in servers)
    workers = []
    for worker in plan.hosts.workers:
        node = nodes[worker.host]
        trace = str(node.folder / trace_file(worker)) if worker.straggler_trace else ""
        workers.append(
            Placement(
                node=node,
                device=worker.folder,
                flags=worker_flags(worker.device, worker.step_time_s, worker.sample_time_s, trace),
                port=next(left[worker.host]),
                name=f"{worker.host} {worker.folder}",
                log=f"{worker.host}-{worker.folder}.log",
                more_flags=worker.flags,
            )
        )
    where = tuple(nodes[name] for name in servers)
    return job, Layout(nodes[root], nodes[state_server], where, tuple(workers), scheduler_port, server_ports)


def root_of(plan: LaunchPlan) -> str:
    """The host at which the processes meet: that of the hub, or of the scheduler."""
    return plan.hosts.places["server" if plan.job.has_hub else "scheduler"][0]


def _places(plan: LaunchPlan) -> tuple[str, str, list[str]]:
    """The hosts at which the processes meet, of the state server, and of each server."""
    among = plan.hosts.places["server"]
    count = plan.job.num_servers if plan.job.has_server else 0
    servers = [among[number % len(among)] for number in range(count)]
    return root_of(plan), plan.hosts.places["state-server"][0], servers


def num_ports(plan: LaunchPlan) -> Counter[str]:
    """The number of ports that each host must find, beside those that have a flag. The scheduler has two: the
    rendezvous, and its MXNet's. The hub has one, as the rendezvous."""
    root, state_server, servers = _places(plan)
    found = [] if plan.job.state_server_port else [state_server]
    found += [root] if plan.job.has_server and not plan.job.root_port else []
    found += [root, *servers] if plan.job.has_scheduler else []
    return Counter([*found, *(worker.host for worker in plan.hosts.workers)])


def port_ranges(plan: LaunchPlan, base: int, addresses: Mapping[str, str]) -> dict[str, Sequence[int]]:
    """The ports of each host from a base port on, without those that have a flag. `addresses` are by host; two names
    may be one machine. Raises SetupError if there are too few."""
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


def _node(job: JobSpec, name: str, infos: HostInfo, num_processes: int) -> Node:
    root = Path(infos.root)
    # More threads than cores slow all processes of the host down.
    threads = max(1, infos.cores // num_processes) if num_processes > 1 else None
    given = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    return Node(
        name=name,
        address=infos.address,
        interface=infos.interface,
        python=infos.python,
        root=root,
        log_folder=root / job.remote_folder,
        environment=base_environment(given, threads),
    )


def trace_file(worker: HostWorker) -> str:
    """The name of a worker's straggler trace in the host's log folder."""
    return f".straggler-trace-{worker.folder}.csv"


def example(plan: LaunchPlan) -> tuple[JobSpec, Layout]:
    """The job and an example of its layout, before the hosts are asked."""
    infos = {
        name: HostInfo(
            ".venv/bin/python", host.folder or str(ROOT), 1, host.address, host.interface or EXAMPLE_INTERFACE
        )
        for name, host in plan.hosts.hosts.items()
    }
    addresses = {name: info.address for name, info in infos.items()}
    return make_layout(plan, infos, port_ranges(plan, plan.base_port or EXAMPLE_PORT, addresses))
