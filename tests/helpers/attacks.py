"""What strangers, or programs gone wrong, may do to the state server; all of it on this machine.

An attack is called with a Target, does what it does until it is done or the target's time is up, lets go of its
connections, and returns in a few words how the server took it.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import json
import random
import selectors
import socket
import string
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

HOST = "127.0.0.1"
STRANGER = "127.0.0.2"  # Linux has the whole network 127.0.0.0/8: a host of its own to a server that counts addresses
TIMEOUT_S = 10.0
SHORT_S = 2.0  # for an answer that may never come
PIECE = b"\0" * (1 << 20)
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

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> str:
        """Sends one request; returns the answer's status, or what happened in its place."""
        connection = http.client.HTTPConnection(HOST, self.port, TIMEOUT_S, (self.source, 0))
        try:
            connection.request("POST", path, body, dict(headers))
            return str(connection.getresponse().status)
        except (OSError, http.client.HTTPException) as problem:
            return _short(problem)
        finally:
            connection.close()


Attack = Callable[[Target], str]


def _short(problem: BaseException) -> str:
    if isinstance(problem, (ConnectionResetError, BrokenPipeError)):
        return "reset"
    return "no answer" if isinstance(problem, TimeoutError) else type(problem).__name__


def told(counts: Mapping[str, int]) -> str:
    """Counts in words, the most frequent first."""
    return ", ".join(f"{name} x{count}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


# ------------------------------------------------------------------------------------- connections that do not go on


def crowd(count: int, beginning: bytes) -> Attack:
    """So many connections, each of which sends the same beginning of a request and then nothing."""

    def attack(target: Target) -> str:
        with _Crowd(target, beginning) as members:
            members.open(count)
            while not target.over.is_set():
                members.look()
                if members.in_place:
                    target.in_place.set()
            return members.told()

    return attack


class _Crowd:
    """Connections of one thread."""

    def __init__(self, target: Target, beginning: bytes) -> None:
        self._target, self._beginning = target, beginning
        self._selector = selectors.DefaultSelector()
        self._fates: Counter[str] = Counter()
        self._begun = time.monotonic()
        self._last_closed_s = 0.0
        self._pending = 0  # connections that are being made

    @property
    def in_place(self) -> bool:
        """Whether each connection stands, or has failed."""
        return not self._pending

    def __enter__(self) -> _Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._selector.get_map().values()):
            self._drop(key.fileobj)
        self._selector.close()

    def open(self, count: int) -> None:
        """Begins to open connections; looks at those that are open now and then."""
        for number in range(count):
            member = socket.socket()
            member.setblocking(False)
            # The kernel picks the port when it connects: then the same one may serve towards several servers.
            member.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            member.bind((self._target.source, 0))
            if member.connect_ex((HOST, self._target.port)) not in (0, errno.EINPROGRESS):
                self._fates["refused"] += 1
                member.close()
                continue
            self._selector.register(member, selectors.EVENT_WRITE)
            self._pending += 1
            if number % 100 == 99:
                self.look(0)

    def look(self, timeout_s: float = 0.05) -> None:
        """Sends the beginning where a connection stands, and sees which ones the server has ended."""
        for key, events in self._selector.select(timeout_s):
            member = key.fileobj
            assert isinstance(member, socket.socket)
            try:
                if events & selectors.EVENT_WRITE:
                    self._pending -= 1
                    member.send(self._beginning)
                    self._selector.modify(member, selectors.EVENT_READ)
                else:
                    said = member.recv(4096)
                    fate = said.split(b" ", 2)[1].decode() if said.startswith(b"HTTP/1.") else "closed"
                    self._end(member, fate)
            except OSError as problem:
                self._end(member, _short(problem))

    def _end(self, member: socket.socket, fate: str) -> None:
        self._fates[fate] += 1
        self._last_closed_s = time.monotonic() - self._begun
        self._drop(member)

    def _drop(self, member: object) -> None:
        assert isinstance(member, socket.socket)
        self._selector.unregister(member)
        member.close()

    def told(self) -> str:
        """What became of the connections."""
        if still := len(self._selector.get_map()):
            self._fates["open"] += still
        ended = f"; the last after {self._last_closed_s:.1f} s" if self._last_closed_s else ""
        return told(self._fates) + ended


def half_bodies(count: int, length: int = 65_537, sent: bytes = b"{") -> Attack:
    """Requests whose body does not arrive."""
    head = f"POST /message/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    return crowd(count, head.encode() + sent)


