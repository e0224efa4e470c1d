"""The state server in its one loop: how it starts and ends, and that it answers its workers whatever strangers, or
programs gone wrong, send or leave unsent."""

import contextlib
import json
import random
import select
import signal
import socket
import string
import subprocess
import sys
import threading
import time

import pytest
import requests
from cluster_processes import ROOT
from state_server_process import clients, query, report, running_state_server

from experiments.fault_drill.drilled_job import kib
from utils import allow_open_files

SERVE = ("serve",)
SOON_S = 5.0  # generous for an answer that takes a millisecond: these machines are shared
DEADLINE_S = 15.0
FORM = "application/x-www-form-urlencoded"
STRANGER = "127.0.0.2"  # Linux has the whole network 127.0.0.0/8: a host of its own to a server that counts addresses


@pytest.fixture(scope="module")
def server(state_server):
    allow_open_files(2000)  # of the strangers
    return state_server


def connect(server, source=STRANGER, timeout_s=10.0):
    return socket.create_connection(("127.0.0.1", server.port), timeout_s, (source, 0))


def assert_workers_are_answered(server):
    """A new worker begins a job, asks and is answered; all of it soon, on new connections too."""
    for _ in range(5):
        begin = time.monotonic()
        assert requests.get(f"{server.url}/healthz", timeout=DEADLINE_S).status_code == 200
        assert time.monotonic() - begin < SOON_S
    begin = time.monotonic()
    assert_job_goes_on(clients(server, 1))
    assert time.monotonic() - begin < SOON_S


def assert_job_goes_on(its_clients):
    """A fast worker goes on once the slow ones have told their step times."""
    fast, *slow = its_clients
    assert all(query(client, 1, 1, 5.0, 0.0) for client in slow)
    assert query(fast, 1, 1 + len(slow), 0.1, 0.0) is True


def head_of_body(length):
    about = f"Content-Type: application/json\r\nContent-Length: {length}"
    return f"POST /message/ HTTP/1.1\r\nHost: x\r\n{about}\r\n\r\n".encode()


@pytest.mark.parametrize(
    ("count", "beginning"),
    [
        (1, head_of_body(65_537) + b"{"),  # one byte longer than is allowed
        (1, head_of_body(100) + b"{"),
        (300, head_of_body(65_537) + b"{"),
        (300, head_of_body(100) + b"{"),
        (300, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "),
        (300, b""),
    ],
    ids=["a half body", "a small half body", "300 half bodies", "300 small half bodies", "300 half heads", "300 idle"],
)
def test_connections_that_do_not_go_on_stop_nobody(server, count, beginning):
    with contextlib.ExitStack() as connections:
        for _ in range(count):
            with contextlib.suppress(OSError):  # the server has ended it
                connections.enter_context(connect(server)).sendall(beginning)
        assert_workers_are_answered(server)


@pytest.fixture(scope="module")
def hasty_server():
    """With bounds that a test can reach."""
    hasty = (*SERVE, "--request-timeout", "0.2", "--max-connections-per-address", "5")
    with running_state_server(command=hasty) as running:
        yield running


@pytest.mark.parametrize("beginning", [b"", b"POST /message/ HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n"])
def test_a_request_that_comes_a_byte_at_a_time_is_given_up(hasty_server, beginning):
    with requests.Session() as idle:
        assert idle.get(f"{hasty_server.url}/healthz", timeout=DEADLINE_S).status_code == 200
        begin = time.monotonic()
        with connect(hasty_server) as connection, contextlib.suppress(ConnectionResetError):
            connection.sendall(beginning or b"GET /")
            while not select.select([connection], [], [], 0.02)[0]:
                assert time.monotonic() - begin < DEADLINE_S
                connection.sendall(b"x")
        assert time.monotonic() - begin < 9  # the default time-out is 10 s
        assert idle.get(f"{hasty_server.url}/healthz", timeout=DEADLINE_S).status_code == 200


def test_of_too_many_connections_the_one_that_was_silent_for_longest_goes(hasty_server):
    with contextlib.ExitStack() as stack:
        first, *others = (stack.enter_context(connect(hasty_server)) for _ in range(5))
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        for speaks in (first, *others, first):  # so all are there, and the second one was silent for longest
            speaks.sendall(request)
            assert speaks.recv(4096).startswith(b"HTTP/1.1 200 ")
        sixth = stack.enter_context(connect(hasty_server))
        assert others[0].recv(4096) == b""
        for alive in (first, *others[1:], sixth):
            alive.sendall(request)
            assert alive.recv(4096).startswith(b"HTTP/1.1 200 ")
        elsewhere = stack.enter_context(connect(hasty_server, source="127.0.0.3"))
        elsewhere.sendall(request)
        assert elsewhere.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_a_body_that_is_too_long_is_refused_before_it_has_come(server):
    """One of 1 GB, sent as fast as it is taken."""
    before, taken = kib(server.process.pid), []

    def upload():
        with connect(server) as connection, contextlib.suppress(OSError):
            connection.sendall(head_of_body(1 << 30))
            while sum(taken) < 1 << 30:
                taken.append(connection.send(bytes(1 << 20)))

    stranger = threading.Thread(target=upload, daemon=True)
    stranger.start()
    assert_workers_are_answered(server)
    stranger.join(DEADLINE_S)
    assert not stranger.is_alive(), "1 GB is still being taken"
    assert sum(taken) < 50e6  # what buffers hold
    assert kib(server.process.pid) < before + 50_000


# fmt: off
VERSIONS = ("1.1", "1.1", "1.1", "1.1", "1.1", "1.1", "1.1", "1.1", "1.0", "2.0", "9")
METHODS = ("GET", "GET", "POST", "POST", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE",
           "CONNECT", "get", "P\0ST")
PATHS = ("/", "/message/", "/init/", "/apply/", "/reset/", "/status.json", "/metrics", "/healthz", "/jobs/x/", "*",
         "//", "/%00", "/..")
NAMES = ("msg_type", "sender", "receiver", "job", "status", "num_workers", "policy", "r", "t", "k", "c", "te", "total")
WORDS = ("RESET", "REPORT", "QUERY", "RESPONSE", "journal", "worker-0", "state-server", "NaN", "1e999", "-1", "", "\0")
STRANGE_HEADERS = ("Transfer-Encoding: chunked", "Expect: 100-continue", "Upgrade: h2c", "Connection: close")
# fmt: on


def random_request(source: random.Random) -> bytes:
    """A request, or what looks a little like one."""
    if source.random() < 0.2:
        return source.randbytes(source.randrange(1, 2000))
    body = _random_body(source)
    length: object = len(body) if source.random() < 0.8 else source.choice((0, 1, -1, 10**6, 10**30, "x", "1, 2", "+3"))
    lines = [
        f"{source.choice(METHODS)} {_random_path(source)} HTTP/{source.choice(VERSIONS)}",
        f"Host: {source.choice(('x', '', '127.0.0.1', 'a' * 300))}",
        f"Content-Type: {source.choice(('application/json', FORM, 'text/plain', ''))}",
        f"Content-Length: {length}",
    ]
    if source.random() < 0.1:
        lines.append(source.choice(STRANGE_HEADERS))
    if source.random() < 0.1:
        lines.append(f"X-{source.randrange(10**6)}: " + "y" * source.randrange(100_000))
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "replace") + body


