"""A process's connection to the one at which a job's processes meet: the hub, or the scheduler of MXNet's kvstore.

Both show each other that they know the job's token before either believes a length:

    process: HELLO                               server: {"welcome": its id, "challenge": bytes; empty without a token}
    process: {"nonce", "proof", "to": its kind}  server: {"proof"}

Either side tells a plain MXNet program from a process of ours by its first bytes (ZeroMQ's begin with 0xff), so both
can be in a job of the kvstore, without the checks of the rendezvous for the plain one.
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable

from esync.http import is_readable
from esync.protocol import NoAnswer
from server.log_limit import LogLimit
from trainer.hub.frames import LENGTH, NotAFrame, length_in, outgoing, read
from trainer.hub.server_part import Arrays, Message
from trainer.rendezvous.cluster import ClusterSpec
from utils import EXIT_OK, EXIT_SETUP, JobError, JobOver, PeerLost, SetupError, printable

# A ZeroMQ greeting with a padding of its own: MXNet's scheduler just takes it for an unfinished connection.
HELLO = b"\xffESyncJob\x7f"
HUB, SCHEDULER = "hub", "scheduler"  # kinds of servers
ZERO_MQ = b"\xff"  # the first byte of each side of a ZeroMQ connection
TICK_S = 0.25  # between two looks at other things, while a process waits for a message
CONNECT_S = 5.0
TELL_S = 2.0
RETRY_S = 0.2
BEAT_S = 1.0  # between two signs of life
SILENT_S = 8.0  # without one, or without a connection to a port
SILENT = "it is frozen, or its host or network is down"
GONE = "is gone: it was killed or has crashed"
SAME_TOKEN = "set the same in every process of the job"
# Seconds (macOS has TCP_KEEPALIVE in place of TCP_KEEPIDLE), and number of probes.
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 8}

log = logging.getLogger(__name__)  # of all that strangers can cause
log.addFilter(LogLimit())


class PlainScheduler(Exception):
    """The scheduler is a plain MXNet program."""


class Silent(OSError):
    """The other side is silent. The text says who, and for how long."""


def how_lost(name: str, error: Exception) -> str:
    """How the connection with a process has ended, in words."""
    if isinstance(error, Silent):
        return str(error)
    if isinstance(error, (EOFError, ConnectionResetError, BrokenPipeError)):
        return f"{name} {GONE}"
    if isinstance(error, OSError):
        return f"no sign of life from {name} ({error.strerror or error}): {SILENT}"
    return f"{name} ended: {error}"


def error_of_end(said: Message) -> JobError:
    """What the message "end" means for the process that gets it."""
    kinds: dict[int, type[JobError]] = {EXIT_SETUP: SetupError, EXIT_OK: JobOver}
    return kinds.get(said["code"], PeerLost)(said["end"])


def own_token() -> bytes:
    """ESYNC_TOKEN, which every process of a job has, or none."""
    return os.environb.get(b"ESYNC_TOKEN", b"")


def proof(token: bytes, side: bytes, challenge: str, nonce: str) -> str:
    """Shows that a side of this one connection knows the token: of random bytes that each of both has drawn."""
    return hmac.digest(token, side + challenge.encode() + nonce.encode(), "sha256").hex()


def proves(shown: Message, token: bytes, side: bytes, challenge: str, nonce: str) -> bool:
    """Whether the other side has shown it."""
    given, expected = str(shown.get("proof", "")), proof(token, side, challenge, nonce)
    return hmac.compare_digest(given.encode(), expected.encode())


def local_name(address: str, port: int) -> str:
    """Of the hub's Unix socket, which workers of its own host use; no file stands for it."""
    return f"\0esync-hub-{address}-{port}"


