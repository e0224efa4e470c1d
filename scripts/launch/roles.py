"""Which processes a job has: their names, commands and environment variables. Pure functions.

A job on this machine and one on several hosts differ in where the processes are (Layout), and in nothing else.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from algorithms import OWNERS, Algorithm, folder_name
from config import PS, preset_flags
from scripts.launch.process import Kind, Role
from scripts.launch.restarts import DEFAULT_RESTARTS
from trainer.run_logs.earlier_runs import date_time
from utils import EARLIER

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"


@dataclass(frozen=True)
class Job:
    """What to run, wherever. The ports are free ones by then."""

    mode: str  # a name of algorithms.ENTRIES
    network: str
    num_servers: int
    log_base: Path
    data_dir: Path  # of every worker
    split_by_class: bool
    root_port: int
    state_server_port: int
    worker_arguments: tuple[str, ...]  # for every worker's main.py
    grace_s: float
    # Which workers of the cluster take part, in words, where a preset chooses them.
    chosen: str = field(default="", kw_only=True)
    collective: str = field(default=PS, kw_only=True)
    restarts: int = field(default=DEFAULT_RESTARTS, kw_only=True)  # as the launchers' option says
    run: str = field(default="", kw_only=True)  # its name, as the launchers' option says; the log base has it already
    # DATE-TIME under which the logs are kept whose place those of this job take.
    began: str = field(default_factory=lambda: date_time(time.time()), kw_only=True)

    @property
    def algorithm(self) -> Algorithm:
        """The row of the mode: DC-ASGD, for example, is that of ASGD, with a flag."""
        return OWNERS[self.mode]

    @property
    def has_parameter_server(self) -> bool:
        """Whether there are a scheduler and parameter servers."""
        return self.algorithm.is_distributed and self.collective == PS

    @property
    def has_state_server(self) -> bool:
        """Whether there is a state server: the mode asks it, or the workers find each other there."""
        return self.algorithm.has_state_server or self.collective != PS

    @property
    def mode_folder(self) -> Path:
        """NETWORK/MODE, its place in a log tree."""
        return Path(self.network) / folder_name(self.mode, self.split_by_class)

    @property
    def folder_there(self) -> Path:
        """Holds the hosts' folders on another host, seen from its project."""
        return Path("logs") / self.run / self.mode_folder

    @property
    def log_folder(self) -> Path:
        """Of this mode; holds the hosts' folders and the processes' logs."""
        return self.log_base / self.mode_folder

    @property
    def earlier(self) -> Path:
        """Where what is in the log folder is moved when training begins."""
        return self.log_base / EARLIER / self.began


@dataclass(frozen=True)
class Options(Job):
    """A job on this machine."""

    step_times_s: tuple[float, ...]  # one a worker
    sample_times_s: tuple[float, ...]  # likewise
    straggler_traces: tuple[Path | None, ...]  # one a worker; absolute paths
    worker_ports: tuple[int, ...]  # ascending
    left_out: str = ""  # of the cluster file, in words: what is not emulated
    has_free_root_port: bool = True  # nobody has chosen it
    counted: str = ""  # how many workers --workers asks for, in words, where it is no list of step times

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the workers' log folders, by rank."""
        return tuple(f"cpu{number}" for number in range(len(self.step_times_s)))

    @property
    def host_folder(self) -> Path:
        """Holds the workers' folders; its name stands for this machine in the summary."""
        return self.log_folder / socket.gethostname()


@dataclass(frozen=True)
class Site:
    """A host, as its processes see it and as the others reach it."""

    name: str  # its folder in the log tree
    address: str
    interface: str  # network card of that address
    python: str
    root: Path  # of the project there
    log_folder: Path  # of the mode, there
    environment: Mapping[str, str]  # of every process there
    is_here: bool = False

    @property
    def log_base(self) -> Path:
        """Holds NETWORK/MODE, the log folder."""
        return self.log_folder.parents[1]

    @property
    def folder(self) -> Path:
        """Holds the folders of the workers there."""
        return self.log_folder / self.name

    @property
    def prefix(self) -> str:
        """What the processes' names begin with."""
        return "" if self.is_here else f"{self.name} "


