"""Queries a second, and their latency, of the state server as published and in production.

    python benchmarks/state_server.py [--seconds 2] [--rounds 5] [--clients 1,32,200]

Prints a table and ends. Compared, in alternation, so that the noise of a shared machine meets all alike:

    published    this project's views under Django's own `runserver`, /apply/ with form fields, a new connection for
                 every query: how the published workers ask
    runserver    `manage.py runserver` as this project has it, POST /message/, kept connections
    production   `manage.py serve`, POST /message/, kept connections
    floor        the same requests to a server that answers a constant: what the client alone can do

Every client is a worker of one job that does one query after the other and, told to aggregate, enters the next round;
so each query is decided. Client and server share the machine. Figures are medians over the alternations.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "SimpleStateServer"
HOST = "127.0.0.1"
STEP_S = 0.03  # what the workers say that a local step takes
WARM_UP_S = 0.5
COLUMNS = "{:>8} {:>9}  {:<11} {:>10} {:>9} {:>9} {:>7}"

DJANGO_RUNSERVER = """
import os, sys
os.environ["DJANGO_SETTINGS_MODULE"] = "SimpleStateServer.settings"
import django
django.setup()
from django.core.management import call_command
from django.core.management.commands.runserver import Command
call_command(Command(), sys.argv[1], use_reloader=False)
"""

FLOOR = """
import asyncio, sys
ANSWER = b'{"msg_type": "RESPONSE", "action": "TRAIN", "reason": "a constant"}'
class Constant(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport
    def data_received(self, data):
        self.transport.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(ANSWER) + ANSWER)
async def main():
    server = await asyncio.get_running_loop().create_server(Constant, "127.0.0.1", int(sys.argv[1].split(":")[1]))
    await server.serve_forever()
