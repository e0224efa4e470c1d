"""The connection of a process to the scheduler: lines of JSON (rendezvous_client.py lists them).

Either side tells a plain MXNet program from a process of ours by its first bytes (ZeroMQ's begin with 0xff), so both
can be in one job, without the checks of the rendezvous for the plain one.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from trainer.collectives.connecting import Acceptor
from trainer.coordinator import state_server_path  # noqa: F401  (the imports below need it)
from trainer.coordinator.protocol import Message, NoAnswer, Reply, Timeouts
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import ClusterSpec
from utils import EXIT_OK, EXIT_SETUP, JobError, JobOver, PeerLost, SetupError, printable

# isort: split
from server.log_limit import LogLimit

# A ZeroMQ greeting with a padding of its own: MXNet's scheduler just takes it for an unfinished connection.
HELLO = b"\xffESyncMXN\x7f"
HELLO_AT_HUB = b"\xffESyncHub\x7f"  # with which a worker begins at a hub
JOB = "mxnet"  # the name of the one job that a scheduler has
CONNECT_S = 5.0
TELL_S = 2.0
RETRY_S = 0.2
SAME_TOKEN = "set the same in every process of the job"
_FREE_PORT = "set PORT to a free one, another for each process of this host, or correct DMLC_INTERFACE"
LONGEST_LINE = 1 << 22  # bytes: of the values of all workers
NONCE, PROOF = 16, 32  # bytes
# Seconds (macOS has TCP_KEEPALIVE in place of TCP_KEEPIDLE), and number of probes.
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 8}

log = logging.getLogger(__name__)  # of the server too
log.addFilter(LogLimit())


def own_token() -> bytes:
    """ESYNC_TOKEN, which every process of a job has, or none."""
    return os.environb.get(b"ESYNC_TOKEN", b"")


def proof(token: bytes, side: bytes, challenge: bytes, nonce: bytes) -> bytes:
    """Shows that a side of this one connection knows the token: of random bytes that each of both has drawn."""
    return hmac.digest(token, side + challenge + nonce, "sha256")


def keep_alive(connection: socket.socket) -> None:
    """Keeps an idle connection alive in routers' tables; ends it after two minutes without the other side."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Lines:
    """A connection that carries a JSON object a line."""

    def __init__(self, connection: socket.socket, received: bytes = b"") -> None:
        self._socket = connection
        self._received = received
        self._sending = threading.Lock()
        self.own_address = str(connection.getsockname()[0])

    def send(self, **message: Any) -> None:
        self.send_bytes(json.dumps(message).encode() + b"\n")

    def send_bytes(self, content: bytes) -> None:
        with self._sending:
            self._socket.sendall(content)

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next message; None if none came in time. Raises EOFError where the other side has closed the connection,
        or its process has ended; SetupError where it is no rendezvous server: it sent something else than JSON objects,
        or too long a line."""
        self._socket.settimeout(timeout_s)
        while b"\n" not in self._received:
            try:
                chunk = self._socket.recv(1 << 16)
            except TimeoutError as error:
                if error.errno is None:
                    return None
                raise
            except ConnectionResetError:
                chunk = b""
            if not chunk:
                raise EOFError
            self._received += chunk
            if len(self._received) > LONGEST_LINE:
                break
        line, _, self._received = self._received.partition(b"\n")
        with contextlib.suppress(ValueError, RecursionError):
            message = json.loads(line)
            if isinstance(message, dict):
                return message
        raise SetupError(
            f"what listens at DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT is no scheduler of this program: {line[:80]!r} came"
        )

    def close(self) -> None:
        """Closes the connection, and wakes a thread in `receive`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def left(cause: str = "", goes_on: bool = False) -> Message:
    """LEFT, of a process that the scheduler knows by its connection."""
    return {"msg_type": "LEFT", "sender": "process", "job": JOB, "cause": cause, "goes_on": goes_on}


def error_of_end(said: Message) -> JobError:
    """What the message "end" means for the process that gets it."""
    kinds: dict[int, type[JobError]] = {EXIT_SETUP: SetupError, EXIT_OK: JobOver}
    return kinds.get(said["code"], PeerLost)(said["end"])


class PlainScheduler(Exception):
    """The scheduler is a plain MXNet program."""