@dataclass(frozen=True)
class Seat:
    """A worker: where it is, and what it alone is told."""

    site: Site
    device: str  # its log folder
    flags: tuple[str, ...]  # for main.py: the device, its speed
    port: int  # it listens there; MXNet's scheduler ranks the workers of one host by it
    name: str
    log: str  # file name
    more_flags: tuple[str, ...] = ()  # the user's for this worker


@dataclass(frozen=True)
class Layout:
    """Where a job's processes are."""

    scheduler: Site
    state_server: Site
    servers: tuple[Site, ...]
    seats: tuple[Seat, ...]
    scheduler_port: int = 0  # at which its MXNet listens; 0: any. The processes meet at the job's `root_port`
    server_ports: tuple[int, ...] = ()  # at which they listen; by default any

    @property
    def sites(self) -> dict[str, Site]:
        """All hosts that have a process, by name."""
        sites = (self.scheduler, self.state_server, *self.servers, *(seat.site for seat in self.seats))
        return {site.name: site for site in sites}


def local_layout(options: Options, environment: Mapping[str, str]) -> Layout:
    """Everything on this machine."""
    here = Site(
        name=options.host_folder.name,
        address=HOST,
        interface="lo",
        python=sys.executable,
        root=ROOT,
        log_folder=options.log_folder,
        environment=base_environment(environment),
        is_here=True,
    )
    seats = []
    for number, device in enumerate(options.devices):
        trace = options.straggler_traces[number]
        seats.append(
            Seat(
                site=here,
                device=device,
                flags=worker_flags(
                    "cpu", options.step_times_s[number], options.sample_times_s[number], str(trace or "")
                ),
                port=options.worker_ports[number],
                name=f"worker {number}",
                log=f"worker{number}.log",
            )
        )
    return Layout(here, here, (here,) * options.num_servers, tuple(seats))


def worker_flags(
    device: str, step_time_s: float, sample_time_s: float = 0.0, straggler_trace: str = ""
) -> tuple[str, ...]:
    """main.py's flags for a device (cpu, gpu0, ...) of a speed of its own."""
    which = ("-c", "1") if device == "cpu" else ("-g", device.removeprefix("gpu"))
    trace = ("--straggler-trace", straggler_trace) if straggler_trace else ()
    each = ("--sample-time", str(sample_time_s)) if sample_time_s else ()
    return (*which, "--min-step-time", str(step_time_s), *each, *trace)


def build_roles(options: Options, environment: Mapping[str, str] = os.environ) -> list[Role]:
    """The processes of a job on this machine: names, commands and environment variables."""
    return build(options, local_layout(options, environment))


def build(job: Job, layout: Layout) -> list[Role]:
    """The processes of a job: names, commands and environment variables."""
    roles = [_scheduler(job, layout), *_servers(job, layout)] if job.has_parameter_server else []
    if job.has_state_server:
        roles.insert(0, _state_server(job, layout.state_server))
    return [*roles, *_workers(job, layout)]


def _state_server(job: Job, site: Site) -> Role:
    """The state server as in production, up before the workers ask."""
    port = job.state_server_port
    return Role(
        name=f"{site.prefix}state server",
        kind=Kind.SERVICE,
        command=[site.python, "manage.py", "serve", f"{site.address}:{port}"],
        environment=site.environment,
        folder=site.root / "SimpleStateServer",
        log=job.log_folder / "state-server.log",
        title=f"port {port}",
        page=f"http://{site.address}:{port}/" if job.algorithm.has_state_server else "",
        is_ready=answers(site.address, port) if site.is_here else None,
        host="" if site.is_here else site.name,
    )


