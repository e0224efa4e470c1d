"""A job of which every process may have its own host, a network namespace: what the benchmarks of links share."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers")]

from cluster_processes import children as children  # noqa: E402
from cluster_processes import free_ports  # noqa: E402
from namespaces import Host as Host  # noqa: E402
from namespaces import Network as Network  # noqa: E402
from namespaces import missing as missing  # noqa: E402
from namespaces import network as network  # noqa: E402

Rounds = list[dict[str, Any]]  # the logged rounds of a worker, in their order


class Loopback:
    """This machine in place of a host."""

    address = "127.0.0.1"
    card = "lo"

    def command(self, *words: str | Path) -> list[str]:
        """A command line that runs here."""
        return list(map(str, words))


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, folder: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def parameter_server(host: Host | Loopback, num_workers: int, folder: Path) -> Iterator[dict[str, str]]:
    """The scheduler and one parameter server on a host; the environment that workers need beside their role.

    Args:
        folder: for the processes' output.
    """
    cluster = {
        "DMLC_PS_ROOT_URI": host.address,
        "DMLC_PS_ROOT_PORT": str(free_ports(1)[0]),
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": str(num_workers),
        "DMLC_INTERFACE": host.card,
    }
    command = host.command(sys.executable, "main.py")
    with contextlib.ExitStack() as stack:
        for role in ("scheduler", "server"):
            stack.enter_context(running(command, folder / f"{role}.log", ROOT, DMLC_ROLE=role, **cluster))
        yield cluster


def run_job(
    servers: Host | Loopback,
    hosts: Sequence[Host | Loopback],
    seconds: float,
    flags: Sequence[Sequence[str]],
    collective: str = "ps",
    meanwhile: Callable[[Path], None] = lambda folder: None,
) -> list[Rounds]:
    """Trains LeNet-5 for so long, and returns what each worker logged.

    Args:
        servers: the host of state server, scheduler and parameter server.
        hosts: of the workers.
        seconds: of training.
        flags: for each worker's main.py.
        collective: main.py's flag; other than ps there is neither scheduler nor parameter server.
        meanwhile: called while the workers run, with the folder that holds theirs, cpu0, cpu1, ...
    """
    state_port = str(free_ports(1)[0])
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        serve = servers.command(sys.executable, "manage.py", "serve", f"{servers.address}:{state_port}")
        stack.enter_context(running(serve, folder / "state.log", ROOT / "SimpleStateServer"))
        cluster = {"DMLC_NUM_WORKER": str(len(hosts))}
        if collective == "ps":
            cluster = stack.enter_context(parameter_server(servers, len(hosts), folder))
        workers = []
        for number, (host, of_worker) in enumerate(zip(hosts, flags, strict=True)):
            all_flags = ["-c", "1", "-n", "lenet", "-e", "100000", "-ld", name, "--device-name", f"cpu{number}"]
            all_flags += ["--data-dir", str(ROOT / "data")]
            all_flags += ["-ip", servers.address, "-port", state_port, "--max-seconds", str(seconds), *of_worker]
            all_flags += ["--collective", collective] * (collective != "ps")
            command = host.command(sys.executable, "main.py", *all_flags)
            log = folder / f"worker{number}.log"
            workers.append(stack.enter_context(running(command, log, ROOT, DMLC_ROLE="worker", **cluster)))
        meanwhile(folder)
        for number, worker in enumerate(workers):
            if worker.wait(seconds + 120):
                raise SystemExit((folder / f"worker{number}.log").read_text())
        return [
            sorted(
                (json.loads(path.read_text()) for path in (folder / f"cpu{number}").glob("iter-*.txt")),
                key=lambda record: record["num_iters"],
            )
            for number in range(len(hosts))
        ]


def samples_per_second(job: Sequence[Rounds]) -> float:
    """The throughput of all workers."""
    samples = sum(record["num_samples"] for rounds in job for record in rounds)
    return samples / max(rounds[-1]["total_time"] for rounds in job)
