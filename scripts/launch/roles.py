"""The processes of a job: names, commands and environment variables. Pure functions.

A job on this machine and one on several hosts differ in their Layout only.
"""

import functools
import os
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from algorithms import OWNERS, Algorithm, folder_name
from config import AMONG_WORKERS, HUB, KVSTORE, name_in_logs, preset_flags, transport_of
from scripts.launch.health import Health
from scripts.launch.process import Kind, Role
from scripts.launch.restarts import DEFAULT_RESTARTS
from trainer.jobs.sources import ignored_network
from trainer.run_logs.earlier_runs import PAGE_FILE, date_time
from trainer.simulation.cluster_file import ClusterProfile
from utils import EARLIER

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
TOKEN = "ESYNC_TOKEN"  # its variable: other users of a host can read command lines
JOB_FOLDER = ".job"  # of the job file and its modules, in the folder of a host to which they were sent


@dataclass(frozen=True)
class JobSpec:
    """What to run, on any hosts. When it runs, its ports are free ones."""

    mode: str  # a name of algorithms.ENTRIES
    network: str  # of a job file the one that it leaves out
    num_servers: int
    log_base: Path
    data_dir: Path  # on every worker's host
    split_by_class: bool
    root_port: int
    state_server_port: int
    worker_arguments: tuple[str, ...]  # for every worker's main.py
    grace_s: float
    entry: str = field(default="", kw_only=True)  # its name in the log tree; empty: the mode
    chosen: str = field(default="", kw_only=True)  # the workers that take part, in words; empty: all
    of_workers: int = field(default=0, kw_only=True)  # of which they were chosen; 0: all take part
    exchange: str = field(default="", kw_only=True)  # as of config.EXCHANGES; empty: that of the mode
    implied: str = field(default="", kw_only=True)  # why it has this exchange, in words; empty: it was named
    page: bool = field(default=True, kw_only=True)  # the workers tell a state server what they do
    restarts: int = field(default=DEFAULT_RESTARTS, kw_only=True)
    requeues: bool = field(default=False, kw_only=True)  # Slurm begins the job again where a process is lost
    job_file: Path | None = field(default=None, kw_only=True)  # absolute
    run: str = field(default="", kw_only=True)  # its name, which is also part of the log base
    is_shared: bool = field(default=False, kw_only=True)  # the other hosts see the log tree at its path here
    # DATE-TIME: the folder for the logs that this job's replace.
    began: str = field(default_factory=date_time, kw_only=True)

    @property
    def algorithm(self) -> Algorithm:
        """The row of the mode: DC-ASGD, for example, is that of ASGD, with a flag."""
        return OWNERS[self.mode]

    @property
    def transport(self) -> str:
        """As Config.transport."""
        return self.exchange or transport_of(self.mode)

    @property
    def has_server(self) -> bool:
        """Whether there is a hub, or there are a scheduler and parameter servers."""
        return self.transport in (KVSTORE, HUB)

    @property
    def has_hub(self) -> bool:
        return self.transport == HUB

    @property
    def has_scheduler(self) -> bool:
        return self.transport == KVSTORE

    @property
    def needs_state_server(self) -> bool:
        """Whether the mode asks a state server, or the workers find each other there."""
        return self.algorithm.needs_state_server or self.transport in AMONG_WORKERS

    @property
    def mode_folder(self) -> Path:
        """NETWORK/MODE, its place in a log tree; of a job file STEM/MODE."""
        return Path(name_in_logs(self.job_file or "", self.network)) / folder_name(
            self.entry or self.mode, self.split_by_class
        )

    @property
    def remote_folder(self) -> Path:
        """The mode's folder on another host, relative to the project there; absolute in a tree that all see."""
        return self.log_folder if self.is_shared else Path("logs") / self.run / self.mode_folder

    @property
    def log_folder(self) -> Path:
        """The mode's folder on this machine, with the hosts' folders and the processes' logs."""
        return self.log_base / self.mode_folder

    @property
    def earlier(self) -> Path:
        """The folder to which older logs are moved when training begins."""
        return self.log_base / EARLIER / self.began


@dataclass(frozen=True)
class LocalJobSpec(JobSpec):
    """A job on this machine."""

    cluster: ClusterProfile
    worker_ports: tuple[int, ...]  # ascending
    has_free_root_port: bool = True  # no flag gives the root port
    counted: str = ""  # what a number of workers as --workers was taken for, in words

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the workers' log folders, by rank."""
        return tuple(f"cpu{number}" for number in range(len(self.cluster.workers)))

    @property
    def host_folder(self) -> Path:
        """Has the workers' folders; its name is this machine's in the summary."""
        return self.log_folder / socket.gethostname()


