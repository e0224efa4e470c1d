"""Connects the workers of a job: of each two the one of higher rank calls, or the one that reaches the other.

Both sides send a hello with their job and their ranks. A connection without a right hello is closed, and costs the job
nothing. Whether a worker is reached, a call with a test finds out at any time: it is answered beside the training. Test
and answer are longer than a packet can be, since there are links over which large packets do not pass.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
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
    with contextlib.ExitStack() as on_error:
        connections: dict[int, socket.socket] = {}
        for other in called:
            call = _call(addresses[other], names[other], deadline)
            connections[other] = on_error.enter_context(call)
            connections[other].sendall(_frame(job, rank, other))
        came = acceptor.wait(job, rank, expected, deadline, names, addresses, connections)
        for other, connection in came.items():
            connections[other] = on_error.enter_context(connection)
            connection.sendall(_frame(job, rank, other))
        for other in called:
            _check_answer(connections[other], job, rank, other, addresses[other], names[other], deadline)
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
            hello = _Handshake(connection).whole(time.monotonic() + timeout_s)
        except TimeoutError:
            return "no answer"
        except (OSError, ValueError):  # of another program
            hello = None
        if hello != {"test": name}:
            return "another program answers there"
        try:
            connection.settimeout(TEST_S)
            connection.sendall(TEST)
            _receive_test(connection)
        except OSError:  # it gives up at about the same time
            return "large packets do not pass"
    return ""


def _receive_test(connection: socket.socket) -> None:
    """Raises TimeoutError where it has not come in time, otherwise OSError."""
    deadline, left = time.monotonic() + TEST_S, len(TEST)
    while left:
        connection.settimeout(max(PAUSE_S, deadline - time.monotonic()))
        came = len(connection.recv(left))
        if not came:
            raise ConnectionError("closed")
        left -= came


def _answer_test(connection: socket.socket, hello: bytes) -> None:
    """Sends what follows the hello only once all of the caller's has come: so it finds out about both directions."""
    with connection, contextlib.suppress(OSError):
        connection.settimeout(TEST_S)
        connection.sendall(hello)
        _receive_test(connection)
        connection.sendall(TEST)


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


def _check_answer(
    connection: socket.socket, job: str, rank: int, other: int, address: Address, name: str, deadline: float
) -> None:
    """Reads the hello of the worker that was called."""
    where = f"{name} at {authority(*address)}"
    try:
        hello = _Handshake(connection).whole(deadline)
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
    """Raises PeerLost where the other side has closed the connection; reads nothing."""
    try:
        has_ended = not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        has_ended = True
    if has_ended:
        raise PeerLost("another worker hung up again: it has ended, or it did not reach all others")


