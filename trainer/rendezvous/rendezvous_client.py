"""A process's side of the rendezvous, which comes before MXNet connects the processes and lasts as long as the job.

MXNet alone waits for ever, in silence, where a process is missing, a port is closed or a peer has died, and trains on
where flags differ. So every process first connects to the scheduler's published address, where `rendezvous_server.py`
listens and tells it the port of MXNet's own scheduler, and describes itself and its set-up. The lines of JSON that a
process sends, and that it gets:

    {"card": ...}                               {"welcome": true}; from time to time {"info": ...}, {"warning": ...}
    {"tried": round, "problems": [...]}         {"targets": [...], "round": ...}: try to reach these
    {"freed": true}, from the scheduler alone   {"go": port of MXNet's scheduler}, to the scheduler first
    {"rank": ...}
    {"gather": label, "value": ...}             {"gathered": label, "values": [...]}
    {"unreached": [places]}: they acknowledge nothing that this process sends
    {"last_words": ...}, {"goodbye": true}      {"end": why, "code": ...}: end with this line and exit code
    {"leaves": true}, while the job goes on     {"lost": rank, "why": ...}: a worker is lost, and the job goes on
    {"fails": why}, in place of a card: this process ends before it joins

Either side tells a plain MXNet program from a process of ours by its first bytes (ZeroMQ's begin with 0xff), so both
can be in one job, without the checks of this module for the plain one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from trainer import state_server_path  # noqa: F401  (the imports below need it)
from trainer.collectives.connecting import Acceptor
from trainer.rendezvous import addresses
from trainer.rendezvous.acknowledged import Unacknowledged
from trainer.rendezvous.addresses import Target
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.config_check import ProcessInfo
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, JobError, PeerLost, SetupError, die_on_error, fail

# isort: split
from server.log_limit import LogLimit

# A ZeroMQ greeting with a padding of its own: MXNet's scheduler just takes it for an unfinished connection.
HELLO = b"\xffESyncMXN\x7f"
REMIND_EVERY_S = 15.0
CONNECT_S = 5.0
TELL_S = 2.0
RETRY_S = 0.2
GONE = "is gone: it was killed or has crashed"
# Label of the last values that all workers gather before they train: from then on the server lets the job go on without
# a lost worker, where the flags say so.
EVALUATOR = "evaluator"
RENDEZVOUS_FAILED = "the rendezvous of the job's processes failed"
ALL_DONE = "all workers are done"
_FREE_PORT = "set PORT to a free one, another for each process of this host, or correct DMLC_INTERFACE"
LONGEST_LINE = 1 << 22  # bytes: of the values of all workers
# Seconds (macOS has TCP_KEEPALIVE in place of TCP_KEEPIDLE), and number of probes.
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 8}

log = logging.getLogger(__name__)  # of the server too
log.addFilter(LogLimit())


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

    def send(self, **message: Any) -> None:
        with self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next message; None if none came in time.

        Raises:
            EOFError: the other side has closed the connection, or its process has ended.
            SetupError: it is no rendezvous server: it sent something else than JSON objects, or too long a line.
        """
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


