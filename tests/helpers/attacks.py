"""What strangers, or programs gone wrong, may do to the state server; all of it on this machine.

An attack is called with a Target, does what it does until it is done or the target's time is up, lets go of its
connections, and returns how the server took it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import string
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HOST = "127.0.0.1"
STRANGER = "127.0.0.2"  # Linux has the whole network 127.0.0.0/8: a host of its own to a server that counts addresses
TIMEOUT_S = 10.0
SHORT_S = 2.0  # for an answer that may never come
JSON_HEAD = {"Content-Type": "application/json"}
FORM_HEAD = {"Content-Type": "application/x-www-form-urlencoded"}


@dataclass
class Target:
    """Where an attack goes.

    Attributes:
        port: of the server, on 127.0.0.1.
        over: set when the attack has to end.
        in_place: set by an attack that holds connections, once each stands or was refused.
        source: address that it comes from.
    """

    port: int
    over: threading.Event = field(default_factory=threading.Event)
    in_place: threading.Event = field(default_factory=threading.Event)
    source: str = STRANGER

    def connect(self, timeout_s: float = TIMEOUT_S) -> socket.socket:
        """A connection to the server."""
        return socket.create_connection((HOST, self.port), timeout_s, (self.source, 0))

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> int:
        """Sends one request; returns the answer's status."""
        connection = http.client.HTTPConnection(HOST, self.port, TIMEOUT_S, (self.source, 0))
        with contextlib.closing(connection):
            connection.request("POST", path, body, dict(headers))
            return connection.getresponse().status


Attack = Callable[[Target], object]


def crowd(count: int, beginning: bytes) -> Attack:
    """So many connections, each of which sends the same beginning of a request and then nothing."""

    def attack(target: Target) -> bool:
        with contextlib.ExitStack() as connections:
            for _ in range(count):
                with contextlib.suppress(OSError):  # the server has ended it
                    connections.enter_context(target.connect()).sendall(beginning)
            target.in_place.set()
            return target.over.wait()

    return attack


def half_bodies(count: int, length: int = 65_537) -> Attack:
    """Requests whose body does not arrive."""
    head = f"POST /message/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    return crowd(count, head.encode() + b"{")


def upload(target: Target, announced: int = 1 << 30) -> list[int]:
    """A body of 1 GB, sent as fast as it is taken; returns how many bytes were."""
    sent, piece = 0, bytes(1 << 20)
    with target.connect() as connection, contextlib.suppress(OSError):
        head = f"POST /message/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {announced}"
        connection.sendall(f"{head}\r\n\r\n".encode())
        while sent < announced and not target.over.is_set():
            sent += connection.send(piece)
    return [sent]


def double_names(target: Target, names: int = 8_175) -> int:
    """A message of 64 KB in which the last one of thousands of names was there before."""
    letters = string.ascii_letters + string.digits
    some = [f"{one}{two}{three}" for one in letters[:10] for two in letters for three in letters][: names - 1]
    body = ("{" + ",".join(f'"{name}":1' for name in [*some, some[-1]]) + "}").encode()
    return target.post("/message/", body, JSON_HEAD)


def random_requests(count: int, seed: int = 0) -> Attack:
    """Random bytes, methods, paths, forms and JSON."""

    def attack(target: Target) -> set[bytes]:
        source = random.Random(seed)
        return {_throw(target, random_request(source)) for _ in range(count)}

    return attack


def _throw(target: Target, request: bytes) -> bytes:
    """The status of the answer; empty where there is none."""
    with contextlib.suppress(OSError), target.connect(SHORT_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        said = connection.recv(4096)
        return said.split(b" ", 2)[1][:3] if said.startswith(b"HTTP/1.") else b""
    return b""


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
        f"Content-Type: {source.choice(('application/json', FORM_HEAD['Content-Type'], 'text/plain', ''))}",
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


def posts(*requests: tuple[str, str, Mapping[str, str]]) -> Callable[[Target], list[int]]:
    """Requests one after the other, each a path, a body and headers."""
    return lambda target: [target.post(path, body.encode(), headers) for path, body, headers in requests]


def _reset(job: str, num_workers: int = 2) -> str:
    about = {"msg_type": "RESET", "sender": "worker-0", "job": job, "num_workers": num_workers, "policy": "journal"}
    return json.dumps(about)


def other_jobs(count: int) -> Attack:
    """RESETs of so many other jobs, as a second user of the default port begins one."""
    return posts(*(("/message/", _reset(f"other-{number}"), JSON_HEAD) for number in range(count)))


CROSS_SITE = {"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "cross-site"}

empty_init = posts(("/init/", "", {}))
stray_resets = posts(
    ("/reset/", "r=0&t=1000000000&te=1", FORM_HEAD),
    ("/init/", "num_workers=2", FORM_HEAD),
    ("/reset/", "r=0&t=1000000000&te=1", FORM_HEAD),
    ("/reset/", "r=1&t=1000000000&te=1", FORM_HEAD),
)
cross_site = posts(
    ("/message/", _reset("page", 1), {"Content-Type": "text/plain", **CROSS_SITE}),
    ("/message/", _reset("page", 1), {**JSON_HEAD, **CROSS_SITE}),
    ("/init/", "num_workers=2", {**FORM_HEAD, **CROSS_SITE}),
    ("/init/", "", CROSS_SITE),
    ("/message/", _reset("page", 1), {"Content-Type": "text/plain"}),
)