class SchedulerLink:
    """A connection to the scheduler, as a Link until the job begins."""

    round_trip_s = 0.0

    def __init__(self, cluster: ClusterSpec, environment: Mapping[str, str]) -> None:
        self._cluster, self._environment = cluster, environment
        self._here = ""  # the address at which MXNet will listen
        self._acceptor: Acceptor | None = None  # answers calls there until then
        self.address = f"{cluster.root_uri}:{cluster.root_port}"
        self.lines: Lines | None = None

    def close(self) -> None:
        if self.lines is not None:
            self.lines.close()
        self.lines = None

    def free_port(self) -> None:
        """From here on MXNet may listen."""
        if self._acceptor is not None:
            self._acceptor.close()

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """As Link; JOIN also tells where this process listens. Raises PlainScheduler where no scheduler of this program
        is there; SetupError, PeerLost or JobOver where the job ends, or this process cannot listen."""
        try:
            if self.lines is None:
                self.lines = self._connect(timeouts)
                self._show_token(self.lines, timeouts.answer_s)
            lines = self.lines
            lines.send(**message, **(self._listens(lines, message) if message["msg_type"] == "JOIN" else {}))
            while (said := self._receive(lines, timeouts.answer_s)) is not None:
                if "msg_type" in said:
                    return Reply(200, said)
            why = "it has taken the connection and says nothing"
        except EOFError:
            why = "it went away before the job was complete"
        except OSError as error:  # keep-alive got no answer, or there is no route any more
            why = f"the connection broke: {error.strerror or error}"
        self.close()
        log.warning("the scheduler at %s: %s; trying again", self.address, why)
        raise NoAnswer(why)

    def wait(self, seconds: float) -> None:
        """Waits so long, or until the scheduler says something. Raises SetupError, PeerLost or JobOver where the job
        ends."""
        assert self.lines is not None
        try:
            self._receive(self.lines, seconds)
        except (EOFError, OSError):
            raise PeerLost(f"the scheduler at {self.address} has closed the connection") from None

    def _receive(self, lines: Lines, timeout_s: float) -> dict[str, Any] | None:
        """As `lines.receive`; raises, too, what `wait` does."""
        if (said := lines.receive(timeout_s)) is not None and "end" in said:
            raise error_of_end(said)
        if said is not None and "warning" in said:
            log.warning("%s", said["warning"])
        return said

    def _show_token(self, lines: Lines, timeout_s: float) -> None:
        """Raises SetupError where one side has a token that the other does not know."""

        def said(key: str) -> bytes:
            if (message := self._receive(lines, timeout_s)) is None:
                raise TimeoutError("it says nothing")
            return str(message.get(key, "")).encode(errors="replace")

        token, nonce, challenge = own_token(), secrets.token_bytes(NONCE), said("challenge")
        if challenge:
            lines.send_bytes(nonce + proof(token, b"process", challenge, nonce))
        expected = proof(token, b"scheduler", challenge, nonce).hex().encode()
        if (token or challenge) and not (challenge and hmac.compare_digest(said("proof"), expected)):
            raise SetupError(f"the scheduler at {self.address} has another ESYNC_TOKEN, or none: {SAME_TOKEN}")

    def _listens(self, lines: Lines, join: Message) -> Message:
        """Listens, where this process does not yet."""
        try:
            if self._acceptor is None:
                if self._cluster.role == "scheduler":
                    self._here = socket.gethostbyname(self._cluster.root_uri)
                else:
                    self._here = addresses.own_address(lines.own_address, self._environment)
                listener = addresses.listen(self._here, addresses.chosen_port(self._environment), _FREE_PORT)
                self._acceptor = Acceptor(listener, join["sender"])
        except SetupError as error:
            who = f"{self._cluster.role} on host {socket.gethostname()}"
            lines.send(**left(printable(f"{who} ended before the job began: {error}")))
            raise
        return {"address": self._here, "port": self._acceptor.port}

    def _connect(self, timeouts: Timeouts) -> Lines:
        try:
            connection = socket.create_connection(
                (self._cluster.root_uri, self._cluster.root_port), min(CONNECT_S, timeouts.answer_s)
            )
        except ConnectionRefusedError as error:
            raise NoAnswer(f"{error.strerror}: it is not started yet, or DMLC_PS_ROOT_PORT is wrong") from None
        except (OSError, UnicodeError) as error:  # its host cannot be reached, or has no such name
            what = "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", "no name of a host")
            why = "a wrong DMLC_PS_ROOT_URI, a host that is down, or a firewall that closes the port"
            raise NoAnswer(f"{what}: {why}") from None
        keep_alive(connection)
        first = b""
        # Where no process listens, a connection to the own host can by chance lead to itself.
        if connection.getsockname() != connection.getpeername():
            connection.settimeout(timeouts.answer_s)
            with contextlib.suppress(ConnectionError):
                connection.sendall(HELLO)
                first = connection.recv(1)
        if first == b"{":
            return Lines(connection, first)
        connection.close()
        if first == HELLO[:1] and not own_token():
            raise PlainScheduler
        if not first:
            raise NoAnswer("the connection was closed at once")
        kind = "scheduler with an ESYNC_TOKEN" if first == HELLO[:1] else "scheduler"
        raise SetupError(f"what listens at {self.address} is no {kind}: correct DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT")


def tell_failure(cluster: ClusterSpec, why: str) -> None:
    """Tells the other processes, which would wait for this one, that it ends; without a scheduler it gives up soon."""
    link, end = SchedulerLink(cluster, {}), time.monotonic() + TELL_S
    while time.monotonic() < end:
        with contextlib.suppress(NoAnswer):
            with contextlib.suppress(PlainScheduler, PeerLost, SetupError):
                link.send(left(printable(why)), Timeouts(TELL_S, TELL_S))
            break
        time.sleep(RETRY_S)
    link.close()
