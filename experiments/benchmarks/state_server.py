"""Queries a second of the state server, their latency and their cost: in production, and as published.

    python experiments/benchmarks/state_server.py [--clients 1,32,200] [--rounds 4] [--seconds 1.5] [--ways "NAME;NAME"]
    python experiments/benchmarks/state_server.py --messages 1000000

All servers are started once and measured in turn, several times, so that other load slows all alike; printed are
medians. Each client is a worker that asks, waits for the answer, and asks again at once.

    published            a stand-in of the published program (tests/helpers/published_program.py) on Django's runserver,
                         form-encoded, a new connection for each question, as its workers ask
    runserver            `manage.py runserver` of this project, POST /message/, kept connections (not by default)
    production           `manage.py serve`, POST /message/, kept connections
    production, anew     the same, a new connection for each question
    production, /apply/  the same server asked as the published one, kept connections
    ceiling              a server in C that answers a constant: the limit of the load generator (load.c)

Every question is decided by the rule: worker 0 has reported a step of a day, so all others are told to train on, after
the whole comparison, with one more local step each time. An answer to aggregate counts as an error, since later answers
of that round would be repeated without a decision; so do connections that fail, answers other than 200, and questions
without an answer within 3 s after the end. Generator and server share this machine.

With --messages: only the production server's memory while this number of questions is answered.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from experiments.benchmarks import process_stat
from experiments.benchmarks.process_stat import HOST
from flag_parser import FlagParser
from scripts.launch.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
HERE, PUBLISHED = Path(__file__).resolve().parent, ROOT / "tests" / "helpers" / "published_program.py"
JSON_TYPE = "application/json"
FORM_TYPE = "application/x-www-form-urlencoded"

STEP_S = 0.03  # the workers' reported time of a local step
SLOWEST_STEP_S = 86_400.0  # that of worker 0, for which the others never wait
WARM_UP_S = 0.3
CONNECTING_S = 0.0007  # more of it for each client: a server that answers others meanwhile accepts them slowly
ERRORS = ("refused", "lost", "bad_status", "short_cuts", "unanswered")
MEMORY_CLIENTS = 32
MEMORY_PARTS = 10
COLUMNS = "{:>7}  {:<20} {:>10} {:>7} {:>9} {:>9} {:>10} {:>7}"
MEMORY_COLUMNS = "{:>9} {:>9} {:>10}"


@dataclass(frozen=True)
class Way:
    """A server and how it is asked.

    Attributes:
        server: several ways may share one.
        published: through the form-encoded endpoints.
        keeps: one connection for all questions of a client.
    """

    name: str
    server: str
    published: bool = False
    keeps: bool = True


WAYS = (
    Way("published", "published", published=True, keeps=False),
    Way("runserver", "runserver"),
    Way("production", "production"),
    Way("production, anew", "production", keeps=False),
    Way("production, /apply/", "production", published=True),
    Way("ceiling", "ceiling"),
)
NOT_BY_DEFAULT = ("runserver",)


class Result(NamedTuple):
    """One measurement."""

    queries_per_s: float
    p50_ms: float
    p99_ms: float
    cpu_us: float  # of the server, for each message
    errors: int


@dataclass
class Server:
    """A running server. `steps` has its workers' current local step, by job."""

    port: int
    pid: int
    steps: dict[str, int] = field(default_factory=lambda: defaultdict(lambda: 1))


def command_of(server: str, constant: str, port: int) -> list[str]:
    """The command that starts a server."""
    address = f"{HOST}:{port}"
    return {
        "published": [sys.executable, str(PUBLISHED), "runserver", "--noreload", address],
        "runserver": [sys.executable, "manage.py", "runserver", "--noreload", address],
        "production": [sys.executable, "manage.py", "serve", address],
        "ceiling": [constant, str(port)],
    }[server]