def set_up(connection: socket.socket) -> None:
    """Sends small messages at once, and keeps an idle connection alive in routers' tables. Ends it where bytes are not
    acknowledged for SILENT_S; on a system that cannot do that, after two minutes without the other side."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(SILENT_S * 1000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def server_name(cluster: ClusterSpec) -> str:
    """Of the process at which a job meets, for messages."""
    return f"the {HUB if cluster.has_hub else SCHEDULER} at {cluster.root_uri}:{cluster.root_port}"


class Wire:
    """One connection: frames out and in."""

    def __init__(self, cluster: ClusterSpec, timeout_s: float, mode: str = "") -> None:
        """`mode` is the hub's. Raises NoAnswer where the server is not there, SetupError where something else is, or
        another token, PlainScheduler where MXNet's own scheduler is."""
        self._kind, self._mode = HUB if cluster.has_hub else SCHEDULER, mode
        self._address = f"{cluster.root_uri}:{cluster.root_port}"
        self.name = server_name(cluster)
        self._sending = threading.Lock()
        self._broken: OSError | None = None  # why nothing can be sent, which the system tells once
        self.heard = time.monotonic()
        self._socket = _connected(cluster, timeout_s)
        try:
            set_up(self._socket)
            self._socket.settimeout(timeout_s)
            self.own_address = str(self._socket.getsockname()[0]) if self._socket.family == socket.AF_INET else ""
            self.instance = self._greet()  # of the server's process
            self._socket.settimeout(TICK_S)
        except (EOFError, OSError) as error:
            self.close()
            raise NoAnswer(f"the connection was closed at once ({str(error) or 'no answer'})") from None
        except Exception:
            self.close()
            raise

    def _greet(self) -> str:
        token, nonce = own_token(), secrets.token_hex(16)
        self._socket.sendall(HELLO)
        is_plain = self._socket.recv(1, socket.MSG_PEEK) == ZERO_MQ
        if is_plain and self._kind == SCHEDULER and not token:
            raise PlainScheduler
        first, _ = self.receive()
        challenge = str(first.get("challenge", ""))
        self.send({"nonce": nonce, "proof": proof(token, b"process", challenge, nonce), "to": self._kind})
        said, _ = self.receive()
        if "end" in said:
            raise error_of_end(said)
        if (token or challenge) and not proves(said, token, b"server", challenge, nonce):
            raise SetupError(f"{self.name} has another ESYNC_TOKEN, or none: {SAME_TOKEN}")
        return str(first["welcome"])

    @property
    def is_sending(self) -> bool:
        return self._sending.locked()

    def send(self, message: Message, arrays: Arrays = ()) -> None:
        """Raises OSError where the connection is lost, or nothing goes out for long."""
        with self._sending:
            try:
                for piece in outgoing(message, arrays):
                    self._send(memoryview(piece))
            except OSError as error:
                self._broken = error
                raise

    def _send(self, view: memoryview) -> None:
        since = time.monotonic()
        while view:
            try:
                count = self._socket.send(view)
            except TimeoutError as error:
                if error.errno is not None:
                    raise
                self.check(since, "{} takes nothing of a message")
                continue
            view, since = view[count:], time.monotonic()

    def receive(self, on_tick: Callable[[], object] = lambda: None) -> tuple[Message, list[tuple[int, ...]]]:
        """The next message, and the shapes of the arrays that follow. `on_tick` is called while none comes. Raises
        EOFError or OSError where the connection is lost, or the server is silent; SetupError where it is none."""
        try:
            head = bytearray(LENGTH.size)
            self.fill(memoryview(head), on_tick)
            text = bytearray(length_in(head))
            self.fill(memoryview(text))
            return read(text)
        except NotAFrame as error:
            what, remedy = self._kind, "correct DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
            if self._mode:
                what = f"hub of mode {self._mode}"
                remedy = f"start scripts/server.sh -m {self._mode} --exchange hub there, and no scheduler"
            what += " with an ESYNC_TOKEN" * bool(own_token())
            raise SetupError(f"what listens at {self._address} is no {what}: {error}; {remedy}") from None

    def fill(self, view: memoryview, on_tick: Callable[[], object] = lambda: None) -> None:
        while view:
            before = time.monotonic()
            try:
                count = self._socket.recv_into(view)
            except TimeoutError as error:
                if error.errno is not None:
                    raise
                if time.monotonic() - before > SILENT_S / 2:
                    self.heard = time.monotonic()  # this process was frozen
                self.check(self.heard)
                on_tick()
                continue
            if not count:
                raise self._broken or EOFError
            self.heard = time.monotonic()
            view = view[count:]

    def check(self, since: float, what: str = "no sign of life from {}") -> None:
        """Raises Silent where that is long ago."""
        if time.monotonic() - since > SILENT_S:
            raise Silent(f"{what.format(self.name)} for {SILENT_S:g} s: {SILENT}") from None

    def has_news(self) -> bool:
        """Whether something can be read now. Raises EOFError where another thread has closed the connection."""
        try:
            return is_readable(self._socket)
        except ValueError:
            raise EOFError from None

    def close(self) -> None:
        """Closes the connection, and wakes a thread that receives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _connected(cluster: ClusterSpec, timeout_s: float) -> socket.socket:
    """A connection to the server: over a Unix socket to a hub of this user on this host."""
    try:
        host = socket.gethostbyname(cluster.root_uri)
        if cluster.has_hub:
            local = socket.socket(socket.AF_UNIX)
            try:
                local.settimeout(timeout_s)
                local.connect(local_name(host, cluster.root_port))
                _, user, _ = struct.unpack("3i", local.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
                if user != os.getuid():  # anybody can take that name, also where the hub is on another host
                    raise PermissionError
            except OSError:
                local.close()
            else:
                return local
        found = socket.create_connection((host, cluster.root_port), timeout_s)
    except ConnectionRefusedError as error:
        raise NoAnswer(f"{error.strerror}: it is not started yet, or DMLC_PS_ROOT_PORT is wrong") from None
    except (OSError, UnicodeError) as error:  # its host cannot be reached, or has no such name
        what = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", "no name of a host")
        why = "a wrong DMLC_PS_ROOT_URI, a host that is down, or a firewall that closes the port"
        raise NoAnswer(f"{what}: {why}") from None
    if found.getsockname() == found.getpeername():  # where no process listens, it can by chance lead to itself
        found.close()
        raise NoAnswer("nothing listens there yet")
    return found


def tell_failure(cluster: ClusterSpec, why: str, mode: str = "") -> None:
    """Tells the other processes, which would wait for this one, that it ends; without a server it gives up soon."""
    until = time.monotonic() + TELL_S
    while time.monotonic() < until:
        with contextlib.suppress(NoAnswer):
            with (
                contextlib.suppress(EOFError, OSError, JobError, PlainScheduler),
                contextlib.closing(Wire(cluster, TELL_S, mode)) as wire,
            ):
                wire.send({"failed": printable(why)})
                wire.receive()  # the end of the connection shows that it was heard
            return
        time.sleep(RETRY_S)