@dataclass(frozen=True)
class Node:
    """A host of a job's layout."""

    name: str  # of its folder in the log tree
    address: str  # for the other hosts
    interface: str  # network interface of that address
    python: str
    root: Path  # of the project there
    log_folder: Path  # of the mode, there
    environment: Mapping[str, str]  # of every process there
    is_here: bool = False

    @property
    def log_base(self) -> Path:
        return self.log_folder.parents[1]

    @property
    def folder(self) -> Path:
        """The host's folder in the log tree there, with its workers' folders."""
        return self.log_folder / self.name

    def job_file(self, job: JobSpec) -> Path:
        assert job.job_file is not None
        return job.job_file if self.is_here else self.folder / JOB_FOLDER / job.job_file.name

    @property
    def prefix(self) -> str:
        """The beginning of the processes' names."""
        return "" if self.is_here else f"{self.name} "

    @property
    def role_host(self) -> str:
        return "" if self.is_here else self.name


@dataclass(frozen=True)
class Placement:
    """A worker on a host, with flags of its own."""

    node: Node
    device: str  # its log folder
    flags: tuple[str, ...]  # for main.py: the device, its speed
    port: int  # the workers of one host are ranked by it; it listens there, unless there is a hub
    name: str
    log: str  # file name
    more_flags: tuple[str, ...] = ()  # the user's for this worker


@dataclass(frozen=True)
class Layout:
    """The hosts of a job's processes."""

    root: Node  # where the processes meet, at the job's `root_port`: the host of the hub, or of the scheduler
    state_server: Node
    servers: tuple[Node, ...]
    workers: tuple[Placement, ...]
    scheduler_port: int = 0  # its MXNet's; 0: any
    server_ports: tuple[int, ...] = ()  # empty: any; of a hub, which has the job's `root_port` alone

    @property
    def nodes(self) -> dict[str, Node]:
        nodes = (self.root, self.state_server, *self.servers, *(worker.node for worker in self.workers))
        return {node.name: node for node in nodes}


def local_layout(job: LocalJobSpec, environment: Mapping[str, str] = os.environ) -> Layout:
    """Places all processes on this machine."""
    here = Node(
        name=job.host_folder.name,
        address=HOST,
        interface="lo",
        python=sys.executable,
        root=ROOT,
        log_folder=job.log_folder,
        environment=base_environment(environment),
        is_here=True,
    )
    workers = [
        Placement(
            node=here,
            device=device,
            flags=worker_flags("cpu", worker.step_time_s, worker.sample_time_s, str(worker.straggler_trace or "")),
            port=port,
            name=f"worker {number}",
            log=f"worker{number}.log",
        )
        for number, (device, worker, port) in enumerate(
            zip(job.devices, job.cluster.workers, job.worker_ports, strict=True)
        )
    ]
    return Layout(here, here, (here,) * job.num_servers, tuple(workers))


def worker_flags(
    device: str, step_time_s: float, sample_time_s: float = 0.0, straggler_trace: str = ""
) -> tuple[str, ...]:
    """main.py's flags for a device (cpu, gpu0, ...) and its emulated speed."""
    which = ("-c", "1", "--evaluator", "1") if device == "cpu" else ("-g", device.removeprefix("gpu"))
    trace = ("--straggler-trace", straggler_trace) if straggler_trace else ()
    each = ("--sample-time", str(sample_time_s)) if sample_time_s else ()
    return (*which, "--min-step-time", str(step_time_s), *each, *trace)


def build_roles(job: LocalJobSpec, environment: Mapping[str, str] = os.environ) -> list[Role]:
    """The processes of a job on this machine."""
    return build(job, local_layout(job, environment))


def build(job: JobSpec, layout: Layout) -> list[Role]:
    """The processes of a job."""
    roles = [_state_server(job, layout.state_server)] if job.needs_state_server or job.page else []
    if job.has_scheduler:
        roles.append(_server(job, layout, layout.root, "scheduler", "scheduler", layout.scheduler_port))
    if job.has_server:
        ports = layout.server_ports or (0,) * len(layout.servers)
        for number, (node, port) in enumerate(zip(layout.servers, ports, strict=True)):
            roles.append(_server(job, layout, node, "server", f"server {number}", port))
    return [*roles, *_workers(job, layout)]