@contextlib.contextmanager
def running(name: str, constant: str) -> Iterator[Server]:
    """A server that ends with the block."""
    (port,) = free_ports(1)
    process = process_stat.start(command_of(name, constant, port), ROOT / "SimpleStateServer", port)
    try:
        yield Server(port, process.pid)
    finally:
        process.kill()
        process.wait()


def post(port: int, path: str, body: str, content_type: str) -> None:
    """Sends one message and expects a 200."""
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", body.encode(), {"Content-Type": content_type})
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


def begin_job(server: Server, way: Way, clients: int) -> str:
    """Begins a job of the clients and a slowest worker, or continues it; returns its id."""
    job = f"benchmark-{clients}"
    if way.server == "ceiling":
        return job
    if way.published:
        # The published way has no ids: each begin replaces the job before. With k=0 worker 0's step time counts, and
        # neither it nor the others are told to aggregate.
        slowest = {"r": 0, "k": 0, "c": SLOWEST_STEP_S, "te": time.time()}
        post(server.port, "/init/", urllib.parse.urlencode({"num_workers": clients + 1}), FORM_TYPE)
        post(server.port, "/apply/", urllib.parse.urlencode(slowest), FORM_TYPE)
        return job
    head = {"sender": "benchmark", "job": job}
    status = {"rank": 0, "round": 1, "computation_time": SLOWEST_STEP_S}
    for message in (
        {"msg_type": "RESET", "num_workers": clients + 1, "policy": "journal", "resumed": 0},
        {"msg_type": "REPORT", "status": status},
    ):
        post(server.port, "/message/", json.dumps({**head, **message}), JSON_TYPE)
    return job


def question(way: Way, job: str) -> tuple[str, str, str, str]:
    """Path, content type and body of a worker's query, and the text that its answer must not contain. load.c replaces
    %r by the rank and %k by the local step."""
    if way.published:
        return "/apply/", FORM_TYPE, f"r=%r&k=%k&c={STEP_S}&te={time.time()}", '"ready": 1'
    status = (
        f'{{"rank": %r, "local_iteration": %k, "round": 1, "computation_time": {STEP_S}, '
        f'"transmission_time": 0.01, "timestamp": {time.time()}}}'
    )
    total = '{"steps": %k, "samples": %k, "computing": %k}'
    body = (
        f'{{"sender": "worker-%r", "receiver": "state-server", "job": "{job}", "msg_type": "QUERY", '
        f'"status": {status}, "samples": 64, "elapsed": 12.345, "total": {total}}}'
    )
    return "/message/", JSON_TYPE, body, '"SYNC"'


def load(
    program: str, server: Server, way: Way, clients: int, seconds: float, warm_up_s: float, messages: int = 0
) -> tuple[Result, dict[str, Any]]:
    """Measures `clients` workers for `seconds`, or for `messages`; returns also load.c's own numbers."""
    job = begin_job(server, way, clients)
    first = 1 if way.published else server.steps[job]
    numbers = (server.port, clients, seconds, warm_up_s, int(way.keeps), first, messages)
    before = process_stat.cpu_s(server.pid)
    finished = subprocess.run(
        [program, *map(str, numbers), *question(way, job)], check=True, capture_output=True, text=True
    )
    used = process_stat.cpu_s(server.pid) - before
    said: dict[str, Any] = json.loads(finished.stdout)
    server.steps[job] = said["last_step"] + 1
    cpu_us = used / said["done"] * 1e6 if said["done"] else float("nan")
    return Result(said["per_s"], said["p50_ms"], said["p99_ms"], cpu_us, sum(said[name] for name in ERRORS)), said


