"""Real processes of a real cluster on 127.0.0.1, for tests: started here, and none left behind."""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from few_images import few_images

from scripts.launch import local_cluster
from scripts.launch.forking import FORK_SERVER_LOG, IMPORT_S, ForkServer
from scripts.launch.hosts_layout import free_ports as free_ports  # below those of outgoing connections
from scripts.launch.process import Kind, Process, Role
from trainer.rendezvous.addresses import reserve

ROOT = Path(__file__).parents[2]
DATA = ROOT / "data"
MODULES = "trainer.worker,trainer.transport.kvstore,models,trainer.algorithms.local"  # of a fork server
DEADLINE_S = 90.0  # generous: these machines are shared; below the time limit of a test in pyproject.toml
needs_ipv6 = pytest.mark.skipif(not reserve("::1"), reason="no IPv6 here: sysctl net.ipv6.conf.lo.disable_ipv6=0")


def wait_for(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Polls until `condition` holds; fails after the deadline."""
    give_up = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < give_up, f"{what} did not happen within {deadline_s:g} s"
        time.sleep(0.05)


def ran(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """A program that has run to its end, without input, with these variables beside those of the tests."""
    return subprocess.run(
        command, cwd=cwd, env=os.environ | environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=DEADLINE_S, check=False,
    )  # fmt: skip


def begun(*command: str | Path, **environment: str) -> subprocess.Popen[str]:
    """A program that runs; all that it says is its stdout."""
    return subprocess.Popen(
        command, cwd=ROOT, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def children(parent: int) -> list[int]:
    """Ids of the processes that a process has started, in whatever thread, and that have not been waited for."""
    try:
        return [
            int(pid)
            for task in Path(f"/proc/{parent}/task").iterdir()
            for pid in (task / "children").read_text().split()
        ]
    except OSError:
        return []  # a thread or the process has just ended


def running(folder: Path) -> list[str]:
    """Command lines of all processes that mention a folder and have not ended."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in command:  # it is empty once the process has ended
            found.append(command)
    return found


@functools.cache
def forks() -> ForkServer:
    """One for all tests of this process; conftest.py closes it. A third of the suite's computing would be imports."""
    return ForkServer(("mnist", str(few_images()), MODULES), Path(tempfile.mkdtemp()) / FORK_SERVER_LOG, IMPORT_S)


def end_of(process: Process, deadline_s: float = DEADLINE_S) -> int:
    """Waits for the end of a process; returns its exit code."""
    wait_for(lambda: process.exit_code is not None, f"the end of {process.role.name}", deadline_s)
    code = process.exit_code
    process.reap()
    assert code is not None
    return code


class Processes:
    """A scheduler, servers and workers, or a hub and workers. Output goes to one file a process in `folder`."""

    def __init__(self, folder: Path, num_workers: int, num_servers: int = 1) -> None:
        self._folder = folder
        scheduler_port, *self._worker_ports = free_ports(1 + num_workers)
        self._environment = {
            **os.environ,
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(scheduler_port),
            "DMLC_NUM_SERVER": str(num_servers),
            "DMLC_NUM_WORKER": str(num_workers),
            "DMLC_INTERFACE": "lo",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
        }
        self.running: dict[str, Process] = {}

    def start(self, name: str, role: str, *command: str, **environment: str) -> None:
        """Starts a Python command in a role."""
        program, *arguments = command
        self.running[name] = forks().start(
            Role(
                name=name,
                kind=Kind.WORKER,
                command=[sys.executable, str(ROOT / program), *arguments],
                environment={**self._environment, "DMLC_ROLE": role, **environment},
                folder=ROOT,
                log=self._folder / f"{name}.log",
            )
        )

    def start_worker(self, rank: int, *command: str) -> None:
        """Starts a worker; its port makes its rank."""
        self.start(f"worker{rank}", "worker", *command, PORT=str(self._worker_ports[rank]))

    def log(self, name: str) -> str:
        """What a process wrote so far."""
        return (self._folder / f"{name}.log").read_text()

    def exit_codes(self) -> dict[str, int]:
        """Waits for every process."""
        give_up = time.monotonic() + DEADLINE_S
        try:
            return {
                name: end_of(process, max(0.1, give_up - time.monotonic())) for name, process in self.running.items()
            }
        except AssertionError as error:
            logs = "\n".join(f"--- {name}\n{self.log(name)[-1500:]}" for name in self.running)
            raise AssertionError(f"{error}\n{logs}") from None

    def kill(self) -> None:
        """Kills what still runs."""
        for process in self.running.values():
            if process.exit_code is None:
                process.send(signal.SIGKILL)
            process.reap()


@contextlib.contextmanager
def cluster(
    folder: Path, num_workers: int, num_servers: int = 1, start: bool = True, hub: str = ""
) -> Iterator[Processes]:
    """A cluster whose processes do not outlive the block. Scheduler and servers are started, unless `start` says no, or
    the `hub` of this mode."""
    folder.mkdir(parents=True, exist_ok=True)
    processes = Processes(folder, num_workers, num_servers)
    try:
        if hub:
            processes.start("server0", "server", "main.py", "-m", hub)
        elif start:  # as users do: with no flags
            processes.start("scheduler", "scheduler", "main.py")
            for index in range(num_servers):
                processes.start(f"server{index}", "server", "main.py")
        yield processes
    finally:
        processes.kill()


class _OneForAll(ForkServer):
    """In place of a launcher's own: `forks`, which outlives the job."""

    def __init__(self, *_: object) -> None: ...

    def start(self, role: Role) -> Process:
        return forks().start(role)

    def close(self) -> None: ...


def run_cluster(log_base: Path, *options: str, worker_flags: Sequence[str] = ()) -> str:
    """Runs a local cluster to its end, on few images unless the options say where the data are; returns what it
    printed. The launcher runs in this process: an import of MXNet for each job is a tenth of the suite's computing."""
    if "--data-dir" not in options:
        options = (*options, "--data-dir", str(few_images()))
        worker_flags = [*worker_flags, "--dataset", "mnist"]
    printed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        patch.setattr(local_cluster, "ForkServer", _OneForAll)
        job = local_cluster.parse(["--log-base", str(log_base), *options, "--", *worker_flags])
        outcome = local_cluster.run(job, say=printed.append)
    assert outcome.exit_code == 0, "\n".join(printed)
    return "\n".join(printed)


def device_folders(mode_folder: Path) -> list[Path]:
    """The workers' log folders of a job on this host, by name."""
    (host,) = (path for path in mode_folder.iterdir() if path.is_dir())
    return sorted(path for path in host.iterdir() if path.is_dir())
