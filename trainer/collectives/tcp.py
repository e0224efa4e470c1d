"""A mesh over TCP: a connection for each two workers, and one exchange at a time.

The kernel copies from and to numpy's own memory. Numbers to be added come in chunks that fit into the cache, while the
kernel receives the next ones. A message is a header (its number on this connection, its bytes) and its content. Another
header than expected means that the workers do not do the same.

A worker that dies closes its connections. A worker that sees this raises PeerLost and closes its own in turn, so all
leave the sum at once. The kernel's keep-alive notices a silent host. All wait for the slowest, however long; whether a
message that both sides have begun stands is seen by what compares `num_begun` of the one with `awaited` of the other.
"""

import contextlib
import math
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from trainer.collectives.mesh import Parcel
from utils import JobError, PeerLost

CHUNK = 1 << 16  # float32 that are received before they are added: 256 KB, which fit into a core's own cache
_HEADER = struct.Struct("!QQ")
# Seconds without data before the first probe, number of probes, and seconds between them.
KEEP_ALIVE = {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPCNT: 3, socket.TCP_KEEPINTVL: 2}


class _Peer:
    """Another worker, and the connection with it."""

    def __init__(self, name: str, connection: socket.socket) -> None:
        self.name = name
        self.connection = connection
        self.num_sent = self.num_received = 0  # messages, with the one under way
        self.num_bytes = 0  # that have come

    def lost(self, error: OSError | None = None) -> PeerLost:
        why = f" ({error.strerror or error})" if error else ""
        return PeerLost(f"{self.name} closed its connection{why}: it has ended, or it lost another worker")


class _Transfer(NamedTuple):
    """A message under way."""

    peer: _Peer
    event: int  # for which it waits
    steps: Iterator[bool]  # each tells whether bytes moved, as in `_send` and `_fill`


class Awaited(NamedTuple):
    """A message that is being received."""

    source: int  # rank
    number: int  # of the messages from there so far, with this one
    num_bytes: int  # that have come from there so far