def speeds(program: str, constant: str, given: argparse.Namespace) -> None:
    """The table of the ways."""
    ways = [way for way in WAYS if way.name in given.ways]
    print(COLUMNS.format("clients", "way", "queries/s", "ratio", "p50 (ms)", "p99 (ms)", "CPU us/msg", "errors"))
    own = 0.0
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(running(name, constant)) for name in {way.server for way in ways}}
        for clients in given.clients:
            results: dict[Way, list[Result]] = {way: [] for way in ways}
            for _ in range(given.rounds):
                for way in ways:
                    warm_up_s = WARM_UP_S + CONNECTING_S * clients
                    result, said = load(program, servers[way.server], way, clients, given.seconds, warm_up_s)
                    results[way].append(result)
                    if way.server == "ceiling":
                        own = said["own_cpu_us"]
            first = statistics.median(result.queries_per_s for result in results[ways[0]])
            for way in ways:
                speed, p50, p99, cpu, _ = map(statistics.median, zip(*results[way], strict=True))
                errors = sum(result.errors for result in results[way])
                ratio = f"{speed / first:.1f}" if first else "-"
                figures = (f"{speed:.0f}", ratio, f"{p50:.2f}", f"{p99:.2f}", f"{cpu:.0f}", errors)
                print(COLUMNS.format(clients, way.name, *figures), flush=True)
    print(f"\nratio: to {ways[0].name}. Medians of {given.rounds} alternations of {given.seconds:g} s; errors of all.")
    if own:
        print(f"The load generator itself costs {own:.1f} us a message at the ceiling.")


def memory(program: str, constant: str, messages: int) -> None:
    """The production server's memory over many messages."""
    (way,) = (way for way in WAYS if way.name == "production")
    print(MEMORY_COLUMNS.format("messages", "RSS (MB)", "queries/s"))
    with running(way.server, constant) as server:
        load(program, server, way, MEMORY_CLIENTS, WARM_UP_S, WARM_UP_S)  # with all late imports
        print(MEMORY_COLUMNS.format(0, f"{process_stat.resident_mb(server.pid):.1f}", "-"), flush=True)
        for part in range(1, MEMORY_PARTS + 1):
            some = messages * part // MEMORY_PARTS - messages * (part - 1) // MEMORY_PARTS
            result, said = load(program, server, way, MEMORY_CLIENTS, 3600, 0, some)
            if said["done"] < some or result.errors:
                sys.exit(f"error: {said['done']} of {some} messages were answered, {result.errors} errors: {said}")
            now, pace = f"{process_stat.resident_mb(server.pid):.1f}", f"{result.queries_per_s:.0f}"
            print(MEMORY_COLUMNS.format(messages * part // MEMORY_PARTS, now, pace), flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    names = [way.name for way in WAYS]
    parser = FlagParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=counts, default=[1, 32, 200, 1000], help="1,32,200,1000")
    parser.add_argument("--rounds", type=int, default=4, help="alternations")
    parser.add_argument("--seconds", type=float, default=1.5, help="of each measurement")
    some, words = [name for name in names if name not in NOT_BY_DEFAULT], f"with semicolons, of {'; '.join(names)}"
    parser.add_argument("--ways", default=some, type=lambda text: text.split(";"), help=words)
    parser.add_argument("--messages", type=int, default=0, help="only measure memory, over this number of messages")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.ways if name not in names]:
        parser.error(f"--ways has {unknown[0]!r}; choose from {'; '.join(names)}")
    if given.rounds < 1 or given.seconds <= 0 or given.messages < 0:
        parser.error("give at least one round, a time above 0 and no negative number of messages")
    return given


def counts(text: str) -> list[int]:
    """Parses numbers of clients."""
    values = [int(part) for part in text.split(",")]
    if not all(1 <= value <= 10_000 for value in values):
        raise argparse.ArgumentTypeError(f"{text!r}: give whole numbers from 1 to 10000, with commas")
    return values


def main(arguments: Sequence[str] | None = None) -> None:
    """The command."""
    given = parse(arguments)
    process_stat.allow_many_files()
    with process_stat.compiled(HERE / "load.c", HERE / "constant.c") as (program, constant):
        if given.messages:
            memory(program, constant, given.messages)
        else:
            speeds(program, constant, given)


if __name__ == "__main__":
    start.run(main)