def half_heads(count: int) -> Attack:
    """Requests whose head does not end."""
    return crowd(count, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: ")


def idle_connections(count: int) -> Attack:
    """Connections on which nothing comes."""
    return crowd(count, b"")


# ------------------------------------------------------------------------------------------------- too much, and noise


def upload(target: Target, announced: int = 1 << 30) -> str:
    """A body of 1 GB, sent as fast as it is taken."""
    sent, said = 0, b""
    with target.connect() as connection:
        try:
            connection.sendall(
                f"POST /message/ HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                f"Content-Length: {announced}\r\n\r\n".encode()
            )
            while sent < announced and not target.over.is_set():
                sent += connection.send(PIECE[: announced - sent])
            end = "all sent"
        except OSError as problem:
            end = _short(problem)
        with contextlib.suppress(OSError):
            connection.settimeout(SHORT_S)
            said = connection.recv(4096)
    status = said.split(b" ", 2)[1].decode() if said.startswith(b"HTTP/1.") else "no answer"
    return f"{sent / 1e6:.1f} MB taken, {end}, {status}"


def double_names(count: int, names: int = 8_175) -> Attack:
    """Messages of 64 KB in which the last one of thousands of names was there before."""
    letters = string.ascii_letters + string.digits
    some = [f"{one}{two}{three}" for one in letters[:10] for two in letters for three in letters][: names - 1]
    body = ("{" + ",".join(f'"{name}":1' for name in [*some, some[-1]]) + "}").encode()

    def attack(target: Target) -> str:
        return _all(target, lambda: target.post("/message/", body, JSON_HEAD), count)

    return attack


def random_requests(count: int, seed: int = 0) -> Attack:
    """Random bytes, methods, paths, forms and JSON."""

    def attack(target: Target) -> str:
        source = random.Random(seed)
        return _all(target, lambda: _throw(target, random_request(source)), count)

    return attack


def _all(target: Target, send: Callable[[], str], count: int) -> str:
    fates: Counter[str] = Counter()
    worst = 0.0
    for _ in range(count):
        if target.over.is_set():
            break
        begin = time.monotonic()
        fates[send()] += 1
        worst = max(worst, time.monotonic() - begin)
    return f"{told(fates)}; the slowest {worst * 1e3:.0f} ms"


def _throw(target: Target, request: bytes) -> str:
    try:
        with target.connect(SHORT_S) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            said = connection.recv(4096)
        return said.split(b" ", 2)[1].decode("ascii", "replace")[:3] if said.startswith(b"HTTP/1.") else "closed"
    except OSError as problem:
        return _short(problem)


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
    """One request, or what looks a little like one."""
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


# ---------------------------------------------------------------------------------------------- messages that mean harm


def posts(*requests: tuple[str, str, Mapping[str, str]], times: int = 1) -> Attack:
    """Requests one after the other, each a path, a body and headers."""

    def attack(target: Target) -> str:
        fates: Counter[str] = Counter()
        for _ in range(times):
            for path, body, headers in requests:
                fates[f"{path} {target.post(path, body.encode(), headers)}"] += 1
        return told(fates)

    return attack


def other_jobs(count: int) -> Attack:
    """RESETs of so many other jobs, as a second user of the default port begins one."""

    def attack(target: Target) -> str:
        fates: Counter[str] = Counter()
        for number in range(count):
            message = {
                "msg_type": "RESET",
                "sender": "worker-0",
                "job": f"other-{number}",
                "num_workers": 2,
                "policy": "journal",
            }
            fates[target.post("/message/", json.dumps(message).encode(), JSON_HEAD)] += 1
        return told(fates)

    return attack


CROSS_SITE = {"Origin": "http://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
RESET_TEXT = '{"msg_type": "RESET", "sender": "page", "job": "page", "num_workers": 1, "policy": "journal"}'

empty_init = posts(("/init/", "", {}))
stray_resets = posts(
    ("/reset/", "r=0&t=1000000000&te=1", FORM_HEAD),
    ("/init/", "num_workers=2", FORM_HEAD),
    ("/reset/", "r=0&t=1000000000&te=1", FORM_HEAD),
    ("/reset/", "r=1&t=1000000000&te=1", FORM_HEAD),
)
cross_site = posts(
    ("/message/", RESET_TEXT, {"Content-Type": "text/plain", **CROSS_SITE}),
    ("/message/", RESET_TEXT, {**JSON_HEAD, **CROSS_SITE}),
    ("/init/", "num_workers=2", {**FORM_HEAD, **CROSS_SITE}),
    ("/init/", "", CROSS_SITE),
    ("/message/", RESET_TEXT, {"Content-Type": "text/plain"}),
)
