"""The metric, the loss and the events of a job over time, each in a bounded number."""

from collections.abc import Sequence
from typing import NamedTuple

from server.messages import MAX_POINTS

KEPT_EVENTS = 100
SAME_S = 10.0  # within which all workers tell of an event


class Point(NamedTuple):
    """One evaluation."""

    round: int  # after which it was made
    time: float  # when it was reported, on the server's clock (s)
    value: float  # of the metric


class Event(NamedTuple):
    """What has happened to a job: when, on the server's clock (s); after which round; an event's kind; in words."""

    time: float
    round: int
    kind: str
    text: str


def with_event(latest: Sequence[Event], event: Event) -> Sequence[Event]:
    """A job's latest events with one more, unless it is a known one that another worker tells too, or one worker
    again."""
    if any(each[2:] == event[2:] and abs(each.time - event.time) < SAME_S for each in latest):
        return latest
    return sorted((*latest, event))[-KEPT_EVENTS:]


class Curve:
    """Keeps every evaluation of a short job and evenly spaced ones of a long one, at most `limit`: beyond, every second
    one is dropped. The last and the best point are kept besides."""

    def __init__(self, limit: int = MAX_POINTS, more_is_better: bool = True) -> None:
        self._sign = -1 if more_is_better else 1
        self._limit = limit
        self._kept: dict[int, Point] = {}  # by round, in ascending order
        self._stride = 1  # every n-th evaluation is kept
        self._count = 0  # evaluations so far
        self.last: Point | None = None
        self.best: Point | None = None  # the first of equals

    def add(self, point: Point) -> None:
        """Adds an evaluation; one whose round is not later than the last one's is a repetition."""
        if self.last is not None and point.round <= self.last.round:
            return
        self.last = point
        if self._count % self._stride == 0:
            self._kept[point.round] = point
        self._count += 1
        self._note([point])

    def merge(self, points: list[Point]) -> None:
        """Adds the points of the same job from before a restart."""
        ends = [self.last] if self.last is not None else []
        known = {point.round: point for point in (*ends, *points)} | self._kept
        self._kept = {point.round: point for point in sorted(known.values())}
        self.last = max(self._kept.values(), default=None)
        self._note(points)

    def _note(self, points: list[Point]) -> None:
        best = [self.best] if self.best is not None else []
        self.best = min([*best, *points], key=lambda point: (self._sign * point.value, point.round), default=None)
        while len(self._kept) > self._limit:
            self._kept = dict(list(self._kept.items())[::2])
            self._stride *= 2

    @property
    def points(self) -> tuple[Point, ...]:
        """By round: evenly spaced points, the best and the last."""
        extra = {point.round: point for point in (self.best, self.last) if point is not None}
        return tuple(sorted((self._kept | extra).values()))