class JobSession:
    """A process's connection to the rendezvous server during the job. Ends the process when another one is lost."""

    def __init__(
        self, lines: Lines | None, scheduler: str, end: Callable[[str, int], Any], places: Collection[str] = ()
    ) -> None:
        """
        Args:
            lines: None where the scheduler is a plain MXNet program: then nothing here has an effect.
            scheduler: its address, for messages.
            end: called in a thread, with a line and an exit code.
            places: address and port of the processes that MXNet connects this one with.
        """
        self._unacknowledged = Unacknowledged(places)
        self._unreached: list[str] = []
        self._lines = lines
        self._end = end
        self._scheduler = scheduler
        self._left = False
        self.lost: frozenset[int] = frozenset()  # ranks of lost workers without which the job goes on
        self._gathered: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        if lines is not None:
            threading.Thread(target=self._listen, name="rendezvous", daemon=True).start()

    def tell_rank(self, rank: int) -> None:
        """Tells the rank that MXNet gave this process, so that messages can name it."""
        self._send(rank=rank)

    def gather(self, label: str, value: Any) -> list[Any] | None:
        """As Gather, after `tell_rank`. None where a plain MXNet program takes part, or a connection broke."""
        return self._gathered.get() if self._send(gather=label, value=value) else None

    def watch(self, longest_s: float) -> None:
        """Tells, where that changes, which processes acknowledge nothing for so long. To be called every second."""
        found = self._unacknowledged.look(time.monotonic(), longest_s)
        if found != self._unreached and self._send(unreached=found):
            self._unreached = found

    def tell_error(self, text: str) -> None:
        """Tells why this process is about to end during the job."""
        self._send(last_words=text)

    def leave(self) -> None:
        """Says good-bye: from here on processes leave because the job is done."""
        self._leave(goodbye=True)

    def leave_alone(self) -> None:
        """Says good-bye while the job goes on: the others count this worker as lost."""
        self._leave(leaves=True)

    def _leave(self, **message: Any) -> None:
        self._left = True
        if self._send(**message) and self._lines is not None:
            self._lines.close()

    def _send(self, **message: Any) -> bool:
        """Whether it could be sent."""
        if self._lines is None:
            return False
        try:
            self._lines.send(**message)
        except OSError:  # the listening thread notices it too
            return False
        return True

    def _listen(self) -> None:
        with die_on_error(RENDEZVOUS_FAILED):
            lines = self._lines
            assert lines is not None
            try:
                while (message := lines.receive(None)) and not self._left:
                    self._handle(message)
            except SetupError as error:
                self._end(str(error), EXIT_SETUP)
            except EOFError:
                if not self._left:
                    self._end(f"the scheduler at {self._scheduler} {GONE}", EXIT_PEER_LOST)
            except OSError as error:
                if not self._left:  # perhaps the network alone: MXNet's heartbeats tell whether the process is lost
                    log.warning("the connection to the scheduler at %s broke (%s)", self._scheduler, error.strerror)
            self._lines = None
            self._gathered.put(None)

    def _handle(self, message: Mapping[str, Any]) -> None:
        if "gathered" in message:
            self._gathered.put(message["values"])
        elif "warning" in message:
            log.warning("%s", message["warning"])
        elif "lost" in message:
            self.lost |= {message["lost"]}
            log.warning("warning: %s; the others go on without it", message["why"])
        elif "end" in message:
            self._left = True
            self._end(message["end"], message["code"])


def end_process(text: str, code: int) -> NoReturn:
    """Ends this process with one line, from any thread."""
    if code == EXIT_OK:
        log.info("%s", text)
    else:
        fail(text)
    os._exit(code)


def tell_failure(cluster: ClusterSpec, why: str) -> None:
    """Tells the other processes, which would wait for this one, that it ends; without a scheduler it gives up soon."""
    end = time.monotonic() + TELL_S
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError):
            with socket.create_connection((cluster.root_uri, cluster.root_port), TELL_S) as connection:
                connection.settimeout(TELL_S)
                connection.sendall(HELLO)
                if (first := connection.recv(1)) == b"{":
                    Lines(connection, first).send(fails=why)
            return
        time.sleep(RETRY_S)