class TcpMesh:
    """One worker's connections with all others. `connections` are by rank; connecting.py makes them. `names` are those
    of all workers by rank, for messages."""

    def __init__(self, rank: int, connections: Mapping[int, socket.socket], names: Sequence[str] = ()) -> None:
        self.rank = rank
        self.num_workers = len(connections) + 1
        self.connections = connections
        self.patience_s: float | None = None  # how long to wait where no byte moves; None: for ever
        self._source: int | None = None  # rank from which a message is being received
        self.idle_since = time.monotonic()  # infinite while something is exchanged, and once nothing more can be
        self._scratch = np.empty(CHUNK, np.float32)
        self._error: JobError | None = None  # after which nothing more is exchanged
        self.on_error: Callable[[], object] = lambda: None  # called before an error closes the connections
        self._peers: dict[int, _Peer] = {}
        for other, connection in connections.items():
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in KEEP_ALIVE.items():
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
            self._peers[other] = _Peer(names[other] if names else f"worker {other}", connection)

    def num_begun(self, rank: int) -> int:
        """Messages that this worker has begun to send there. Any thread may call it, as `awaited`."""
        return self._peers[rank].num_sent

    def awaited(self) -> Awaited | None:
        """The message that is being received, if any."""
        if (source := self._source) is None:
            return None
        peer = self._peers[source]
        return Awaited(source, peer.num_received, peer.num_bytes)

    def exchange(self, to: int | None, out: Parcel, source: int | None, into: Parcel, adds: bool) -> None:
        """As Mesh. An error closes the mesh, and each later call raises it again. Raises JobError if a message is not
        the expected one."""
        if self._error is not None:
            raise self._error
        self.idle_since = math.inf
        try:
            self._exchange(to, out, source, into, adds)
            self.idle_since = time.monotonic()
        except JobError as error:
            self._error, self._source = error, None
            self.on_error()
            self.close()
            raise

    def _exchange(self, to: int | None, out: Parcel, source: int | None, into: Parcel, adds: bool) -> None:
        under_way: list[_Transfer] = []
        if to is not None:
            receiver = self._peers[to]
            under_way.append(_Transfer(receiver, selectors.EVENT_WRITE, _send(receiver, receiver.num_sent, out.array)))
            receiver.num_sent += 1
        if source is not None:
            sender, scratch = self._peers[source], self._scratch if adds else None
            steps = self._receive(sender, sender.num_received, into.array, scratch)
            under_way.append(_Transfer(sender, selectors.EVENT_READ, steps))
            sender.num_received += 1
            self._source = source
        while under_way:
            moved = [next(each.steps, None) for each in under_way]
            under_way = [each for each, has_moved in zip(under_way, moved, strict=True) if has_moved is not None]
            if under_way and not any(moved):
                self._wait(under_way)

    def _receive(self, peer: _Peer, number: int, content: np.ndarray, scratch: np.ndarray | None) -> Iterator[bool]:
        """Receives the message of this number, as `_fill`. `scratch`, float32 (CHUNK,), is for numbers that are added
        to the content; None: they replace it."""
        header = bytearray(_HEADER.size)
        yield from _fill(peer, memoryview(header))
        found, expected = _HEADER.unpack(header), (number, content.nbytes)
        if found != expected:
            raise JobError(
                f"{peer.name} sent {found[1]} bytes as message {found[0]}, where {expected[1]} as message "
                f"{expected[0]} were due: start all workers with the same flags and the same version of this program"
            )
        if scratch is None:
            yield from _fill(peer, _bytes_of(content))
        else:
            for begin in range(0, len(content), CHUNK):
                piece = content[begin : begin + CHUNK]
                came = scratch[: len(piece)]
                yield from _fill(peer, _bytes_of(came))
                np.add(piece, came, out=piece)
        self._source = None

    def _wait(self, blocked: Sequence[_Transfer]) -> None:
        with selectors.PollSelector() as selector:
            events: dict[socket.socket, int] = {}
            for each in blocked:
                connection = each.peer.connection
                events[connection] = events.get(connection, 0) | each.event
            for connection, event in events.items():
                selector.register(connection, event)
            if selector.select(self.patience_s):
                return
        names = " and ".join(sorted({each.peer.name for each in blocked}))
        raise PeerLost(f"nothing came from {names} for {self.patience_s:g} s: it is frozen, or its host is down")

    def interrupt(self) -> None:
        """Shuts the connections down, which ends the waits of other workers and of other threads of this process. They
        stay open, since such a thread may still use them."""
        self.idle_since = math.inf
        for connection in self.connections.values():
            with contextlib.suppress(OSError):  # the other side has closed it
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """As `interrupt`, and closes the connections. Afterwards nothing here leads back to this object, so that its
        buffers go with the last user's reference."""
        self.interrupt()
        if self._error is not None:
            self._error.__traceback__ = self._error.__context__ = None
        for connection in self.connections.values():
            connection.close()


def _bytes_of(array: np.ndarray) -> memoryview:
    """The memory of an array (n,)."""
    return array.view(np.uint8).data


def _send(peer: _Peer, number: int, content: np.ndarray) -> Iterator[bool]:
    """Sends the message of this number; after each system call yields whether the socket took some of it."""
    header, view = _HEADER.pack(number, content.nbytes), _bytes_of(content)
    done = -len(header)  # bytes of the content that were sent; below 0: of the header
    while done < len(view):
        rest = view[max(done, 0) :]
        try:
            done += peer.connection.sendmsg([header[done:], rest]) if done < 0 else peer.connection.send(rest)
        except BlockingIOError:
            yield False
        except OSError as error:
            raise peer.lost(error) from None
        else:
            yield True


def _fill(peer: _Peer, view: memoryview) -> Iterator[bool]:
    """Receives as many bytes; after each system call yields whether some have come."""
    while view:
        try:
            count = peer.connection.recv_into(view)
        except BlockingIOError:
            yield False
            continue
        except OSError as error:
            raise peer.lost(error) from None
        if not count:
            raise peer.lost()
        peer.num_bytes += count
        view = view[count:]
        yield True
