"""What it takes to follow a schedule: one exchange with two other workers. virtual_mesh.py and tcp.py have it."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from trainer.collectives.schedules import Schedule, Span, meeting


class Parcel(NamedTuple):
    """A piece of a buffer on its way.

    Attributes:
        array: the piece itself, float32 (n,), contiguous: neither side copies it. Or, where nothing is added, bytes.
        num_bytes: that it counts: those of the array, or those of what it stands for in virtual time.
    """

    array: np.ndarray
    num_bytes: int


class Mesh(Protocol):
    """One worker's place among workers of which each can send to each other."""

    rank: int
    num_workers: int

    def exchange(self, to: int | None, out: Parcel, source: int | None, into: Parcel, adds: bool) -> None:
        """Sends one piece and receives another, both at once; returns when both are done.

        Messages from one worker to another arrive in the order in which they were sent. A message may wait for its
        receiver: what a schedule does must come to an end also where none travels before both sides are there.

        Args:
            to: rank that gets `out`; None: nobody does.
            source: rank whose message fills `into`; None: nobody's does.
            adds: what comes is added to `into`; else it replaces it.

        Raises:
            PeerLost: one of the two is gone, or has been silent for too long.
        """


class Moved(NamedTuple):
    """Bytes over this worker's own link."""

    sent: int
    received: int


def follow(schedule: Schedule, mesh: Mesh, buffer: np.ndarray, num_bytes: int | None = None) -> Moved:
    """Does one worker's steps on its buffer.

    Args:
        buffer: float32 (n,), contiguous; it is written to.
        num_bytes: that the buffer counts on its way, where those are not its own.

    Raises:
        PeerLost: as `Mesh.exchange` says.
    """

    def parcel(span: Span) -> Parcel:
        begin, end = (len(buffer) * edge // schedule.parts for edge in span)
        piece = buffer[begin:end]
        if num_bytes is None:
            return Parcel(piece, piece.nbytes)
        return Parcel(piece, share_of(num_bytes, span, schedule.parts))

    sent = received = 0
    for step in schedule.steps:
        out, into = parcel(step.out), parcel(step.into)
        mesh.exchange(step.to, out, step.source, into, step.adds)
        sent += out.num_bytes
        received += into.num_bytes
    return Moved(sent, received)


def share_of(num_bytes: int, span: Span, parts: int) -> int:
    """Bytes that a span counts of those of a whole buffer."""
    return num_bytes * span.end // parts - num_bytes * span.begin // parts


def gather(mesh: Mesh, content: bytes) -> list[bytes]:
    """Brings what each worker has to all, around the ring; returns it by rank.

    Args:
        content: less than 2**24 bytes, the numbers that a float32 counts to.

    Raises:
        PeerLost: as `Mesh.exchange` says.
    """
    number, rank = mesh.num_workers, mesh.rank
    found = {rank: content}

    def pass_on(out: np.ndarray, size: int) -> np.ndarray:
        into = np.empty(size, np.float32)
        around = (rank + 1) % number, (rank - 1) % number
        mesh.exchange(around[0], Parcel(out, out.nbytes), around[1], Parcel(into, into.nbytes), adds=False)
        return into

    for step in range(number - 1):
        mine = found[(rank - step) % number]
        (length,) = pass_on(np.array([len(mine)], np.float32), 1)
        padded = np.frombuffer(mine + bytes(-len(mine) % 4), np.float32)
        theirs = pass_on(padded, -(-int(length) // 4))
        found[(rank - step - 1) % number] = theirs.tobytes()[: int(length)]
    return [found[each] for each in range(number)]


def meet(mesh: Mesh, value: float = 0.0) -> float:
    """Waits until all workers are here; returns the greatest of the values that they bring (to float32's digits).

    Raises:
        PeerLost: as `Mesh.exchange` says.
    """
    greatest, other = np.array([value], np.float32), np.zeros(1, np.float32)
    for step in meeting(mesh.num_workers, mesh.rank).steps:
        mesh.exchange(step.to, Parcel(greatest, 4), step.source, Parcel(other, 4), adds=False)
        greatest = np.maximum(greatest, other)
    return float(greatest[0])
