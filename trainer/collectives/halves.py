"""Follows a schedule with float16 messages and float32 sums.

The sender of a piece keeps it rounded as it was sent. So the worker that has summed a part keeps the bits that it
sends, and passing them on rounds nothing more: all workers end with the same bits. Parts that were sent before they
were complete are overwritten later by the sum.
"""

import numpy as np

from trainer.collectives.mesh import Mesh, Moved, Parcel, share_of
from trainer.collectives.schedules import ExchangeSchedule, Span


class _Message:
    """The two pieces of one exchange in one message: float32 first, so that both are aligned."""

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


def follow(schedule: ExchangeSchedule, mesh: Mesh, buffer: np.ndarray, num_bytes: int, num_halves: int) -> Moved:
    """Does one worker's exchanges on its buffer, float32 (n,) and contiguous, and writes to it, as mesh.follow, and
    raises PeerLost as `Mesh.exchange` does. The buffer counts `num_bytes`; of its numbers the first `num_halves` travel
    as float16."""
    parts = schedule.parts

    def piece(of: np.ndarray, span: Span) -> np.ndarray:
        return of[len(of) * span.begin // parts : len(of) * span.end // parts]

    def message(span: Span) -> _Message:
        return _Message(piece(buffer[num_halves:], span), piece(buffer[:num_halves], span))

    sent = received = 0
    for step in schedule.steps:
        out, into = message(step.out), message(step.into)
        out.pack()
        size_out, size_into = (share_of(num_bytes, span, parts) for span in (step.out, step.into))
        mesh.exchange(step.to, Parcel(out.bytes, size_out), step.source, Parcel(into.bytes, size_into), adds=False)
        if step.source is not None:
            into.unpack(step.adds)
        sent += size_out
        received += size_into
    return Moved(sent, received)
