"""A process's side of the rendezvous at the scheduler, before MXNet connects the processes and during the job.

MXNet alone waits for ever, in silence, where a process is missing, a port is closed or a peer has died, and trains on
where flags differ. So every process first connects to the scheduler's published address, where `rendezvous_server.py`
listens, and JOINs (joining.py) until START tells it the port of MXNet's own scheduler. The lines of JSON that a process
sends, and that it gets:

    JOIN and LEFT, as at the state server       {"welcome": true}; RESPONSE; from time to time {"warning": ...}
    {"freed": true}: MXNet's scheduler may listen; from the scheduler, after its START and before that of the others
    {"rank": ...}
    {"gather": label, "value": ...}             {"gathered": label, "values": [...]}
    {"unreached": [places]}: they acknowledge nothing that this process sends
                                                {"end": why, "code": ...}: end with this line and exit code
                                                {"lost": rank, "why": ...}: a worker is lost, and the job goes on

Either side tells a plain MXNet program from a process of ours by its first bytes (ZeroMQ's begin with 0xff), so both
can be in one job, without the checks of this module for the plain one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from trainer import state_server_path  # noqa: F401  (the imports below need it)
from trainer.clock import RealClock
from trainer.collectives.connecting import Acceptor, unanswered
from trainer.coordinator.protocol import Message, NoAnswer, Reply, Timeouts
from trainer.rendezvous import addresses
from trainer.rendezvous.acknowledged import Unacknowledged
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.joining import REMIND_EVERY_S, Joining
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, PeerLost, SetupError, die_on_error, fail, printable

# isort: split
from server.log_limit import LogLimit

# A ZeroMQ greeting with a padding of its own: MXNet's scheduler just takes it for an unfinished connection.
HELLO = b"\xffESyncMXN\x7f"
JOB = "mxnet"  # the name of the one job that a scheduler has
CONNECT_S = 5.0
TRY_S = 5.0  # one try to connect with another process
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
        self.own_address = str(connection.getsockname()[0])

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
        self._send(**left(printable(text)))

    def leave(self, goes_on: bool = False) -> None:
        """Says good-bye: from here on processes leave because the job is done.

        Args:
            goes_on: the job is not done: the others count this worker as lost.
        """
        self._left = True
        if self._send(**left(goes_on=goes_on)) and self._lines is not None:
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


def left(cause: str = "", goes_on: bool = False) -> Message:
    """LEFT, of a process that the scheduler knows by its connection."""
    return {"msg_type": "LEFT", "sender": "process", "job": JOB, "cause": cause, "goes_on": goes_on}


def tell_failure(cluster: ClusterSpec, why: str) -> None:
    """Tells the other processes, which would wait for this one, that it ends; without a scheduler it gives up soon."""
    link, end = SchedulerLink(cluster), time.monotonic() + TELL_S
    while time.monotonic() < end:
        with contextlib.suppress(NoAnswer):
            with contextlib.suppress(PlainScheduler, PeerLost, SetupError):
                link.send(left(printable(why)), Timeouts(TELL_S, TELL_S))
            break
        time.sleep(RETRY_S)
    link.close()


class PlainScheduler(Exception):
    """The scheduler is a plain MXNet program."""


class SchedulerLink:
    """A connection to the scheduler, as a Link until the job begins."""

    round_trip_s = 0.0

    def __init__(self, cluster: ClusterSpec, listen: Callable[[str], Message] = lambda towards: {}) -> None:
        """
        Args:
            listen: makes this process listen, given its address on the way; returns the address and port for JOIN.
        """
        self._place, self._listen = (cluster.root_uri, cluster.root_port), listen
        self.address = f"{cluster.root_uri}:{cluster.root_port}"
        self.lines: Lines | None = None

    def check(self) -> None:
        """Processes wait for the scheduler."""

    def close(self) -> None:
        if self.lines is not None:
            self.lines.close()
        self.lines = None

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """As Link.

        Raises:
            PlainScheduler: no scheduler of this program is there.
            SetupError, PeerLost: the job ends, or this process cannot listen.
        """
        try:
            lines = self.lines = self.lines or self._connect(timeouts)
            lines.send(**message, **self._listens(lines))
            while (said := lines.receive(timeouts.answer_s)) is not None:
                if "end" in said:
                    raise (SetupError if said["code"] == EXIT_SETUP else PeerLost)(said["end"])
                if "warning" in said:
                    log.warning("%s", said["warning"])
                if "msg_type" in said:
                    return Reply(200, said)
            why = "it has taken the connection and says nothing"
        except EOFError:
            why = "it went away before the job was complete"
        except OSError as error:  # keep-alive got no answer, or there is no route any more
            why = f"the connection broke: {error.strerror or error}"
        self.close()
        raise NoAnswer(why)

    def _listens(self, lines: Lines) -> Message:
        try:
            return self._listen(lines.own_address)
        except SetupError as error:
            lines.send(
                **left(printable(f"a process on host {socket.gethostname()} ended before the job began: {error}"))
            )
            raise

    def _connect(self, timeouts: Timeouts) -> Lines:
        try:
            connection = socket.create_connection(self._place, min(CONNECT_S, timeouts.answer_s))
        except ConnectionRefusedError as error:
            raise NoAnswer(f"{error.strerror}: it is not started yet, or DMLC_PS_ROOT_PORT is wrong") from None
        except OSError as error:  # its host cannot be reached
            what = "no answer" if isinstance(error, TimeoutError) else error.strerror
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
        if first == HELLO[:1]:
            raise PlainScheduler
        if not first:
            raise NoAnswer("the connection was closed at once")
        raise SetupError(
            f"what listens at {self.address} is no scheduler: correct DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT"
        )


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
    _name: str = ""
    _address: str = ""  # at which MXNet will listen
    _acceptor: Acceptor | None = None  # there, until the job begins

    def join(self) -> JobSession:
        """Returns when all processes of the job are connected, agree and reach each other.

        Sets the variables that MXNet reads: the port of its scheduler, and this process's own address and port.

        Raises:
            SetupError: set-ups differ, or a port cannot be reached; every process gets the same message.
            PeerLost: the job was not complete in time.
        """
        cluster, is_scheduler = self.cluster, self.cluster.role == "scheduler"
        link = SchedulerLink(cluster, self._listen)
        numbers = {"DMLC_NUM_SERVER": str(cluster.num_servers), "DMLC_NUM_WORKER": str(cluster.num_workers)}
        joining = Joining(
            link,
            RealClock(),
            JOB,
            cluster.num_workers,
            None,
            socket.gethostname(),
            self.device,
            call=lambda other: unanswered((other.address, other.port), other.name, TRY_S),
            setup={**self.setup, **numbers},
            server="the scheduler",
            hint=self._hint,
            remind_every_s=self.remind_every_s,
            role=cluster.role,
            num_servers=cluster.num_servers,
            interface=self.environment.get("DMLC_INTERFACE", ""),
        )
        self._name = joining.name
        try:
            members = joining.wait(self.start_timeout_s).members
        except PlainScheduler:
            log.warning(
                "the scheduler at %s is a plain MXNet program: the set-ups of the workers cannot be compared",
                link.address,
            )
            return JobSession(None, link.address, self.end)
        except Exception:
            link.close()  # the others wait for it to end
            raise
        finally:
            if self._acceptor is not None:
                self._acceptor.close()
        assert link.lines is not None and self._acceptor is not None
        (scheduler,) = (member for member in members if member.role == "scheduler")
        self.environment["DMLC_PS_ROOT_PORT"] = str(scheduler.port)
        if is_scheduler:
            link.lines.send(freed=True)
            self.environment["DMLC_PS_ROOT_URI"] = self._address  # MXNet's scheduler cannot listen at a host's name
        else:
            self.environment.update({"DMLC_NODE_HOST": self._address, "PORT": str(self._acceptor.port)})
        places = [member.place for member in members if member.role != cluster.role]
        return JobSession(link.lines, link.address, self.end, places)

    def _listen(self, towards: str) -> Message:
        """Listens, where this process does not yet."""
        if self._acceptor is None:
            if self.cluster.role == "scheduler":
                self._address = socket.gethostbyname(self.cluster.root_uri)
            else:
                self._address = addresses.own_address(towards, self.environment)
            listener = addresses.listen(self._address, addresses.chosen_port(self.environment), _FREE_PORT)
            self._acceptor = Acceptor(listener, self._name)
        return {"address": self._address, "port": self._acceptor.port}

    def _hint(self) -> str:
        if self._acceptor is None:
            return ""
        return (
            f". MXNet will listen at {self._address}:{self._acceptor.port}. Check that the missing ones run, have "
            f"DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of {self.cluster.root_uri}:{self.cluster.root_port}, and that no "
            "firewall closes that port"
        )