asyncio.run(main())
"""


@dataclass(frozen=True)
class Way:
    """A server and how it is asked."""

    name: str
    command: tuple[str, ...]  # for Python, before the address
    published: bool = False  # form fields and a new connection for every query


WAYS = (
    Way("published", ("-c", DJANGO_RUNSERVER), published=True),
    Way("runserver", ("manage.py", "runserver", "--noreload")),
    Way("production", ("manage.py", "serve")),
    Way("floor", ("-c", FLOOR)),
)


class Result(NamedTuple):
    """One measurement."""

    queries_per_s: float
    p50_ms: float
    p99_ms: float
    errors: int


class Worker(asyncio.Protocol):
    """One worker's conversation. Queries are timed from sending to the whole answer, connecting included."""

    def __init__(self, port: int, way: Way, rank: int, job: str, think_s: float) -> None:
        self._port, self._way, self._rank, self._job, self._think_s = port, way, rank, job, think_s
        self._transport: asyncio.Transport | None = None
        self._received = b""
        self._round, self._steps = 1, 0
        self.begin, self.waits = 0.0, False  # of the query under way
        self.latencies: list[float] = []
        self.errors = 0
        self.running = True

    def ask(self) -> None:
        """Sends the next query."""
        if not self.running:
            return
        self._steps += 1
        self.begin, self.waits = time.perf_counter(), True
        self._received = b""
        if self._transport is None or self._transport.is_closing():
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        else:
            self._transport.write(self._request())

    async def _connect(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, HOST, self._port)
        except OSError:
            self._failed()
        else:
            assert self._transport is not None
            self._transport.write(self._request())

    def _request(self) -> bytes:
        if self._way.published:
            path, kind = "/apply/", "application/x-www-form-urlencoded"
            body = f"r={self._rank}&k={self._steps}&c={STEP_S}&te={time.time()}"
        else:
            path, kind = "/message/", "application/json"
            status = {
                "rank": self._rank,
                "local_iteration": self._steps,
                "round": self._round,
                "computation_time": STEP_S + self._rank * 1e-5,
                "transmission_time": 0.01,
                "timestamp": time.time(),
            }
            sender = f"worker-{self._rank}"
            body = json.dumps({"msg_type": "QUERY", "sender": sender, "job": self._job, "status": status})
        head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return (head + body).encode()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keeps the connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Takes a piece of the answer; the last one makes the next query."""
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]):
            return
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"unexpected answer: {self._received!r}")
        self.latencies.append(time.perf_counter() - self.begin)
        self.waits = False
        if b'"SYNC"' in body or b'"ready": 1' in body:
            self._round, self._steps = self._round + 1, 0
        assert self._transport is not None
        if self._way.published or b"connection: close" in head.lower():
            self._transport.close()
        pause = random.uniform(0.5, 1.5) * self._think_s
        loop = asyncio.get_running_loop()
        if pause:
            loop.call_later(pause, self.ask)
        else:
            loop.call_soon(self.ask)

    def stop(self) -> None:
        """Asks no more."""
        self.running = False
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """A connection that ends before the answer is an error; the query is asked again."""
        self._transport = None
        if error is not None:
            self._failed()

    def _failed(self) -> None:
        self.errors += 1
        self._steps -= 1
        asyncio.get_running_loop().call_later(0.01, self.ask)


async def load(port: int, way: Way, clients: int, think_s: float, seconds: float) -> Result:
    """Lets a job of `clients` workers ask for so long."""
    job = f"benchmark-{time.time_ns()}"
    if way.name != "floor":
        await asyncio.to_thread(begin_job, port, job, clients)
    workers = [Worker(port, way, rank, job, think_s) for rank in range(clients)]
    for worker in workers:
        worker.ask()
    await asyncio.sleep(WARM_UP_S)
    for worker in workers:
        worker.latencies.clear()
    begin = time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - begin
    answered = [latency for worker in workers for latency in worker.latencies]
    # Connections that a full backlog dropped come back after a second: who still waits counts with its wait so far.
    now = time.perf_counter()
    latencies = sorted([now - worker.begin for worker in workers if worker.waits] + answered)
    for worker in workers:
        worker.stop()
    p50, p99 = (latencies[int(len(latencies) * share)] * 1e3 for share in (0.5, 0.99))
    return Result(len(answered) / took, p50, p99, sum(worker.errors for worker in workers))


def begin_job(port: int, job: str, num_workers: int) -> None:
    """Sends the RESET. The published way asks in the same job: its messages name none."""
    message: dict[str, Any] = {"msg_type": "RESET", "sender": "benchmark", "job": job, "num_workers": num_workers}
    body = json.dumps(message | {"policy": "journal"}).encode()
    request = urllib.request.Request(f"http://{HOST}:{port}/message/", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


@contextlib.contextmanager
def server(way: Way) -> Iterator[int]:
    """A running server; yields its port."""
    with socket.create_server((HOST, 0)) as probe:
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, *way.command, f"{HOST}:{port}"],
        cwd=FOLDER, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        wait_for(port)
        yield port
    finally:
        process.kill()
        process.wait()


def wait_for(port: int) -> None:
    """Waits until somebody listens."""
    for _ in range(300):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the server did not start")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5, help="alternations")
    parser.add_argument("--clients", default="1,32,200", help="numbers of clients without a pause between queries")
    parser.add_argument("--think", type=float, default=0.03, help="pause of 200 more clients in seconds; 0: none")
    given = parser.parse_args()
    loads = [(int(count), 0.0) for count in given.clients.split(",")]
    loads += [(200, given.think)] if given.think else []
    print(COLUMNS.format("clients", "pause", "server", "queries/s", "p50 (ms)", "p99 (ms)", "errors"))
    with contextlib.ExitStack() as stack:
        ports = {way: stack.enter_context(server(way)) for way in WAYS}
        for clients, think_s in loads:
            results: dict[Way, list[Result]] = {way: [] for way in WAYS}
            for _ in range(given.rounds):
                for way, port in ports.items():
                    results[way].append(asyncio.run(load(port, way, clients, think_s, given.seconds)))
            for way in WAYS:
                speed, p50, p99, errors = (statistics.median(column) for column in zip(*results[way], strict=True))
                pause = f"{think_s * 1e3:g} ms"
                print(COLUMNS.format(clients, pause, way.name, f"{speed:.0f}", f"{p50:.2f}", f"{p99:.2f}", int(errors)))


if __name__ == "__main__":
    main()
