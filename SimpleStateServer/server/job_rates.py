"""The rates of a job over its whole time, from a bounded history of the work of all workers."""

from collections.abc import Sequence
from typing import NamedTuple

from server.row import Row

MAX_POINTS = 240
FIRST_PAUSE_S = 1.0  # between two points; it doubles whenever there are too many
WINDOWS = 40  # of a curve of rates
RECENT_S = 20.0  # window of the rate of rounds, at least
RECENT_SHARE = 0.25  # likewise, of the time that is known


class Mark(NamedTuple):
    """The work of all workers up to a moment, since this server learned of the job."""

    time: float  # on the server's clock (s)
    samples: int  # trained on
    round: int  # the latest that any worker has entered


class JobRates:
    """Sums the work in the rows, whenever one changes: O(1) for any number of workers. This server learned of the job
    at `started`. A `resumed` job is older: the work in a worker's first message was done before."""

    def __init__(self, started: float, resumed: bool = False) -> None:
        self.heard: float | None = None  # time of the last message of any worker
        self._resumed = resumed
        self._last = Mark(started, 0, 0)
        self._marks = [self._last]
        self._pause = FIRST_PAUSE_S

    def note(self, before: Row, after: Row) -> None:
        """Counts the progress from one row of a worker to its next one."""
        now = after.heard
        if now is None or (self.heard is not None and now < self.heard):  # nothing new
            return
        was_before = self._resumed and before.heard is None
        samples = self._last.samples + (0 if was_before else after.samples - before.samples)
        self.heard, self._last = now, Mark(now, samples, max(self._last.round, after.round))
        if now - self._marks[-1].time >= self._pause:
            self._marks.append(self._last)
            if len(self._marks) > MAX_POINTS:
                del self._marks[1::2]
                self._pause *= 2

    @property
    def marks(self) -> tuple[Mark, ...]:
        """In the order of time; the last one is that of the last message."""
        return (*(mark for mark in self._marks if mark.time < self._last.time), self._last)


def rates(marks: Sequence[Mark], now: float) -> list[tuple[float, float]]:
    """The curve of samples/s: (moment, rate in the window that ends there), evenly spaced.

    A window holds several rounds where possible, since slow workers report their steps once a round. `now`: end of the
    curve; no work was done since the last mark.
    """
    if len(marks) < 2:
        return []
    span = marks[-1].time - marks[0].time
    rounds = max(marks[-1].round - marks[0].round, 1)
    window = max(FIRST_PAUSE_S, span / WINDOWS, min(4 * span / rounds, span / 8))
    curve: list[tuple[float, float]] = []
    before, last = marks[0], marks[-1]
    for mark in (*marks[1:], last._replace(time=max(now, last.time))):
        if mark.time - before.time >= window * 0.999:
            curve.append((mark.time, (mark.samples - before.samples) / (mark.time - before.time)))
            before = mark
    return curve


def rounds_per_s(marks: Sequence[Mark], now: float) -> float | None:
    """The recent rate of rounds; None while no round is over. Arguments as in `rates`."""
    if len(marks) < 2:
        return None
    last = marks[-1]
    recent = max(RECENT_S, RECENT_SHARE * (last.time - marks[0].time))
    # Round 0 is the time before the first message, which is unknown for a job that was taken over.
    known = [mark for mark in marks if mark.round > 0]
    first = next((mark for mark in known if mark.time >= last.time - recent), last)
    if first.round == last.round:
        first = known[0]
    seconds = now - first.time
    return (last.round - first.round) / seconds if seconds > 0 and last.round > first.round else None
