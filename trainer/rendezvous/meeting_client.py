"""The processes of a job meet before MXNet connects them, and stay connected while it runs.

MXNet alone waits for ever, in silence, where a process is missing, a port is closed or a peer has died, and trains on
where flags differ. So every process first connects to the scheduler's published address, where `meeting_server.py`
listens (MXNet's own scheduler takes another port, which everybody is told here), and says what it is and how it is set
up. Lines of JSON; those that a process sends, and that it gets:

    {"card": ...}                               {"welcome": true}; from time to time {"info": ...}, {"warning": ...}
    {"tried": round, "problems": [...]}         {"targets": [...], "round": ...}: try to reach these
    {"freed": true}, of the scheduler alone     {"go": port of MXNet's scheduler}, to the scheduler first
    {"rank": ...}
    {"gather": label, "value": ...}             {"gathered": label, "values": [...]}
    {"last_words": ...}, {"goodbye": true}      {"end": why, "code": ...}: end with this line and exit code
    {"leaves": true}, while the others go on    {"lost": rank, "why": ...}: a worker is, and the others go on
    {"fails": why}, in place of a card: this process ends before it can meet the others

The first bytes tell a plain MXNet program (ZeroMQ's begin with 0xff) from a process of ours, on both sides, so both can
be in one job; what is compared and found out here then lacks.
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
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from trainer.rendezvous import addresses
from trainer.rendezvous.addresses import Doorbell, Target
from trainer.rendezvous.cluster import Cluster
from trainer.rendezvous.config_check import ProcessInfo
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, JobError, PeerLost, SetupError, die_on_error, fail

# A ZeroMQ greeting with a padding of its own: MXNet's scheduler takes it for an unfinished connection, nothing worse.
HELLO = b"\xffESyncMXN\x7f"
REMIND_EVERY_S = 15.0
CONNECT_S = 5.0
TELL_S = 2.0
RETRY_S = 0.2
GONE = "is gone: it was killed or has crashed"
EVALUATOR = "evaluator"  # label of the last values that all workers gather before they train: from then on the host
# lets the others go on where one is lost and they can
ALL_DONE = "all workers are done"
# By the names of the socket module, of which each system has some: s, s (macOS's name of the first), s, probes.
KEEP_ALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPALIVE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 8}


def keep_alive(connection: socket.socket) -> None:
    """Keeps an idle connection open across routers that forget; ends it after two minutes without the other side."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Lines:
    """A connection that carries JSON, a line a message."""

    def __init__(self, connection: socket.socket, received: bytes = b"") -> None:
        self._socket = connection
        self._received = received
        self._sending = threading.Lock()

    def send(self, **message: Any) -> None:
        """Sends a message."""
        with self._sending:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout_s: float | None) -> dict[str, Any] | None:
        """The next message; None if there was none in time.

        Raises:
            EOFError: the other side has closed the connection, or its process is gone.
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
        line, _, self._received = self._received.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def close(self) -> None:
        """Closes the connection, and wakes a thread that waits for a message."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Attendance:
    """A process's place in the job. Ends the process when another one is lost, with a line that says which."""

    def __init__(self, lines: Lines | None, scheduler: str, end: Callable[[str, int], Any]) -> None:
        """
        Args:
            lines: None where the scheduler is a plain MXNet program: then nothing here has an effect.
            scheduler: its address, for messages.
            end: called in a thread, with a line and an exit code.
        """
        self._lines = lines
        self._end = end
        self._scheduler = scheduler
        self._left = False
        self.lost: frozenset[int] = frozenset()  # ranks of workers without which the others go on
        self._gathered: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        if lines is not None:
            threading.Thread(target=self._listen, name="meeting", daemon=True).start()

    def tell_rank(self, rank: int) -> None:
        """Says which rank MXNet gave this process, so that others can name it."""
        self._send(rank=rank)

    def gather(self, label: str, value: Any) -> list[Any] | None:
        """Gives a value (JSON) and waits for those of all workers, by rank. Each worker calls it, after `tell_rank`.

        None for all of them where one is a plain MXNet program, or a connection broke.
        """
        if not self._send(gather=label, value=value):
            return None
        return self._gathered.get()

    def last_words(self, text: str) -> None:
        """Says why this process is about to end, while the job goes on."""
        self._send(last_words=text)

    def leave(self) -> None:
        """Says good-bye: from here on processes leave because the job is done."""
        self._leave(goodbye=True)

    def leave_alone(self) -> None:
        """Says good-bye, while the others go on: they take this worker for lost."""
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
        except OSError:  # the listening thread hears of it too
            return False
        return True

    def _listen(self) -> None:
        with die_on_error("the meeting of the job's processes failed"):
            lines = self._lines
            assert lines is not None
            try:
                while (message := lines.receive(None)) and not self._left:
                    self._heed(message)
            except EOFError:
                if not self._left:
                    self._end(f"the scheduler at {self._scheduler} {GONE}", EXIT_PEER_LOST)
            except OSError as error:
                if not self._left:  # the network, not the process: MXNet's heartbeats know better
                    logging.warning("the connection to the scheduler at %s broke (%s)", self._scheduler, error.strerror)
            self._lines = None
            self._gathered.put(None)

    def _heed(self, message: Mapping[str, Any]) -> None:
        if "gathered" in message:
            self._gathered.put(message["values"])
        elif "warning" in message:
            logging.warning("%s", message["warning"])
        elif "lost" in message:
            self.lost |= {message["lost"]}
            logging.warning("warning: %s; the others go on without it", message["why"])
        elif "end" in message:
            self._left = True
            self._end(message["end"], message["code"])


