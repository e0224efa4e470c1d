"""Connects the workers of a job: each calls those of lower rank, and accepts calls of the others.

Both sides send a hello with their job and their ranks. A connection without a right hello is closed, and costs the job
nothing.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence

from trainer.collectives.tcp import TcpMesh
from utils import PeerLost, SetupError, authority

Address = tuple[str, int]  # host and port

_FRAME = struct.Struct("!8sH")  # the mark, and how many bytes of JSON follow
_MARK = b"esync-1\n"
MOST_BYTES = 4096  # of a hello
MOST_STRANGERS = 64  # open connections without a hello, beside those of the workers
PAUSE_S = 0.05  # between two calls to a worker that does not listen yet
PROBE_S = 0.25  # for one probe whether a worker listens, and between two probes


class NotThere(PeerLost):
    """Workers have ended: they no longer listen at their addresses."""

    def __init__(self, ranks: Sequence[int], text: str) -> None:
        super().__init__(text)
        self.ranks = tuple(ranks)


def connect(
    rank: int,
    addresses: Sequence[Address],
    listener: socket.socket,
    job: str,
    timeout_s: float = 60.0,
    names: Sequence[str] = (),
    all_listen: bool = False,
) -> TcpMesh:
    """Connects one worker with all others; all of them call it.

    Args:
        addresses: of all workers by rank.
        listener: of this worker, at its address; it stays open, and the caller closes it.
        job: the job's identity; a secret of its workers where strangers are to be kept out.
        timeout_s: until all are connected.
        names: of all workers by rank, for messages.
        all_listen: all workers listen already: one that does not, or that hangs up, has ended.

    Raises:
        PeerLost: a worker was not there in time.
        NotThere: with `all_listen`, a worker has ended.
        SetupError: another job, or another worker, answers at an address.
    """
    names = names or [f"worker {other}" for other in range(len(addresses))]
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as on_error:
        connections: dict[int, socket.socket] = {}
        for other in range(rank):
            call = _call(other, addresses[other], names[other], deadline, all_listen)
            connections[other] = on_error.enter_context(call)
            connections[other].sendall(_frame(job, rank, other))
        acceptor = _Acceptor(listener, job, rank, range(rank + 1, len(addresses)))
        on_error.callback(acceptor.hang_up)
        called = acceptor.wait(deadline, names, addresses if all_listen else (), connections)
        for other, connection in called.items():
            connections[other] = on_error.enter_context(connection)
            connection.sendall(_frame(job, rank, other))
        for other in range(rank):
            _check_answer(connections[other], job, rank, other, addresses[other], names[other], deadline)
        on_error.pop_all()
        acceptor.hang_up()
    return TcpMesh(rank, connections, names)


def _probe(places: Mapping[int, Address], names: Sequence[str]) -> None:
    """Raises NotThere for workers that no longer listen at these places, by rank; a probe does not disturb them."""
    refusing = []
    for other, place in places.items():
        try:
            socket.create_connection(place, PROBE_S).close()
        except ConnectionRefusedError:
            refusing.append(other)
        except OSError:  # perhaps just slow
            continue
    if refusing:
        raise NotThere(refusing, f"{', '.join(names[other] for other in refusing)} has ended")


def _frame(job: str, rank: int, to: int) -> bytes:
    hello = json.dumps({"job": job, "from": rank, "to": to}).encode()
    return _FRAME.pack(_MARK, len(hello)) + hello


def _call(other: int, address: Address, name: str, deadline: float, listens: bool) -> socket.socket:
    """Calls until the other worker answers; it may not listen yet, unless `listens`."""
    while True:
        try:
            return socket.create_connection(address, max(PAUSE_S, deadline - time.monotonic()))
        except OSError as error:
            if listens and isinstance(error, ConnectionRefusedError):
                raise NotThere([other], f"{name} has ended ({error})") from None
            if time.monotonic() >= deadline:
                raise PeerLost(f"{name} at {authority(*address)} is not reached ({error})") from None
        time.sleep(PAUSE_S)


def _check_answer(
    connection: socket.socket, job: str, rank: int, other: int, address: Address, name: str, deadline: float
) -> None:
    """Reads the hello of the worker that was called."""
    handshake = _Handshake(connection)
    where = f"{name} at {authority(*address)}"
    try:
        while handshake.hello is None:
            connection.settimeout(max(PAUSE_S, deadline - time.monotonic()))
            handshake.read()
    except (OSError, ValueError) as error:
        if isinstance(error, TimeoutError):
            raise PeerLost(f"{where} does not answer") from None
        raise SetupError(f"{where} hung up: it has ended, or it belongs to another job or program") from None
    if not _is_from(handshake.hello, job, other, rank):
        raise SetupError(f"{where} is not that worker of this job: give all workers the same list of addresses")


def _is_from(hello: object, job: str, rank: int, to: int) -> bool:
    if not isinstance(hello, dict) or hello.keys() != {"job", "from", "to"}:
        return False
    given = str(hello["job"]).encode(errors="replace")
    known = hmac.compare_digest(given, job.encode())
    return known and (hello["from"], hello["to"]) == (rank, to)


def _check_open(connection: object) -> None:
    """Raises PeerLost where the other side has closed the connection; reads nothing."""
    assert isinstance(connection, socket.socket)
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


class _Acceptor:
    """Accepts calls until all expected workers have called."""

    def __init__(self, listener: socket.socket, job: str, rank: int, expected: Sequence[int]) -> None:
        self._listener = listener
        self._job = job
        self._rank = rank
        self._expected = expected
        self._handshakes: dict[socket.socket, _Handshake] = {}  # the oldest first
        self._workers: dict[int, socket.socket] = {}

    def wait(
        self, deadline: float, names: Sequence[str], places: Sequence[Address], called: Mapping[int, socket.socket]
    ) -> dict[int, socket.socket]:
        """The connections of the expected ranks; raises PeerLost where one does not call in time.

        Args:
            places: of all workers by rank, where all listen already: then a worker that has ended ends the wait.
            called: connections with other workers, by rank: with `places`, one that closes ends the wait too.
        """
        was_blocking = self._listener.gettimeout()
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            for connection in called.values() if places else ():
                selector.register(connection, selectors.EVENT_READ)
            while missing := [other for other in self._expected if other not in self._workers]:
                left_s = deadline - time.monotonic()
                ready = selector.select(max(0.0, min(left_s, PROBE_S) if places else left_s))
                if not ready and left_s <= 0:
                    late = ", ".join(names[other] for other in missing)
                    raise PeerLost(f"{late} did not call in time: see the logs there")
                if places and not ready:
                    _probe({other: places[other] for other in missing}, names)
                for key, _ in ready:
                    if key.fileobj in called.values():
                        selector.unregister(key.fileobj)
                        _check_open(key.fileobj)
                    else:
                        self._serve(selector, key.fileobj)
        self._listener.settimeout(was_blocking)
        return self._workers

    def _serve(self, selector: selectors.BaseSelector, ready: object) -> None:
        if ready is self._listener:
            with contextlib.suppress(OSError):  # closed already
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._handshakes[connection] = _Handshake(connection)
                selector.register(connection, selectors.EVENT_READ)
            if len(self._handshakes) > len(self._expected) + MOST_STRANGERS:
                self._drop(selector, next(iter(self._handshakes)))
            return
        assert isinstance(ready, socket.socket)
        handshake = self._handshakes.get(ready)
        if handshake is None:  # dropped since `select`
            return
        try:
            handshake.read()
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._drop(selector, ready)
            return
        if handshake.hello is None:
            return
        for other in self._expected:
            if other not in self._workers and _is_from(handshake.hello, self._job, other, self._rank):
                del self._handshakes[ready]
                selector.unregister(ready)
                ready.setblocking(True)
                self._workers[other] = ready
                return
        self._drop(selector, ready)

    def _drop(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        del self._handshakes[connection]
        selector.unregister(connection)
        connection.close()

    def hang_up(self) -> None:
        """Closes all connections without a hello."""
        for connection in self._handshakes:
            connection.close()
        self._handshakes.clear()
