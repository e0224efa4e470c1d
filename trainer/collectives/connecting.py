"""How the workers of a job connect with each other: everybody calls those of lower rank, and answers the others.

Both sides say which job they belong to and who they are. Whoever says anything else is no worker of this job: it is
hung up on, and costs the job nothing.
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

from trainer.collectives.tcp import PATIENCE_S, TcpMesh
from utils import PeerLost, SetupError

Address = tuple[str, int]  # host and port

_FRAME = struct.Struct("!8sH")  # what this is, and how many bytes of JSON follow
_MARK = b"esync-1\n"
MOST_BYTES = 4096  # of what one side says
MOST_GUESTS = 64  # beside the workers, who have not said yet who they are
PAUSE_S = 0.05  # between two calls to a worker that does not listen yet
PROBE_S = 0.25  # to hear whether somebody listens, and between two such looks


class NotThere(PeerLost):
    """Workers do not listen any more at the addresses that they had: they have ended."""

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
    patience_s: float = PATIENCE_S,
    all_listen: bool = False,
) -> TcpMesh:
    """Connects one worker with all others; all of them call it.

    Args:
        addresses: of all workers by rank.
        listener: of this worker, at its address; it stays open and is the caller's.
        job: what all workers of the job know, and nobody else where it is to keep strangers out.
        timeout_s: until all are connected.
        names: of all workers by rank, for messages.
        patience_s: of the mesh: how long to wait later where nothing moves.
        all_listen: all workers do already. One that does not, or that hangs up again, is waited for no longer.

    Raises:
        PeerLost: a worker was not there in time.
        NotThere: a worker has ended; where all listen.
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
        participants = _Participants(listener, job, rank, range(rank + 1, len(addresses)))
        on_error.callback(participants.hang_up)
        called = participants.wait(deadline, names, addresses if all_listen else (), connections)
        for other, connection in called.items():
            connections[other] = on_error.enter_context(connection)
            connection.sendall(_frame(job, rank, other))
        for other in range(rank):
            _check_answer(connections[other], job, rank, other, addresses[other], names[other], deadline)
        on_error.pop_all()
        participants.hang_up()
    return TcpMesh(rank, connections, names, patience_s)


def _probe(places: Mapping[int, Address], names: Sequence[str]) -> None:
    """Makes sure that workers listen at these places, by rank: whoever is called and hears nothing loses nothing."""
    refusing = []
    for other, place in places.items():
        try:
            socket.create_connection(place, PROBE_S).close()
        except ConnectionRefusedError:
            refusing.append(other)
        except OSError:  # perhaps it is only slow
            continue
    if refusing:
        raise NotThere(refusing, f"{', '.join(names[other] for other in refusing)} has ended")


def _frame(job: str, rank: int, to: int) -> bytes:
    words = json.dumps({"job": job, "from": rank, "to": to}).encode()
    return _FRAME.pack(_MARK, len(words)) + words


def _call(other: int, address: Address, name: str, deadline: float, listens: bool) -> socket.socket:
    """Calls until somebody answers: the other one may not listen yet, unless it is known that it does."""
    while True:
        try:
            return socket.create_connection(address, max(PAUSE_S, deadline - time.monotonic()))
        except OSError as error:
            if listens and isinstance(error, ConnectionRefusedError):
                raise NotThere([other], f"{name} has ended ({error})") from None
            if time.monotonic() >= deadline:
                raise PeerLost(f"{name} at {address[0]}:{address[1]} is not reached ({error})") from None
        time.sleep(PAUSE_S)


def _check_answer(
    connection: socket.socket, job: str, rank: int, other: int, address: Address, name: str, deadline: float
) -> None:
    """The one that was called says who it is."""
    participant = _Participant(connection)
    connection.settimeout(max(PAUSE_S, deadline - time.monotonic()))
    where = f"{name} at {address[0]}:{address[1]}"
    try:
        while participant.words is None:
            participant.read()
    except (OSError, ValueError) as error:
        if isinstance(error, TimeoutError):
            raise PeerLost(f"{where} does not answer") from None
        raise SetupError(f"{where} hung up: it has ended, or it belongs to another job or program") from None
    if not _is_from(participant.words, job, other, rank):
        raise SetupError(f"{where} is not that worker of this job: give all workers the same list of addresses")


def _is_from(words: object, job: str, rank: int, to: int) -> bool:
    if not isinstance(words, dict) or words.keys() != {"job", "from", "to"}:
        return False
    known = isinstance(words["job"], str) and hmac.compare_digest(words["job"].encode(), job.encode())
    return known and (words["from"], words["to"]) == (rank, to)


def _check_open(connection: object) -> None:
    """Raises PeerLost where the other side has hung up; reads nothing."""
    assert isinstance(connection, socket.socket)
    try:
        has_ended = not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        has_ended = True
    if has_ended:
        raise PeerLost("another worker hung up again: it has ended, or it did not reach all others")


class _Participant:
    """A caller who has not said yet who it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.words: object = None  # what it said, once all of it is here
        self._wanted = _FRAME.size
        self._bytes = b""

    def read(self) -> None:
        """Reads no more than belongs to its words; raises ValueError if it is no worker, OSError if it is gone."""
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
            self.words = json.loads(self._bytes[_FRAME.size :])


class _Participants:
    """All callers, until the workers among them are there."""

    def __init__(self, listener: socket.socket, job: str, rank: int, expected: Sequence[int]) -> None:
        self._listener = listener
        self._job = job
        self._rank = rank
        self._expected = expected
        self._participants: dict[socket.socket, _Participant] = {}  # in the order in which they came
        self._workers: dict[int, socket.socket] = {}

    def wait(
        self, deadline: float, names: Sequence[str], places: Sequence[Address], called: Mapping[int, socket.socket]
    ) -> dict[int, socket.socket]:
        """The connections of the expected ranks; raises PeerLost where one does not call in time.

        Args:
            places: of all workers by rank, where all listen: then also who has ended ends the wait.
            called: the connections with other workers, by rank: likewise who hangs up.
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
            with contextlib.suppress(OSError):  # it has hung up already
                connection, _ = self._listener.accept()
                connection.setblocking(False)
                self._participants[connection] = _Participant(connection)
                selector.register(connection, selectors.EVENT_READ)
            if len(self._participants) > len(self._expected) + MOST_GUESTS:
                self._drop(selector, next(iter(self._participants)))
            return
        assert isinstance(ready, socket.socket)
        participant = self._participants.get(ready)
        if participant is None:  # dropped a moment ago
            return
        try:
            participant.read()
        except BlockingIOError:
            return
        except (OSError, ValueError):
            self._drop(selector, ready)
            return
        if participant.words is None:
            return
        for other in self._expected:
            if other not in self._workers and _is_from(participant.words, self._job, other, self._rank):
                del self._participants[ready]
                selector.unregister(ready)
                ready.setblocking(True)
                self._workers[other] = ready
                return
        self._drop(selector, ready)

    def _drop(self, selector: selectors.BaseSelector, connection: socket.socket) -> None:
        del self._participants[connection]
        selector.unregister(connection)
        connection.close()

    def hang_up(self) -> None:
        """Closes the connections of all who have not said who they are."""
        for connection in self._participants:
            connection.close()
        self._participants.clear()