def end_process(text: str, code: int) -> NoReturn:
    """Ends this process with one line, from whatever thread."""
    if code == EXIT_OK:
        logging.info("%s", text)
    else:
        fail(text)
    os._exit(code)


def tell_failure(cluster: Cluster, why: str) -> None:
    """Tells the other processes, which would wait for this one, that it ends; a scheduler that is not there hears
    nothing."""
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
class Arrival:
    """One process on its way into the job."""

    cluster: Cluster
    device: str  # of a worker; else empty
    setup: Mapping[str, str]  # what must be the same in all processes: flag or other key -> value
    start_timeout_s: float  # 0: for ever
    remind_every_s: float = REMIND_EVERY_S
    environment: MutableMapping[str, str] = field(default_factory=lambda: os.environ)
    end: Callable[[str, int], Any] = end_process  # called in a thread, when another process is lost during the job

    def __post_init__(self) -> None:
        self._scheduler = f"{self.cluster.root_uri}:{self.cluster.root_port}"
        self._begin = self._reminded = time.monotonic()
        self._waits_for = "the scheduler"  # in words

    def attend(self) -> Attendance:
        """Meets the other processes of the job; returns when all are there, agree and reach each other.

        Sets what MXNet reads from the environment: the port of its scheduler, and this process's own address and port.

        Raises:
            SetupError: set-ups differ, or a port cannot be reached; every process gets the same message.
            PeerLost: the job was not complete in time.
        """
        while True:
            connection, first = self._reach_scheduler()
            if first == HELLO[:1]:
                logging.warning(
                    "the scheduler at %s is a plain MXNet program: the set-ups of the workers cannot be compared",
                    self._scheduler,
                )
                connection.close()
                return Attendance(None, self._scheduler, self.end)
            attendance = self._meet(connection, first)  # none: the scheduler is started anew
            if attendance:
                return attendance

    def _reach_scheduler(self) -> tuple[socket.socket, bytes]:
        """A connection to the scheduler, and the first byte that came over it."""
        while True:
            problem = ""
            try:
                connection = socket.create_connection((self.cluster.root_uri, self.cluster.root_port), CONNECT_S)
            except ConnectionRefusedError as error:
                problem = f"{error.strerror}: it is not started yet, or DMLC_PS_ROOT_PORT is wrong"
            except OSError as error:  # its host is not reached
                what = "no answer" if isinstance(error, TimeoutError) else error.strerror
                problem = f"{what}: a wrong DMLC_PS_ROOT_URI, a host that is down, or a firewall that closes the port"
            else:
                keep_alive(connection)
                # Where nobody listens, a connection to the own host can by chance lead to itself.
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
        """Greets the other side; its first byte, empty if it closes the connection."""
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

    def _meet(self, connection: socket.socket, first: bytes) -> Attendance | None:
        """Waits for the others; None if the scheduler went away before the job was complete."""
        lines, cluster, is_scheduler = Lines(connection, first), self.cluster, self.cluster.role == "scheduler"
        address = connection.getsockname()[0]
        if is_scheduler:
            address = socket.gethostbyname(cluster.root_uri)
        else:
            address = addresses.own_address(address, self.environment)
        doorbell = Doorbell(address, addresses.chosen_port(self.environment))
        card = ProcessInfo(
            role=cluster.role,
            host=socket.gethostname(),
            device=self.device,
            address=address,
            port=doorbell.port,
            token=doorbell.token,
            interface=self.environment.get("DMLC_INTERFACE", ""),
            setup={
                **self.setup,
                "DMLC_NUM_SERVER": str(cluster.num_servers),
                "DMLC_NUM_WORKER": str(cluster.num_workers),
            },
        )
        with contextlib.closing(doorbell):
            try:
                lines.send(card=vars(card))
                scheduler_port = self._wait_for_go(lines)
            except (EOFError, OSError):  # also where keep-alive heard nothing, or the way there is gone
                if is_scheduler:
                    raise
                logging.warning(
                    "the scheduler at %s went away before the job was complete; trying again", self._scheduler
                )
                lines.close()
                return None
            except JobError:
                lines.close()  # the others wait for it to end
                raise
        self.environment["DMLC_PS_ROOT_PORT"] = str(scheduler_port)
        if is_scheduler:
            lines.send(freed=True)
            self.environment["DMLC_PS_ROOT_URI"] = address  # where MXNet listens itself it takes no host names
        else:
            self.environment.update({"DMLC_NODE_HOST": address, "PORT": str(doorbell.port)})
        return Attendance(lines, self._scheduler, self.end)

    def _wait_for_go(self, lines: Lines) -> int:
        """Does what it is told; returns the port of MXNet's scheduler."""
        self._waits_for = f"the scheduler at {self._scheduler}, which says nothing"
        while True:
            message = lines.receive(RETRY_S)
            if message is None:
                self._check_time(remind=False)
            elif "targets" in message:
                targets = [Target(*target) for target in message["targets"]]
                lines.send(tried=message["round"], problems=addresses.unreachable(targets))
            elif "info" in message:
                self._waits_for = message["info"].removeprefix("waiting for ")
                self._reminded = time.monotonic()
                logging.info("%s", message["info"])
            elif "warning" in message:
                logging.warning("%s", message["warning"])
            elif "end" in message:
                raise (SetupError if message["code"] == EXIT_SETUP else PeerLost)(message["end"])
            elif "go" in message:
                return int(message["go"])

    def _check_time(self, remind: bool = True) -> None:
        """Says now and then what is waited for.

        Raises:
            PeerLost: it has taken too long.
        """
        now = time.monotonic()
        if self.start_timeout_s and now - self._begin > self.start_timeout_s:
            raise PeerLost(
                f"the job was not complete after {self.start_timeout_s:g} s (--start-timeout): "
                f"waited for {self._waits_for}"
            )
        if now - self._reminded > self.remind_every_s + (0 if remind else 5):
            logging.info("waiting for %s; trying on", self._waits_for)
            self._reminded = now
