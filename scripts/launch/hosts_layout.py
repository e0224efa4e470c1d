"""The layout of a job on its hosts, from what the user says of it, and from the hosts' answers."""

import dataclasses
import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.launch.roles import ROOT, TOKEN, JobSpec, Layout, Node, Placement, base_environment
from trainer.rendezvous.addresses import reserve
from utils import SetupError

# Prefixes of this shell's variables that all hosts get
PASSED_ON = ("OMP_NUM_THREADS", TOKEN, "ESYNC_RECORD", "PS_", "MXNET_")
# Stand for the hosts' answers.
EXAMPLE_PORT = 9091
INTERFACE = "INTERFACE"
LAST_PORT = 65535


def make_layout(job: JobSpec, nodes: Mapping[str, Node], ports: Mapping[str, Sequence[int]]) -> tuple[JobSpec, Layout]:
    """Places the job's processes. `nodes` are by host, and so are `ports`: free ones, ascending, `num_ports` of
    them."""
    left = {name: iter(numbers) for name, numbers in ports.items()}
    root, state_server, servers = places_of(job)
    job = dataclasses.replace(
        job,
        root_port=job.root_port or (next(left[root]) if job.has_server else 0),
        state_server_port=job.state_server_port or next(left[state_server]),
    )
    return job, Layout(
        root=nodes[root],
        state_server=nodes[state_server],
        scheduler_port=next(left[root]) if job.has_scheduler else 0,
        servers=tuple(nodes[name] for name in servers),
        server_ports=tuple(0 if job.has_hub else next(left[name]) for name in servers),
        workers=tuple(
            Placement(**vars(worker), node=nodes[worker.host], port=next(left[worker.host]))
            for worker in job.hosts.workers
        ),
    )


def places_of(job: JobSpec) -> tuple[str, str, list[str]]:
    """The hosts at which the processes meet (that of the hub, or of the scheduler), of the state server, and of each
    server."""
    among = job.hosts.places["server"]
    root, *_ = among if job.has_hub else job.hosts.places["scheduler"]
    count = job.num_servers if job.has_server else 0
    return root, job.hosts.places["state-server"][0], [among[number % len(among)] for number in range(count)]


def num_ports(job: JobSpec) -> Counter[str]:
    """The number of ports that each host must find, beside those that have a flag. The scheduler has two: the
    rendezvous, and its MXNet's. The hub has one, as the rendezvous."""
    root, state_server, servers = places_of(job)
    found = [] if job.state_server_port else [state_server]
    found += [root] if job.has_server and not job.root_port else []
    found += [root, *servers] if job.has_scheduler else []
    return Counter([*found, *(worker.host for worker in job.hosts.workers)])


def port_ranges(job: JobSpec, base: int, nodes: Mapping[str, Node]) -> dict[str, Sequence[int]]:
    """The ports of each host from a base port on, without those that have a flag. `nodes` are by host; two names may be
    one machine. Raises SetupError if there are too few."""
    given, ports = (job.root_port, job.state_server_port), dict[str, Sequence[int]]()
    left = {node.address: (port for port in itertools.count(base) if port not in given) for node in nodes.values()}
    for name, count in num_ports(job).items():
        *_, last = ports[name] = [*itertools.islice(left[nodes[name].address], count)]
        if last > LAST_PORT:
            raise SetupError(
                f"--base-port {base}: {name} needs ports up to {last}, and the last is {LAST_PORT}: choose a lower one"
            )
    return ports


def free_ports(count: int) -> list[int]:
    """Ports that are free on all addresses, ascending; no other process that asks here gets one while this one runs."""
    return sorted(reserve("") for _ in range(count))


def node_of(job: JobSpec, name: str, python: str, root: str, cores: int, address: str, interface: str) -> Node:
    """A host other than this machine, of which only the host itself knows the rest."""
    num_processes = Counter([*places_of(job)[2], *(worker.host for worker in job.hosts.workers)])[name]
    # More threads than cores slow all processes of the host down.
    threads = max(1, cores // num_processes) if num_processes > 1 else None
    given = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    return Node(
        name=name,
        address=address,
        interface=interface,
        python=python,
        root=Path(root),
        log_folder=Path(root) / job.remote_folder,
        environment=base_environment(given, threads),
    )


def example(job: JobSpec) -> tuple[JobSpec, Layout]:
    """The job and an example of its layout, before the hosts are asked."""
    python, cores = ".venv/bin/python", 1
    nodes = {
        name: node_of(job, name, python, each.folder or str(ROOT), cores, each.address, each.interface or INTERFACE)
        for name, each in job.hosts.hosts.items()
    }
    return make_layout(job, nodes, port_ranges(job, job.base_port or EXAMPLE_PORT, nodes))
