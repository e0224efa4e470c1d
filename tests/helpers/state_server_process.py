"""A real state server process for tests: `with running_state_server() as server: requests.get(server.url)`."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esync.client import StateClient, draw_job_number, job_id
from esync.clock import RealClock
from esync.http import HttpLink
from utils import authority

SERVER_FOLDER = Path(__file__).resolve().parents[2] / "SimpleStateServer"

START_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class StateServerProcess:
    """A running server: where it listens, its process, and the file with what it says."""

    url: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path


def http_client(port: int, policy: str = "journal", delay_s: float = 0.0, **options: Any) -> StateClient:
    """A worker's client of whatever answers at this port of 127.0.0.1; options as StateClient takes them."""
    clock = RealClock()
    return StateClient(HttpLink("127.0.0.1", str(port), clock, delay_s), clock, policy, 0.5, **options)


def clients(server: StateServerProcess, num_workers: int, **options: Any) -> list[StateClient]:
    """One client a worker, in a new job; options as `http_client` takes them."""
    job = job_id(draw_job_number())
    made = [http_client(server.port, **options) for _ in range(num_workers)]
    for rank, client in enumerate(made):
        client.join(job, rank, num_workers)
    return made


def report(
    client: StateClient, round_: int, step_s: float, transmission_s: float, patience_s: float | None = None
) -> None:
    """A worker enters a round."""
    client.send(client.note(round_, 0, step_s, transmission_s), patience_s)


def query(client: StateClient, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
    """A worker has done a step; returns whether it is to aggregate."""
    return client.send(client.note(round_, steps, step_s, transmission_s, asks=True)).get("action") == "SYNC"


@contextlib.contextmanager
def running_state_server(
    port: int = 0,
    command: Sequence[str] = ("runserver", "--noreload"),
    host: str = "127.0.0.1",
    **environment: str,
) -> Iterator[StateServerProcess]:
    """Starts `manage.py runserver`, as published, and ends it afterwards, whatever happens.

    Args:
        port: where it listens; 0: a free port.
        command: of manage.py; the address is added.
        host: address at which it listens.
        environment: variables such as ESYNC_TOKEN; none of the caller's own ESYNC_ variables reach the server.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("ESYNC_", "DJANGO_"))}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        journal = ("--journal", f"{folder}/journal") if "serve" in command else ()
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "manage.py", *command, *journal, authority(host, port)],
                cwd=SERVER_FOLDER,
                env={**inherited, "PYTHONUNBUFFERED": "1", **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            port = _port(process, log)
            yield StateServerProcess(f"http://{authority(host, port)}", port, process, log)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _port(process: subprocess.Popen[bytes], log: Path) -> int:
    """Waits until the server says where it listens."""
    give_up = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up:
        said = log.read_text()
        if match := re.search(r"server at http://(?:127\.0\.0\.1|0\.0\.0\.0|\[::1\]):(\d+)/", said):
            return int(match[1])
        if process.poll() is not None:
            break
        time.sleep(0.02)
    raise AssertionError(f"the state server did not start:\n{log.read_text()}")
