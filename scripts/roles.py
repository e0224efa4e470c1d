"""Which processes a job on this machine has: their names, commands and environment variables. Pure functions."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from config import COORDINATED
from scripts.process import Kind, Role
from utils import VARIANTS, mode_name

ROOT = Path(__file__).resolve().parent.parent
HOST = "127.0.0.1"
MODES = ("esync", "sync", "async", "dcasgd", "ssp", "local-sgd", "wbsp", "wbsp-pcc", "sync-switch", "local")


@dataclass(frozen=True)
class Options:
    """What to run. The ports are free ones by then."""

    mode: str  # one of MODES
    network: str
    num_servers: int
    step_times_s: tuple[float, ...]  # one a worker
    straggler_traces: tuple[Path | None, ...]  # one a worker; absolute paths
    log_base: Path
    data_dir: Path
    split_by_class: bool
    root_port: int
    state_server_port: int
    worker_ports: tuple[int, ...]  # ascending
    worker_arguments: tuple[str, ...] = ()  # for every worker's main.py
    grace_s: float = 60.0

    @property
    def main_mode(self) -> str:
        """main.py's name of the mode: DC-ASGD, for example, is its async with a flag."""
        return VARIANTS[self.mode][0] if self.mode in VARIANTS else self.mode

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of the workers' log folders, by rank."""
        return tuple(f"cpu{number}" for number in range(len(self.step_times_s)))

    @property
    def log_folder(self) -> Path:
        """Of this mode; holds the hosts' folders and the processes' logs."""
        return self.log_base / self.network / mode_name(self.mode, self.split_by_class)

    @property
    def host_folder(self) -> Path:
        """Holds the workers' folders; its name stands for this machine in the summary."""
        return self.log_folder / socket.gethostname()


def build_roles(options: Options, environment: Mapping[str, str] = os.environ) -> list[Role]:
    """The processes of a job: names, commands and environment variables."""
    roles = [] if options.mode == "local" else [scheduler(options, environment), *servers(options, environment)]
    if options.main_mode in COORDINATED:
        roles.insert(0, state_server(options, environment))
    return [*roles, *workers(options, environment)]


def state_server(options: Options, environment: Mapping[str, str]) -> Role:
    """The state server as in production, up before the workers ask."""
    port = options.state_server_port
    return Role(
        name="state server",
        kind=Kind.SERVICE,
        command=[sys.executable, "manage.py", "serve", f"{HOST}:{port}"],
        environment=_base(environment),
        folder=ROOT / "SimpleStateServer",
        log=options.log_folder / "state-server.log",
        title=f"port {port}",
        is_ready=lambda: _accepts(port),
    )


def scheduler(options: Options, environment: Mapping[str, str]) -> Role:
    """The process that the others meet at."""
    return Role(
        name="scheduler",
        kind=Kind.SERVER,
        command=[sys.executable, str(ROOT / "main.py")],
        environment=_cluster(options, environment, "scheduler"),
        folder=ROOT,
        log=options.log_folder / "scheduler.log",
    )


def servers(options: Options, environment: Mapping[str, str]) -> Iterator[Role]:
    """The parameter servers."""
    for number in range(options.num_servers):
        yield Role(
            name=f"server {number}",
            kind=Kind.SERVER,
            command=[sys.executable, str(ROOT / "main.py")],
            environment=_cluster(options, environment, "server"),
            folder=ROOT,
            log=options.log_folder / f"server{number}.log",
        )


def workers(options: Options, environment: Mapping[str, str]) -> Iterator[Role]:
    """The workers, slowest or fastest first as given. Worker N has rank N."""
    for number, device in enumerate(options.devices):
        distributed = {} if options.mode == "local" else _cluster(options, environment, "worker")
        # MXNet's scheduler ranks the workers by the ports that they listen on, which this variable sets.
        port = {} if options.mode == "local" else {"PORT": str(options.worker_ports[number])}
        yield Role(
            name=f"worker {number}",
            kind=Kind.WORKER,
            command=worker_command(options, number),
            environment=_base(environment) | distributed | port,
            folder=ROOT,
            log=options.log_folder / f"worker{number}.log",
            title=device,
            show_all=number == 0,
        )


def worker_command(options: Options, number: int) -> list[str]:
    """main.py and its flags; those of the user come last and win."""
    flags: dict[str, object] = {
        "-m": options.main_mode,
        "-c": 1,
        "-n": options.network,
        "-dd": options.data_dir,
        "-ld": options.host_folder,
        "--device-name": options.devices[number],
        "--min-step-time": options.step_times_s[number],
    }
    # The rest only where it counts: main.py says so of every flag that does nothing.
    if options.mode in VARIANTS:
        flags["--" + VARIANTS[options.mode][1].replace("_", "-")] = 1
    if options.split_by_class:
        flags["-s"] = 1
    if options.main_mode in COORDINATED:
        flags |= {"-ip": HOST, "-port": options.state_server_port}
    if trace := options.straggler_traces[number]:
        flags["--straggler-trace"] = trace
    words = [str(word) for pair in flags.items() for word in pair]
    return [sys.executable, str(ROOT / "main.py"), *words, *options.worker_arguments]


def _base(environment: Mapping[str, str]) -> dict[str, str]:
    """The user's variables without another job's, and one thread a process where the user does not say."""
    kept = {name: value for name, value in environment.items() if not name.startswith("DMLC_") and name != "PORT"}
    return {"OMP_NUM_THREADS": "1"} | kept | {"PYTHONUNBUFFERED": "1"}


def _cluster(options: Options, environment: Mapping[str, str], role: str) -> dict[str, str]:
    return _base(environment) | {
        "DMLC_ROLE": role,
        "DMLC_PS_ROOT_URI": HOST,
        "DMLC_PS_ROOT_PORT": str(options.root_port),
        "DMLC_NUM_SERVER": str(options.num_servers),
        "DMLC_NUM_WORKER": str(len(options.step_times_s)),
        "DMLC_INTERFACE": "lo",
    }


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
