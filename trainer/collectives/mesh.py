"""The protocol of an exchange with two other workers, and the collective operations that are made of exchanges. mpi.py
has MPI's own."""

from typing import NamedTuple, Protocol

import numpy as np

from trainer.collectives.schedules import ExchangeSchedule, ScheduleMaker, Span, barrier, broadcast


class Parcel(NamedTuple):
    """A piece of a buffer to send, or to receive into."""

    array: np.ndarray  # float32 (n,), contiguous, which neither side copies; or, where nothing is added, bytes
    num_bytes: int  # that it counts: the array's own, or those of the array that it stands for in virtual time


class Mesh(Protocol):
    """One worker's connections with all others."""

    rank: int
    num_workers: int

    def exchange(self, to: int | None, out: Parcel, source: int | None, into: Parcel, adds: bool) -> None:
        """Sends one piece and receives another, both at once; returns when both are done.

        Messages from one worker to another arrive in the order in which they were sent. A message may wait for its
        receiver, so a schedule must not depend on messages that travel before both sides are there.

        Args:
            to: rank that gets `out`; None: no rank.
            source: rank whose message fills `into`; None: no rank.
            adds: the message is added to `into`; else it replaces it.

        Raises:
            PeerLost: one of the two is lost, or has been silent for too long.
        """


class Moved(NamedTuple):
    """Bytes over this worker's own link."""

    sent: int
    received: int


class _Message:
    """The two pieces of one exchange in one message: float32 first, so that both are aligned.

    The sender of a piece keeps it rounded as it was sent. So the worker that has summed a part keeps the bits that it
    sends, and passing them on rounds nothing more: all workers end with the same bits. Parts that were sent before they
    were complete are overwritten later by the sum.
    """

    def __init__(self, rest: np.ndarray, halves: np.ndarray) -> None:
        """The numbers of `rest` travel as float32, those of `halves` as float16."""
        self._rest, self._halves = rest, halves
        self.bytes = np.empty(rest.nbytes + halves.nbytes // 2, np.uint8)
        self._sent_rest = self.bytes[: rest.nbytes].view(np.float32)
        self._sent_halves = self.bytes[rest.nbytes :].view(np.float16)

    def pack(self) -> None:
        """Writes the pieces into the message, and rounds them as it does."""
        self._sent_rest[:] = self._rest
        with np.errstate(over="ignore"):  # large numbers become infinite; with --max-bad-steps 0 none are checked
            self._sent_halves[:] = self._halves
        self._halves[:] = self._sent_halves

    def unpack(self, adds: bool) -> None:
        """Writes the message into the pieces, or adds it to them."""
        for piece, sent in ((self._rest, self._sent_rest), (self._halves, self._sent_halves)):
            if adds:
                piece += sent
            else:
                piece[:] = sent


def follow(schedule: ExchangeSchedule, mesh: Mesh, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
    """Does one worker's exchanges on its buffer. The buffer, float32 (n,) and contiguous, is written to, and counts
    `num_bytes`; of its numbers the first `num_halves` travel as float16, and are summed as float32. Raises PeerLost as
    `Mesh.exchange` says."""
    parts = schedule.parts

    def piece(of: np.ndarray, span: Span) -> np.ndarray:
        return of[len(of) * span.begin // parts : len(of) * span.end // parts]

    def message(span: Span) -> _Message:
        return _Message(piece(buffer[num_halves:], span), piece(buffer[:num_halves], span))

    sent = received = 0
    for step in schedule.steps:
        size_out, size_into = (
            num_bytes * span.end // parts - num_bytes * span.begin // parts for span in (step.out, step.into)
        )
        if num_halves:
            out, into = message(step.out), message(step.into)
            out.pack()
            mesh.exchange(step.to, Parcel(out.bytes, size_out), step.source, Parcel(into.bytes, size_into), adds=False)
            if step.source is not None:
                into.unpack(step.adds)
        else:
            to_send, to_fill = Parcel(piece(buffer, step.out), size_out), Parcel(piece(buffer, step.into), size_into)
            mesh.exchange(step.to, to_send, step.source, to_fill, step.adds)
        sent += size_out
        received += size_into
    return Moved(sent, received)


class Group(Protocol):
    """One worker's side. All workers call the same methods in the same order, one at a time."""

    rank: int
    num_workers: int

    def all_reduce(self, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
        """Replaces the buffer, float32 (n,) and contiguous, by its sum over the workers, the same bits on all. It
        counts `num_bytes` in the traffic; of its numbers the first `num_halves` travel as float16. Raises PeerLost
        where a worker is lost."""

    def broadcast(self, buffer: np.ndarray, num_bytes: int, source: int = 0) -> Moved:
        """Replaces the buffer by that of rank `source`; otherwise as `all_reduce`."""

    def barrier(self, value: float = 0.0) -> float:
        """Waits until all workers have called it; returns the greatest of their values, as a float32."""

    def all_gather(self, content: bytes) -> list[bytes]:
        """The workers' contents by rank; less than 16 MB each."""


class MeshGroup:
    """A Group over a mesh; `algorithm` is one of schedules.SUMS."""

    def __init__(self, mesh: Mesh, algorithm: ScheduleMaker) -> None:
        self.rank = mesh.rank
        self.num_workers = mesh.num_workers
        self._mesh = mesh
        self._sum = algorithm(mesh.num_workers, mesh.rank)

    def all_reduce(self, buffer: np.ndarray, num_bytes: int, num_halves: int = 0) -> Moved:
        return follow(self._sum, self._mesh, buffer, num_bytes, num_halves)

    def broadcast(self, buffer: np.ndarray, num_bytes: int, source: int = 0) -> Moved:
        return follow(broadcast(self.num_workers, self.rank, source), self._mesh, buffer, num_bytes)

    def barrier(self, value: float = 0.0) -> float:
        greatest, other = np.array([value], np.float32), np.zeros(1, np.float32)
        for step in barrier(self.num_workers, self.rank).steps:
            self._mesh.exchange(step.to, Parcel(greatest, 4), step.source, Parcel(other, 4), adds=False)
            greatest = np.maximum(greatest, other)
        return float(greatest[0])

    def all_gather(self, content: bytes) -> list[bytes]:
        """With each exchange a worker knows the contents of twice as many ranks below its own (Bruck et al., "Efficient
        algorithms for all-to-all communications", IEEE TPDS 8(11), 1997, section 4). A content has less than 2**24
        bytes, up to which a float32 counts exactly."""
        number, rank = self.num_workers, self.rank
        known = [content]  # of this rank, the one below it, ...

        def exchange(out: np.ndarray, size: int) -> np.ndarray:
            to, source, into = (rank + distance) % number, (rank - distance) % number, np.empty(size, np.float32)
            self._mesh.exchange(to, Parcel(out, out.nbytes), source, Parcel(into, into.nbytes), adds=False)
            return into

        while (distance := len(known)) < number:
            mine = known[: number - distance]
            lengths = exchange(np.array([*map(len, mine)], np.float32), len(mine)).astype(int)
            whole = b"".join(mine)
            padded = np.frombuffer(whole + bytes(-len(whole) % 4), np.float32)
            theirs = exchange(padded, -(-lengths.sum() // 4)).tobytes()
            ends = lengths.cumsum()
            known += [theirs[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        return [known[(rank - each) % number] for each in range(number)]