class _Handshake:
    """A connection on which the hello has not come yet."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.hello: object = None  # once it is complete
        self._wanted = _FRAME.size
        self._bytes = b""

    def whole(self, deadline: float) -> object:
        """Waits for the hello; raises TimeoutError, otherwise as `read`."""
        while self.hello is None:
            self.connection.settimeout(max(PAUSE_S, deadline - time.monotonic()))
            self.read()
        return self.hello

    def read(self) -> None:
        """Reads no byte behind the hello; raises ValueError if it is no worker, OSError if it has hung up."""
        came = self.connection.recv(self._wanted - len(self._bytes))
        if not came:
            raise ConnectionError("closed")
        self._bytes += came
        if len(self._bytes) == _FRAME.size == self._wanted:
            mark, length = _FRAME.unpack(self._bytes)
            if mark != _MARK or not 0 < length <= MOST_BYTES:
                raise ValueError("no worker")
            self._wanted += length
        elif len(self._bytes) == self._wanted:
            try:
                self.hello = json.loads(self._bytes[_FRAME.size :])
            except RecursionError:
                raise ValueError("no worker") from None


class Acceptor:
    """Takes the calls to one worker, in a thread: those of workers wait here for `connect`, tests are answered."""

    def __init__(self, listener: socket.socket, name: str = "") -> None:
        """`listener` is at the worker's address; the acceptor closes it. Others call `name` for a test; empty: none is
        answered."""
        self.port: int = listener.getsockname()[1]
        self._listener = listener
        self.name = name
        self._most = MOST_STRANGERS
        self._callers: list[_Handshake] = []  # whose hello has not come yet, the oldest first
        self._lock = threading.Lock()
        self._calls: list[_Handshake] = []  # of workers, until `connect` takes them; the oldest first
        self._news, self._tell = socket.socketpair()  # a byte for each of these
        self._stopped, self._stop = socket.socketpair()
        for end in (listener, self._news, self._tell):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="acceptor", daemon=True)
        self._thread.start()

    def wait(
        self,
        job: str,
        rank: int,
        expected: Collection[int],
        deadline: float,
        names: Sequence[str],
        places: Sequence[Address],
        called: Mapping[int, socket.socket],
    ) -> dict[int, socket.socket]:
        """The connections of the expected ranks; raises PeerLost where one does not call in time. `places` are those of
        all workers, by rank: one that has ended ends the wait. So does one of the `called`, the connections with other
        workers by rank, that closes."""
        self._most = MOST_STRANGERS + len(names)
        came: dict[int, socket.socket] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._news, selectors.EVENT_READ)
            for connection in called.values():
                selector.register(connection, selectors.EVENT_READ, connection)
            while missing := self._take(job, rank, expected, came):
                left_s = deadline - time.monotonic()
                ready = selector.select(max(0.0, min(left_s, PROBE_S)))
                if not ready and left_s <= 0:
                    late = ", ".join(names[other] for other in missing)
                    raise PeerLost(f"{late} did not call in time: see the logs there")
                if not ready:
                    _probe({other: places[other] for other in missing}, names)
                for key, _ in ready:
                    if key.fileobj is self._news:
                        self._news.recv(1 << 12)
                    else:
                        selector.unregister(key.data)
                        _check_open(key.data)
        return came

    def _take(self, job: str, rank: int, expected: Collection[int], came: dict[int, socket.socket]) -> list[int]:
        """Takes the calls that are expected, one of each worker, and hangs up on strangers; returns the missing."""
        with self._lock:
            waiting, self._calls = self._calls, []
            for call in waiting:
                other = _sender(call.hello, job, rank)
                if other not in expected:
                    call.connection.close()
                elif other in came:  # its next connection
                    self._calls.append(call)
                else:
                    call.connection.setblocking(True)
                    came[other] = call.connection
        return [other for other in expected if other not in came]

    def _run(self) -> None:
        with die_on_error("the acceptor of calls failed"), selectors.DefaultSelector() as selector:
            for end in (self._listener, self._stopped):
                selector.register(end, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self._stopped:
                        return
                    if key.fileobj is self._listener:
                        self._accept(selector)
                    elif key.data in self._callers:  # else dropped since `select`
                        self._hear(selector, key.data)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        with contextlib.suppress(OSError):  # closed already
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            caller = _Handshake(connection)
            self._callers.append(caller)
            selector.register(connection, selectors.EVENT_READ, caller)
        if len(self._callers) > self._most:
            selector.unregister(self._callers[0].connection)
            self._callers.pop(0).connection.close()

    def _hear(self, selector: selectors.BaseSelector, caller: _Handshake) -> None:
        """Reads what has come of a hello. Once it is whole, a worker's call is kept until `connect` takes it, a test is
        answered, and all others end."""
        try:
            caller.read()
            if caller.hello is None:
                return
        except BlockingIOError:
            return
        except (OSError, ValueError):  # it has hung up, or is no worker
            pass
        self._callers.remove(caller)
        selector.unregister(caller.connection)
        if isinstance(caller.hello, dict) and "job" in caller.hello:
            with self._lock:
                self._calls.append(caller)
                if len(self._calls) > self._most:
                    self._calls.pop(0).connection.close()
            with contextlib.suppress(BlockingIOError):  # full of news
                self._tell.send(b"x")
        elif self.name and caller.hello == {"test": self.name}:
            answer = (caller.connection, _packed({"test": self.name}))
            threading.Thread(target=_answer_test, args=answer, name="test", daemon=True).start()
        else:
            caller.connection.close()

    def close(self) -> None:
        """Listens no more, and hangs up on all calls that `connect` has not taken."""
        with contextlib.suppress(OSError):  # closed before
            self._stop.send(b"x")
        self._thread.join()
        calls = [call.connection for call in (*self._callers, *self._calls)]
        for each in (self._listener, *calls, self._news, self._tell, self._stopped, self._stop):
            each.close()
