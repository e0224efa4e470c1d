"""The processes of a job: names, commands and environment variables. Pure functions.

A job on this machine and one on several hosts differ in their hosts only.
"""

import functools
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from algorithms import OWNERS, Algorithm, folder_name
from config import AMONG_WORKERS, HUB, KVSTORE, name_in_logs, preset_flags, transport_of
from scripts.launch.health import Health
from scripts.launch.hosts_file import Host, Hosts, HostWorker
from scripts.launch.process import Kind, Role
from scripts.launch.restarts import DEFAULT_RESTARTS
from trainer.jobs.sources import ignored_network
from trainer.run_logs.earlier_runs import PAGE_FILE, date_time
from utils import EARLIER

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
TOKEN = "ESYNC_TOKEN"  # its variable: other users of a host can read command lines
JOB_FOLDER = ".job"  # of the job file and its modules, in the folder of a host to which they were sent


@dataclass(frozen=True)
class JobSpec:
    """What to run, and on which hosts. Of a job that is placed the ports are free ones."""

    mode: str  # a name of algorithms.ENTRIES
    network: str  # of a job file the one that it leaves out
    num_servers: int
    log_base: Path
    data_dir: Path  # on every worker's host
    split_by_class: bool
    root_port: int  # 0: any free one
    state_server_port: int  # likewise
    worker_arguments: tuple[str, ...]  # for every worker's main.py
    grace_s: float
    hosts: Hosts
    notes: tuple[str, ...] = ()  # for the user, before the job begins
    entry: str = ""  # its name in the log tree; empty: the mode
    of_workers: int = 0  # of which those that take part were chosen; 0: all take part
    number: int | str | None = None  # --fastest, while the step times have to be measured; None: all workers take part
    exchange: str = ""  # as of config.EXCHANGES; empty: that of the mode
    page: bool = True  # the workers tell a state server what they do
    restarts: int = DEFAULT_RESTARTS
    requeues: bool = False  # Slurm begins the job again where a process is lost
    job_file: Path | None = None  # absolute
    sources: Mapping[str, bytes] = field(default_factory=dict)  # of the job file, for other hosts
    run: str = ""  # its name, which is also part of the log base
    is_shared: bool = False  # the other hosts see the log tree at its path here
    began: str = field(default_factory=date_time)  # DATE-TIME: the folder for the logs that this job's replace
    base_port: int = 0  # those of a host begin here; 0: any free ones
    connect: Callable[[Host], list[str]] = lambda host: []  # the command that starts the agent on a host, if any
    is_dry_run: bool = False

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
    def folder(self) -> Path:
        """The host's folder in the log tree there, with its workers' folders."""
        return self.log_folder / self.name

    @property
    def role_host(self) -> str:
        """Its name, with which those of its processes begin; empty: this machine."""
        return "" if self.is_here else self.name


@dataclass(frozen=True)
class Placement(HostWorker):
    """A worker in the layout."""

    node: Node
    port: int  # the workers of one host are ranked by it; it listens there, unless there is a hub

    @property
    def trace(self) -> Path | None:
        """Its straggler trace there."""
        is_sent = self.straggler_trace and not self.node.is_here
        return self.node.folder / self.trace_file if is_sent else self.straggler_trace


@dataclass(frozen=True)
class Layout:
    """The hosts of a job's processes, and the ports at which they listen."""

    root: Node  # where the processes meet, at the job's `root_port`: the host of the hub, or of the scheduler
    state_server: Node
    servers: tuple[Node, ...]
    workers: tuple[Placement, ...]
    scheduler_port: int  # its MXNet's; 0: there is none
    server_ports: tuple[int, ...]  # 0 of a hub, which has the job's `root_port` alone

    @property
    def nodes(self) -> dict[str, Node]:
        nodes = (self.root, self.state_server, *self.servers, *(worker.node for worker in self.workers))
        return {node.name: node for node in nodes}


Build = Callable[[JobSpec, Layout], Sequence[Role]]  # makes the processes of a job


def build(job: JobSpec, layout: Layout) -> list[Role]:
    """The processes of a job."""
    roles = [_state_server(job, layout.state_server)] if job.needs_state_server or job.page else []
    if job.has_scheduler:
        roles.append(_server(job, layout, layout.root, "scheduler", "scheduler", layout.scheduler_port))
    if job.has_server:
        for number, (node, port) in enumerate(zip(layout.servers, layout.server_ports, strict=True)):
            roles.append(_server(job, layout, node, "server", f"server {number}", port))
    return [*roles, *_workers(job, layout)]


def _state_server(job: JobSpec, node: Node) -> Role:
    port, is_watched = job.state_server_port, job.page or job.algorithm.needs_state_server
    page_file = node.root / (node.log_folder if node.is_here or job.is_shared else node.folder) / PAGE_FILE
    return Role(
        name=f"{node.role_host} state server".lstrip(),
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
        name=f"{node.role_host} {name}".lstrip(),
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
            log=job.log_folder / f"{worker.name.replace(' ', '' if node.is_here else '-')}.log",
            title=worker.folder if node.is_here else "",
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
        "--earlier": worker.node.log_folder.parents[1] / EARLIER / job.began,
        "--device-name": worker.folder,
        "--min-step-time": worker.step_time_s,
    }
    flags |= {"-c": 1, "--evaluator": 1} if worker.device == "cpu" else {"-g": worker.device.removeprefix("gpu")}
    # The rest only where it counts: main.py warns about a flag that does nothing.
    if not job.job_file or not ignored_network(job.job_file, job.network):
        flags["-n"] = job.network
    if job.job_file:
        is_here = worker.node.is_here
        flags["--job"] = job.job_file if is_here else worker.node.folder / JOB_FOLDER / job.job_file.name
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
    if worker.sample_time_s:
        flags["--sample-time"] = worker.sample_time_s
    if worker.trace:
        flags["--straggler-trace"] = worker.trace
    words = [str(word) for pair in flags.items() for word in pair]
    return [*words, *preset_flags(job.mode), *job.worker_arguments, *worker.flags]


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
