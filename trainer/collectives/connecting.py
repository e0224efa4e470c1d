"""Connects the workers of a job: of each two the one of higher rank calls, or the one that reaches the other.

Both sides send a hello with their job and their ranks. A connection without a right hello is closed, and costs the job
nothing. Whether a worker is reached, a call with a test finds out at any time: it is answered beside the training. Test
and answer are longer than a packet can be, since there are links over which large packets do not pass.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
import struct
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from trainer.collectives.tcp import TcpMesh
from utils import PeerLost, SetupError, authority, die_on_error

Address = tuple[str, int]  # host and port

_FRAME = struct.Struct("!8sH")  # the mark, and how many bytes of JSON follow
_MARK = b"esync-1\n"
MOST_BYTES = 4096  # of a hello
MOST_STRANGERS = 64  # open connections that belong to no mesh, beside those of the workers
PAUSE_S = 0.05  # the shortest wait
TEST = bytes(1 << 16)  # what follows a test's hello, and the answer's; an IP packet has fewer
TEST_S = 3.0  # for these bytes, once the hello was answered: a slow link needs a second, a frozen worker sends no hello
HELLO_S = 60.0  # for a caller's hello
PROBE_S = 0.25  # for one probe whether a worker listens, and between two probes


def connect(
    rank: int,
    addresses: Sequence[Address],
    acceptor: Acceptor,
    job: str,
    timeout_s: float = 60.0,
    names: Sequence[str] = (),
    calls: Collection[tuple[int, int]] = (),
) -> TcpMesh:
    """Connects one worker with all others, which listen already; all of them call it.

    Args:
        addresses: of all workers by rank.
        acceptor: of this worker, at its address.
        job: the job's identity; a secret of its workers where strangers are to be kept out.
        timeout_s: until all are connected.
        names: of all workers by rank, for messages.
        calls: pairs of ranks of which the first one, though it is the lower, calls.

    Raises:
        PeerLost: a worker was not there in time, or has ended.
        SetupError: another job, or another worker, answers at an address.
    """
    names = names or [f"worker {other}" for other in range(len(addresses))]
    deadline = time.monotonic() + timeout_s
    called = [
        other
        for other in range(len(addresses))
        if (rank, other) in calls or (other < rank and (other, rank) not in calls)
    ]
    expected = [other for other in range(len(addresses)) if other not in (rank, *called)]
    acceptor.most = MOST_STRANGERS + len(addresses)
    with contextlib.ExitStack() as on_error:
        connections: dict[int, socket.socket] = {}
        for other in called:
            call = _call(addresses[other], names[other], deadline)
            connections[other] = on_error.enter_context(call)
            connections[other].sendall(_frame(job, rank, other))
        while missing := [other for other in expected if other not in connections]:
            left_s = deadline - time.monotonic()
            came = acceptor.take(job, rank, expected, connections, max(0.0, min(left_s, PROBE_S)))
            for other, connection in came.items():
                connections[other] = on_error.enter_context(connection)
            for other in called:
                _check_open(connections[other])
            if not came and left_s <= 0:
                late = ", ".join(names[other] for other in missing)
                raise PeerLost(f"{late} did not call in time: see the logs there")
            if not came:
                _probe({other: addresses[other] for other in missing}, names)
        for other in expected:
            connections[other].sendall(_frame(job, rank, other))
        for other in called:
            where = f"{names[other]} at {authority(*addresses[other])}"
            _check_answer(connections[other], job, rank, other, where, deadline)
        on_error.pop_all()
    return TcpMesh(rank, connections, names)


def unanswered(address: Address, name: str, timeout_s: float) -> str:
    """Why the worker, or process, of this name does not answer a call in time, in words; empty: it does."""
    try:
        connection = socket.create_connection(address, timeout_s)
    except (OSError, ValueError) as error:  # ValueError: no host's name
        return "no answer" if isinstance(error, TimeoutError) else getattr(error, "strerror", "") or str(error)
    with connection:
        try:
            connection.sendall(_packed({"test": name}))
            hello = _hello(connection, time.monotonic() + timeout_s)
        except TimeoutError:
            return "no answer"
        except (OSError, ValueError):  # of another program
            hello = None
        if hello != {"test": name}:
            return "another program answers there"
        try:
            connection.settimeout(TEST_S)
            connection.sendall(TEST)
            _received(connection, len(TEST), time.monotonic() + TEST_S)
        except OSError:  # it gives up at about the same time
            return "large packets do not pass"
    return ""


def _received(connection: socket.socket, size: int, deadline: float) -> bytes:
    """So many bytes; raises TimeoutError where they have not come in time, otherwise OSError."""
    content = bytearray()
    while len(content) < size:
        connection.settimeout(max(PAUSE_S, deadline - time.monotonic()))
        came = connection.recv(size - len(content))
        if not came:
            raise ConnectionError("closed")
        content += came
    return bytes(content)


def _hello(connection: socket.socket, deadline: float) -> object:
    """Reads a hello, and no byte behind it; raises ValueError if the other side is no worker, otherwise as
    `_received`."""
    mark, length = _FRAME.unpack(_received(connection, _FRAME.size, deadline))
    if mark != _MARK or not 0 < length <= MOST_BYTES:
        raise ValueError("no worker")
    try:
        return json.loads(_received(connection, length, deadline))
    except RecursionError:
        raise ValueError("no worker") from None


def _probe(places: Mapping[int, Address], names: Sequence[str]) -> None:
    """Raises PeerLost for workers that no longer listen at these places, by rank; a probe does not disturb them."""
    refusing = []
    for other, place in places.items():
        try:
            socket.create_connection(place, PROBE_S).close()
        except ConnectionRefusedError:
            refusing.append(other)
        except OSError:  # perhaps just slow
            continue
    if refusing:
        raise PeerLost(f"{', '.join(names[other] for other in refusing)} has ended")


def _frame(job: str, rank: int, to: int) -> bytes:
    return _packed({"job": job, "from": rank, "to": to})


def _packed(content: Mapping[str, object]) -> bytes:
    hello = json.dumps(content).encode()
    return _FRAME.pack(_MARK, len(hello)) + hello


def _call(address: Address, name: str, deadline: float) -> socket.socket:
    try:
        return socket.create_connection(address, max(PAUSE_S, deadline - time.monotonic()))
    except ConnectionRefusedError as error:
        raise PeerLost(f"{name} has ended ({error})") from None
    except OSError as error:
        raise PeerLost(f"{name} at {authority(*address)} is not reached ({error})") from None


def _check_answer(connection: socket.socket, job: str, rank: int, other: int, where: str, deadline: float) -> None:
    """Reads the hello of the worker that was called."""
    try:
        hello = _hello(connection, deadline)
    except (OSError, ValueError) as error:
        if isinstance(error, TimeoutError):
            raise PeerLost(f"{where} does not answer") from None
        raise SetupError(f"{where} hung up: it has ended, or it belongs to another job or program") from None
    if _sender(hello, job, rank) != other:
        raise SetupError(f"{where} is not that worker of this job: give all workers the same list of addresses")


def _sender(hello: object, job: str, to: int) -> int:
    """The rank from which a hello of this job to `to` is; -1: it is none."""
    if not isinstance(hello, dict) or hello.keys() != {"job", "from", "to"}:
        return -1
    is_known = hmac.compare_digest(str(hello["job"]).encode(errors="replace"), job.encode())
    return hello["from"] if is_known and hello["to"] == to and isinstance(hello["from"], int) else -1


def _check_open(connection: socket.socket) -> None:
    """Raises PeerLost where the other side has closed the connection; reads nothing, and does not wait."""
    connection.setblocking(False)
    try:
        has_ended = not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        has_ended = False
    except OSError:
        has_ended = True
    if has_ended:
        raise PeerLost("another worker hung up again: it has ended, or it did not reach all others")


class Acceptor:
    """Takes the calls to one worker, in threads: those of workers wait here for `connect`, tests are answered."""

    def __init__(self, listener: socket.socket, name: str = "") -> None:
        """`listener` is at the worker's address; the acceptor closes it. Others call `name` for a test; empty: none is
        answered."""
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self.name = name
        self.most = MOST_STRANGERS  # connections of each of the two kinds
        self._callers: list[socket.socket] = []  # whose hello has not come yet, the oldest first
        self._calls: list[tuple[socket.socket, object]] = []  # of workers, with the hello, until `connect` takes them
        self._news = threading.Condition()  # of both
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)
        self._thread.start()

    def take(
        self, job: str, rank: int, expected: Collection[int], known: Collection[int], wait_s: float
    ) -> dict[int, socket.socket]:
        """Waits for calls of the expected ranks that are not known yet; returns their connections, and hangs up on
        strangers."""
        came: dict[int, socket.socket] = {}

        def has_come() -> bool:
            waiting, self._calls = self._calls, []
            for connection, hello in waiting:
                other = _sender(hello, job, rank)
                if other not in expected:
                    connection.close()
                elif other in known or other in came:  # its next connection
                    self._calls.append((connection, hello))
                else:
                    connection.setblocking(True)
                    came[other] = connection
            return bool(came)

        with self._news:
            self._news.wait_for(has_come, wait_s)
        return came

    def _run(self) -> None:
        with die_on_error("the acceptor of calls failed"):
            while not self._is_closed:
                with contextlib.suppress(OSError):  # the caller has hung up already; `close` ends the wait likewise
                    connection, _ = self._listener.accept()
                    with self._news:
                        self._callers.append(connection)
                        if len(self._callers) > self.most:
                            _end_reading(self._callers.pop(0))
                    try:
                        threading.Thread(target=self._hear, args=(connection,), name="call", daemon=True).start()
                    except RuntimeError:  # this process may have no more threads
                        with self._news:
                            self._callers.remove(connection)
                        connection.close()

    def _hear(self, connection: socket.socket) -> None:
        """Reads a caller's hello. A worker's call is kept until `connect` takes it, a test is answered, and all others
        end."""
        hello: object = None
        with contextlib.suppress(OSError, ValueError):  # it has hung up, or is no worker
            hello = _hello(connection, time.monotonic() + HELLO_S)
        with self._news:
            is_kept = connection in self._callers  # else dropped
            if is_kept:
                self._callers.remove(connection)
            if is_kept and isinstance(hello, dict) and "job" in hello and not self._is_closed:
                self._calls.append((connection, hello))
                if len(self._calls) > self.most:
                    self._calls.pop(0)[0].close()
                self._news.notify_all()
                return
        with connection, contextlib.suppress(OSError):
            if self.name and hello == {"test": self.name}:
                connection.settimeout(TEST_S)
                connection.sendall(_packed({"test": self.name}))
                # What follows comes only once all of the caller's has: so it finds out about both directions.
                _received(connection, len(TEST), time.monotonic() + TEST_S)
                connection.sendall(TEST)

    def close(self) -> None:
        """Listens no more, and hangs up on all calls that `connect` has not taken."""
        self._is_closed = True
        _end_reading(self._listener)
        self._thread.join()
        self._listener.close()
        with self._news:
            for connection in self._callers:
                _end_reading(connection)
            for connection, _ in self._calls:
                connection.close()


def _end_reading(connection: socket.socket) -> None:
    """Wakes the thread that waits there, which then closes it."""
    with contextlib.suppress(OSError):  # closed before
        connection.shutdown(socket.SHUT_RDWR)