def _state_server(job: JobSpec, node: Node) -> Role:
    port, is_watched = job.state_server_port, job.page or job.algorithm.needs_state_server
    page_file = node.root / (node.log_folder if node.is_here or job.is_shared else node.folder) / PAGE_FILE
    return Role(
        name=f"{node.prefix}state server",
        kind=Kind.SERVICE,
        command=[
            *(node.python, "manage.py", "serve", f"{node.address}:{port}"),
            *("--journal", str(page_file.with_name(".journal"))),
            *(("--page-file", str(page_file)) if is_watched else ()),
        ],
        environment=node.environment,
        folder=node.root / "SimpleStateServer",
        log=job.log_folder / "state-server.log",
        title=f"port {port}",
        page=f"http://{node.address}:{port}/" if is_watched else "",
        is_for_page=not job.needs_state_server,
        is_ready=Health(node.address, port),
        host=node.role_host,
        node=node.name,
    )


def _server(job: JobSpec, layout: Layout, node: Node, role: str, name: str, port: int) -> Role:
    of_hub = ("-m", job.algorithm.name, *(("--exchange", HUB) if job.algorithm.has_kvstore else ()))
    return Role(
        name=f"{node.prefix}{name}",
        kind=Kind.HUB if job.has_hub else Kind.SERVER,
        command=[node.python, str(node.root / "main.py"), *(of_hub if job.has_hub else ())],
        environment=_cluster(job, layout, node, role) | ({"PORT": str(port)} if port else {}),
        folder=node.root,
        log=job.log_folder / f"{name.replace(' ', '')}.log",
        host=node.role_host,
        node=node.name,
    )


def _workers(job: JobSpec, layout: Layout) -> Iterator[Role]:
    for number, worker in enumerate(layout.workers):
        node = worker.node
        cluster = _cluster(job, layout, node, "worker") | {"PORT": str(worker.port)}
        yield Role(
            name=worker.name,
            kind=Kind.WORKER,
            command=[node.python, str(node.root / "main.py"), *main_flags(job, layout, worker)],
            environment=cluster if job.algorithm.is_distributed else node.environment,
            folder=node.root,
            log=job.log_folder / worker.log,
            title=worker.device if node.is_here else "",
            show_all=node.is_here and number == 0,  # on one machine worker N has rank N
            host=node.role_host,
            node=node.name,
        )


def main_flags(job: JobSpec, layout: Layout, worker: Placement) -> list[str]:
    """A worker's flags; the user's come last and win."""
    flags: dict[str, object] = {
        "-m": job.algorithm.name,
        "-dd": job.data_dir,
        "-ld": worker.node.folder,
        "--earlier": worker.node.log_base / EARLIER / job.began,
        "--device-name": worker.device,
    }
    # The rest only where it counts: main.py warns about a flag that does nothing.
    if not job.job_file or not ignored_network(job.job_file, job.network):
        flags["-n"] = job.network
    if job.job_file:
        flags["--job"] = worker.node.job_file(job)
    if job.split_by_class:
        flags["-s"] = 1
    if job.exchange:
        flags["--exchange"] = job.exchange
    if job.needs_state_server or job.page:
        flags |= {"-ip": layout.state_server.address, "-port": job.state_server_port}
    if not job.algorithm.needs_state_server:
        flags["--page"] = int(job.page)
    if job.of_workers:
        flags["--of-workers"] = job.of_workers
    words = [str(word) for pair in flags.items() for word in pair]
    return [*words, *preset_flags(job.mode), *worker.flags, *job.worker_arguments, *worker.more_flags]


def base_environment(environment: Mapping[str, str], threads: int | None = 1) -> dict[str, str]:
    """The user's variables without those of another job; a number of threads and a token unless the user gives them."""
    kept = {name: value for name, value in environment.items() if not name.startswith("DMLC_") and name != "PORT"}
    if threads and not kept.get("OMP_NUM_THREADS", "").strip():
        kept["OMP_NUM_THREADS"] = str(threads)
    return kept | {TOKEN: kept.get(TOKEN) or drawn_token(), "PYTHONUNBUFFERED": "1"}


drawn_token = functools.cache(secrets.token_urlsafe)  # of the jobs of this launcher, where the user gives none


def _cluster(job: JobSpec, layout: Layout, node: Node, role: str) -> dict[str, str]:
    others = {
        "DMLC_PS_ROOT_URI": layout.root.address,
        "DMLC_PS_ROOT_PORT": str(job.root_port),
        "DMLC_NUM_SERVER": str(len(layout.servers)),
    }
    return dict(node.environment) | {
        "DMLC_ROLE": role,
        **(others if job.has_server else {}),
        "DMLC_NUM_WORKER": str(len(layout.workers)),
        "DMLC_INTERFACE": node.interface,
    }
