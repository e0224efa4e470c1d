"""Workers that send to each other over TCP: a connection for each two of them, and one exchange at a time.

Numpy's own memory is what the kernel copies from and to. What is to be added comes in chunks that fit into the cache,
while the kernel receives the next. A message is a header, its number on this way and the bytes that follow, and these.
Other bytes than expected mean that the workers do not do the same.

A worker that dies closes its connections. Whoever sees that raises PeerLost and closes its own in turn, so all are out
of the sum at once, whomever they exchange with. A host that falls silent is noticed by the kernel's
keep-alive, and a worker that sends nothing by `patience_s`: all wait for the slowest, so that has to be long.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from trainer.collectives.mesh import Parcel
from utils import JobError, PeerLost

CHUNK = 1 << 16  # float32 that are received before they are added: 256 KB, which a core's own cache holds
PATIENCE_S = 600.0
_HEADER = struct.Struct("!QQ")
# A connection on which nothing comes for so many seconds is tried, so often, and so many seconds apart.
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPCNT: 3, socket.TCP_KEEPINTVL: 2}


class _Peer:
    """Another worker, and the connection to it."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        self.connection = connection
        self.num_sent = self.num_received = 0  # messages

    def lost(self, error: OSError | None = None) -> PeerLost:
        """Why nothing more can be exchanged with it."""
        why = f" ({error.strerror or error})" if error else ""
        return PeerLost(f"{self.name} closed its connection{why}: it has ended, or it lost another worker")


class _Sending:
    """A message on its way out."""

    event = selectors.EVENT_WRITE

    def __init__(self, peer: _Peer, content: np.ndarray) -> None:
        self.peer = peer
        self._header = _HEADER.pack(peer.num_sent, content.nbytes)
        self._content = _bytes_of(content)
        self._done = -len(self._header)  # bytes of the content
        peer.num_sent += 1

    @property
    def is_over(self) -> bool:
        """Whether all of it is on its way."""
        return self._done == len(self._content)

    def go_on(self) -> None:
        """Sends what can be sent now; raises BlockingIOError if that is nothing."""
        rest = self._content[max(self._done, 0) :]
        if self._done < 0:
            self._done += self.peer.connection.sendmsg([self._header[self._done :], rest])
        else:
            self._done += self.peer.connection.send(rest)


class _Receiving:
    """A message on its way in.

    Args:
        scratch: float32 (CHUNK,): what is to be added comes here first; None: it replaces the content.
    """

    event = selectors.EVENT_READ

    def __init__(self, peer: _Peer, content: np.ndarray, scratch: np.ndarray | None) -> None:
        self.peer = peer
        self._content = content
        self._header = bytearray(_HEADER.size)
        self._target = memoryview(self._header)  # what the bytes go to that come next
        self._filled = 0  # bytes of that
        self._done = -1  # numbers of the content that are there; -1: the header is not
        self._scratch = scratch

    @property
    def is_over(self) -> bool:
        """Whether all of it is here."""
        return self._done == len(self._content)

    def go_on(self) -> None:
        """Receives what is here now; raises BlockingIOError if that is nothing."""
        count = self.peer.connection.recv_into(self._target[self._filled :])
        if not count:
            raise self.peer.lost()
        self._filled += count
        if self._filled == len(self._target):
            self._target_is_full()

    def _target_is_full(self) -> None:
        if self._done < 0:
            self._check_header()
            self._done = 0
        else:
            count = self._filled // self._content.itemsize
            if self._scratch is not None:
                piece = self._content[self._done : self._done + count]
                np.add(piece, self._scratch[:count], out=piece)
            self._done += count
        left = len(self._content) - self._done
        chunk = self._content[self._done :] if self._scratch is None else self._scratch[: min(left, CHUNK)]
        self._target, self._filled = _bytes_of(chunk), 0

    def _check_header(self) -> None:
        found, expected = _HEADER.unpack(self._header), (self.peer.num_received, self._content.nbytes)
        if found != expected:
            raise JobError(
                f"{self.peer.name} sent {found[1]} bytes as message {found[0]}, where {expected[1]} as message "
                f"{expected[0]} were due: start all workers with the same flags and the same version of this program"
            )
        self.peer.num_received += 1


class TcpMesh:
    """One worker's place in a mesh of connections.

    Args:
        connections: by rank, to each other worker; connecting.py makes them.
        names: of all workers by rank, for messages.
        patience_s: how long to wait where nothing moves.
    """

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, socket.socket],
        names: Sequence[str] = (),
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.rank = rank
        self.num_workers = len(connections) + 1
        self.patience_s = patience_s
        self._scratch = np.empty(CHUNK, np.float32)
        self._error: JobError | None = None  # after which nothing more is exchanged
        self.on_error: Callable[[], object] = lambda: None  # called before the connections close for an error
        self._peers: dict[int, _Peer] = {}
        for other, connection in connections.items():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            self._peers[other] = _Peer(names[other] if names else f"worker {other}", connection)

    @property
    def connections(self) -> dict[int, socket.socket]:
        """By rank; for a look at whether they are open."""
        return {rank: peer.connection for rank, peer in self._peers.items()}

    def exchange(self, to: int | None, out: Parcel, source: int | None, into: Parcel, adds: bool) -> None:
        """As Mesh says. After an error the mesh is closed, and this raises the same again.

        Raises:
            JobError: what came is not what was due.
        """
        if self._error is not None:
            raise self._error
        try:
            self._exchange(to, out, source, into, adds)
        except JobError as error:
            self._error = error
            self.on_error()
            self.close()
            raise

    def _exchange(self, to: int | None, out: Parcel, source: int | None, into: Parcel, adds: bool) -> None:
        under_way: list[_Sending | _Receiving] = []
        if to is not None:
            under_way.append(_Sending(self._peers[to], out.array))
        if source is not None:
            under_way.append(_Receiving(self._peers[source], into.array, self._scratch if adds else None))
        while under_way:
            blocked = [each for each in under_way if not _goes_on(each)]
            if len(blocked) == len(under_way):
                self._wait(blocked)
            under_way = [each for each in under_way if not each.is_over]

    def _wait(self, blocked: Sequence[_Sending | _Receiving]) -> None:
        """Until one of them can go on."""
        with selectors.PollSelector() as selector:
            events: dict[socket.socket, int] = {}
            for each in blocked:
                connection = each.peer.connection
                events[connection] = events.get(connection, 0) | each.event
            for connection, event in events.items():
                selector.register(connection, event)
            if not selector.select(self.patience_s):
                self._give_up(blocked)

    def _give_up(self, blocked: Sequence[_Sending | _Receiving]) -> NoReturn:
        names = " and ".join(sorted({each.peer.name for each in blocked}))
        raise PeerLost(f"nothing came from {names} for {self.patience_s:g} s: it is frozen, or its host is down")

    def interrupt(self) -> None:
        """Nothing more is exchanged: whoever waits for this worker is told, also another thread of this process, which
        may use the connections still."""
        for peer in self._peers.values():
            with contextlib.suppress(OSError):  # the other side was quicker
                peer.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes all connections; otherwise as `interrupt`."""
        self.interrupt()
        for peer in self._peers.values():
            peer.connection.close()


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of an array (n,)."""
    return array.view(np.uint8).data


def _goes_on(each: _Sending | _Receiving) -> bool:
    """Whether something moved."""
    try:
        each.go_on()
    except BlockingIOError:
        return False
    except OSError as error:
        raise each.peer.lost(error) from None
    return True