def _scheduler(job: Job, layout: Layout) -> Role:
    """The process that the others meet at."""
    port = {"PORT": str(layout.scheduler_port)} if layout.scheduler_port else {}
    return _main(job, layout, layout.scheduler, "scheduler", "scheduler", Kind.SERVER, port)


def _servers(job: Job, layout: Layout) -> Iterator[Role]:
    """The parameter servers."""
    for number, site in enumerate(layout.servers):
        port = {"PORT": str(layout.server_ports[number])} if layout.server_ports else {}
        yield _main(job, layout, site, "server", f"server {number}", Kind.SERVER, port)


def _main(
    job: Job, layout: Layout, site: Site, role: str, name: str, kind: Kind, port: Mapping[str, str] | None = None
) -> Role:
    return Role(
        name=f"{site.prefix}{name}",
        kind=kind,
        command=[site.python, str(site.root / "main.py")],
        environment=_cluster(job, layout, site, role) | dict(port or {}),
        folder=site.root,
        log=job.log_folder / f"{name.replace(' ', '')}.log",
        host="" if site.is_here else site.name,
    )


def _workers(job: Job, layout: Layout) -> Iterator[Role]:
    """The workers. On one machine worker N has rank N."""
    for number, seat in enumerate(layout.seats):
        site = seat.site
        cluster = _cluster(job, layout, site, "worker") | {"PORT": str(seat.port)}
        yield Role(
            name=seat.name,
            kind=Kind.WORKER,
            command=[site.python, str(site.root / "main.py"), *main_flags(job, layout, seat)],
            environment=cluster if job.algorithm.is_distributed else site.environment,
            folder=site.root,
            log=job.log_folder / seat.log,
            title=seat.device if site.is_here else "",
            show_all=site.is_here and number == 0,
            host="" if site.is_here else site.name,
        )


def main_flags(job: Job, layout: Layout, seat: Seat) -> list[str]:
    """A worker's flags; those of the user come last and win."""
    flags: dict[str, object] = {
        "-m": job.algorithm.name,
        "-n": job.network,
        "-dd": job.data_dir,
        "-ld": seat.site.folder,
        "--earlier": seat.site.log_base / EARLIER / job.began,
        "--device-name": seat.device,
    }
    # The rest only where it counts: main.py says so of every flag that does nothing.
    if job.split_by_class:
        flags["-s"] = 1
    if job.collective != PS:
        flags["--collective"] = job.collective
    if job.has_state_server:
        flags |= {"-ip": layout.state_server.address, "-port": job.state_server_port}
    words = [str(word) for pair in flags.items() for word in pair]
    return [*words, *preset_flags(job.mode), *seat.flags, *job.worker_arguments, *seat.more_flags]


def base_environment(environment: Mapping[str, str], threads: int | None = 1) -> dict[str, str]:
    """The user's variables without another job's; so many threads a process where the user does not say."""
    kept = {name: value for name, value in environment.items() if not name.startswith("DMLC_") and name != "PORT"}
    if threads and not kept.get("OMP_NUM_THREADS", "").strip():
        kept["OMP_NUM_THREADS"] = str(threads)
    return kept | {"PYTHONUNBUFFERED": "1"}


def _cluster(job: Job, layout: Layout, site: Site, role: str) -> dict[str, str]:
    others = {
        "DMLC_PS_ROOT_URI": layout.scheduler.address,
        "DMLC_PS_ROOT_PORT": str(job.root_port),
        "DMLC_NUM_SERVER": str(len(layout.servers)),
    }
    return dict(site.environment) | {
        "DMLC_ROLE": role,
        **(others if job.has_parameter_server else {}),
        "DMLC_NUM_WORKER": str(len(layout.seats)),
        "DMLC_INTERFACE": site.interface,
    }


def answers(address: str, port: int) -> Callable[[], bool]:
    """Says whether somebody listens there."""

    def accepts() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((address, port)) == 0

    return accepts