def _random_path(source: random.Random) -> str:
    if source.random() < 0.7:
        return source.choice(PATHS)
    return "/" + "".join(source.choices(string.printable.strip() + "é", k=source.randrange(200)))


def _random_body(source: random.Random) -> bytes:
    kind = source.random()
    if kind < 0.2:
        return source.randbytes(source.randrange(200))
    if kind < 0.3:
        return b"[" * source.randrange(60_000)
    if kind < 0.5:
        return "&".join(f"{source.choice(NAMES)}={source.choice(WORDS)}" for _ in range(source.randrange(8))).encode()
    return json.dumps(_random_value(source, 0)).encode()


def _random_value(source: random.Random, depth: int) -> object:
    if depth < 3 and source.random() < 0.6:
        return {source.choice(NAMES): _random_value(source, depth + 1) for _ in range(source.randrange(8))}
    return source.choice((*WORDS, None, True, 0, 1, -1, 1e300, 10**40, [], [[]], float("nan"), source.random()))


def thrown(server, request):
    """The status of the answer to a request, or to what looks like one; empty where there is none."""
    with contextlib.suppress(OSError), connect(server, timeout_s=2.0) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        said = connection.recv(4096)
        return said.split(b" ", 2)[1][:3] if said.startswith(b"HTTP/1.") else b""
    return b""


def test_a_running_job_outlives_random_requests(server):
    fast, slow = clients(server, 2)
    assert query(fast, 1, 1, 0.1, 0.0) is False  # waits for the other one's step time
    source = random.Random(7)
    statuses = {thrown(server, random_request(source)) for _ in range(500)}
    assert b"200" in statuses and b"500" not in statuses
    assert_job_goes_on((fast, slow))
    report(fast, 2, 0.1, 0.0)
    assert "Traceback" not in server.log.read_text()


def test_half_a_form_is_no_form(server):
    (alone,) = clients(server, 1)
    head = b"POST /init/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + b"Content-Length: 99\r\n\r\nnum_workers=1")
    assert query(alone, 1, 1, 0.1, 0.0) is True  # the job is still there
    assert requests.get(server.url, timeout=10).json()["job"] == alone.job


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_at_once_and_quietly(number):
    with running_state_server(command=SERVE) as running:
        running.process.send_signal(number)
        assert running.process.wait(10) == 0
        assert len(running.log.read_text().splitlines()) == 1  # where it listened


def test_the_launch_script_starts_it_and_a_port_in_use_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        finished = subprocess.run(
            [str(ROOT / "scripts" / "state_server.sh")],
            env={"PATH": "/usr/bin:/bin", "VENV": sys.prefix, "STATE_SERVER_PORT": str(taken.getsockname()[1])},
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
    assert finished.returncode == 2
    (line,) = finished.stderr.splitlines()
    assert line.startswith("error: ") and "STATE_SERVER_PORT" in line