@dataclass
class RendezvousClient:
    """One process on its way into the job."""

    cluster: ClusterSpec
    device: str  # of a worker; else empty
    setup: Mapping[str, str]  # what must be the same in all processes: flag or other key -> value
    start_timeout_s: float  # 0: for ever
    remind_every_s: float = REMIND_EVERY_S
    environment: MutableMapping[str, str] = field(default_factory=lambda: os.environ)
    end: Callable[[str, int], Any] = end_process  # called in a thread when another process is lost during the job

    def __post_init__(self) -> None:
        self._scheduler = f"{self.cluster.root_uri}:{self.cluster.root_port}"
        self._begin = self._reminded = time.monotonic()
        self._waits_for = "the scheduler"  # in words

    def join(self) -> JobSession:
        """Returns when all processes of the job are connected, agree and reach each other.

        Sets the variables that MXNet reads: the port of its scheduler, and this process's own address and port.

        Raises:
            SetupError: set-ups differ, or a port cannot be reached; every process gets the same message.
            PeerLost: the job was not complete in time.
        """
        while True:
            connection, first = self._reach_scheduler()
            if first == HELLO[:1]:
                log.warning(
                    "the scheduler at %s is a plain MXNet program: the set-ups of the workers cannot be compared",
                    self._scheduler,
                )
                connection.close()
                return JobSession(None, self._scheduler, self.end)
            if session := self._converse(connection, first):
                return session

    def _reach_scheduler(self) -> tuple[socket.socket, bytes]:
        """A connection to the scheduler, and the first byte that it sent."""
        while True:
            problem = ""
            try:
                connection = socket.create_connection((self.cluster.root_uri, self.cluster.root_port), CONNECT_S)
            except ConnectionRefusedError as error:
                problem = f"{error.strerror}: it is not started yet, or DMLC_PS_ROOT_PORT is wrong"
            except OSError as error:  # its host cannot be reached
                what = "no answer" if isinstance(error, TimeoutError) else error.strerror
                problem = f"{what}: a wrong DMLC_PS_ROOT_URI, a host that is down, or a firewall that closes the port"
            else:
                keep_alive(connection)
                # Where no process listens, a connection to the own host can by chance lead to itself.
                itself = connection.getsockname() == connection.getpeername()
                first = b"" if itself else self._first_byte(connection)
                if first:
                    return connection, first
                connection.close()
                problem = "the connection was closed at once"
            self._waits_for = f"the scheduler at {self._scheduler} ({problem})"
            self._check_time()
            time.sleep(RETRY_S)

    def _first_byte(self, connection: socket.socket) -> bytes:
        """Greets the other side; returns its first byte, empty if it closes the connection."""
        connection.settimeout(RETRY_S)
        self._waits_for = f"the scheduler at {self._scheduler}, which has taken the connection and says nothing"
        try:
            connection.sendall(HELLO)
            while True:
                try:
                    first = connection.recv(1)
                    break
                except TimeoutError:
                    self._check_time()
        except OSError:
            first = b""
        if first not in (b"", b"{", HELLO[:1]):
            raise SetupError(
                f"what listens at {self._scheduler} is no scheduler: correct DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
            )
        return first

    def _converse(self, connection: socket.socket, first: bytes) -> JobSession | None:
        """Waits for the others; None if the scheduler ended before the job was complete, and may be started anew."""
        lines, cluster, is_scheduler = Lines(connection, first), self.cluster, self.cluster.role == "scheduler"
        address = connection.getsockname()[0]
        if is_scheduler:
            address = socket.gethostbyname(cluster.root_uri)
        try:
            if not is_scheduler:
                address = addresses.own_address(address, self.environment)
            listener = addresses.listen(address, addresses.chosen_port(self.environment), _FREE_PORT)
        except SetupError as error:
            lines.send(fails=f"{cluster.role} on host {socket.gethostname()} ended before the job began: {error}")
            raise
        responder = Acceptor(listener, secrets.token_hex(8))  # where MXNet will listen
        process = ProcessInfo(
            role=cluster.role,
            host=socket.gethostname(),
            device=self.device,
            address=address,
            port=responder.port,
            token=responder.name,
            interface=self.environment.get("DMLC_INTERFACE", ""),
            setup={
                **self.setup,
                "DMLC_NUM_SERVER": str(cluster.num_servers),
                "DMLC_NUM_WORKER": str(cluster.num_workers),
            },
        )
        with contextlib.closing(responder):
            try:
                lines.send(card=vars(process))
                scheduler_port, places = self._wait_for_go(lines)
            except (EOFError, OSError):  # OSError: keep-alive got no answer, or there is no route any more
                if is_scheduler:
                    raise
                log.warning("the scheduler at %s went away before the job was complete; trying again", self._scheduler)
                lines.close()
                return None
            except JobError:
                lines.close()  # the others wait for it to end
                raise
        self.environment["DMLC_PS_ROOT_PORT"] = str(scheduler_port)
        if is_scheduler:
            lines.send(freed=True)
            self.environment["DMLC_PS_ROOT_URI"] = address  # MXNet's scheduler cannot listen at a host's name
        else:
            self.environment.update({"DMLC_NODE_HOST": address, "PORT": str(responder.port)})
        return JobSession(lines, self._scheduler, self.end, places)

    def _wait_for_go(self, lines: Lines) -> tuple[int, list[str]]:
        """Answers the server's messages; returns the port of MXNet's scheduler, and where the processes listen with
        which MXNet connects this one."""
        places: list[str] = []
        self._waits_for = f"the scheduler at {self._scheduler}, which says nothing"
        while True:
            message = lines.receive(RETRY_S)
            if message is None:
                self._check_time(remind=False)
            elif "targets" in message:
                targets = [Target(*target) for target in message["targets"]]
                places = [f"{target.address}:{target.port}" for target in targets]
                lines.send(tried=message["round"], problems=addresses.unreachable(targets))
            elif "info" in message:
                self._waits_for = message["info"].removeprefix("waiting for ")
                self._reminded = time.monotonic()
                log.info("%s", message["info"])
            elif "warning" in message:
                log.warning("%s", message["warning"])
            elif "end" in message:
                raise (SetupError if message["code"] == EXIT_SETUP else PeerLost)(message["end"])
            elif "go" in message:
                return int(message["go"]), places

    def _check_time(self, remind: bool = True) -> None:
        """Logs now and then what this process waits for.

        Raises:
            PeerLost: `start_timeout_s` is over.
        """
        now = time.monotonic()
        if self.start_timeout_s and now - self._begin > self.start_timeout_s:
            raise PeerLost(
                f"the job was not complete after {self.start_timeout_s:g} s (--start-timeout): "
                f"waited for {self._waits_for}"
            )
        if now - self._reminded > self.remind_every_s + (0 if remind else 5):
            log.info("waiting for %s; trying on", self._waits_for)
            self._reminded = now
