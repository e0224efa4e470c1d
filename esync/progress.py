"""A worker's progress since its job began, by its own count and clock.

Every message to the state server contains it, so a restarted server, or one that is not asked at every step, knows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from esync.base import REACHED
from esync.metric import ACCURACY, Metric

# Values of a worker's activity in messages.
TRAINING, WAITING, EVALUATING, ENDED = "training", "waiting", "evaluating", "ended"

FIRST, GROWN = 20, 1e6  # rounds whose losses are compared, and by which factor later ones tell of divergence
MAX_POINTS = 400  # of a curve; the state server's limit
MAX_EVENTS, MAX_TEXT = 50, 200  # events in a message, characters of a text; likewise


class Total(NamedTuple):
    """One worker's complete local steps since the job began, their samples, and their seconds. A step lasts from its
    batch to the update of the local weights, or to the gradient if there is no local update. Its time contains
    --min-step-time, but no wait for others or for the network."""

    steps: int = 0
    samples: int = 0
    computing: float = 0.0  # seconds


class Point(NamedTuple):
    """A value of the metric: the round after which it was measured, seconds since the job began."""

    round: int
    elapsed_s: float
    value: float


class ToldEvent(NamedTuple):
    """What a round's log tells beside its numbers: the round, seconds since the job began, an EventKind's name."""

    round: int
    elapsed_s: float
    kind: str
    text: str


def spaced(points: Sequence[Point], metric: Metric, limit: int = MAX_POINTS) -> list[Point]:
    """All points of a curve, or evenly spaced ones of a long one; always the last and the best, of equals the first."""
    if not points:
        return []
    stride = 1
    while len(points[::stride]) > limit - 2:  # the last and the best come on top
        stride *= 2
    values = [point.value for point in points]
    best = points[values.index(metric.best(values))]
    return sorted({*points[::stride], best, points[-1]})


class Progress:
    """A worker's progress. The training thread changes it, any thread reads."""

    def __init__(self, metric: Metric = ACCURACY) -> None:
        self.total = Total()
        self.metric = metric
        self.activity = TRAINING  # or WAITING, EVALUATING, ENDED
        self.protocol = ""  # BSP or ASP, in a job that switches; else empty
        self.evaluates = False  # this worker does, as training begins
        self.earlier: list[Point] = []  # its evaluations before the job was resumed
        self.evaluations: list[Point] = []  # in this process
        self.newest: float | None = None  # the metric's newest value that this worker knows; None: there is none
        self.events: list[ToldEvent] = []
        self.first_losses: list[float] = []  # sizes of those of rounds 1 to `FIRST`
        self._in_a_row = 0  # rounds with a loss that is `GROWN` times as large
        self._losses = (0.0, 0)  # sum and number, since the last message
        self._loss: float | None = None  # their mean then
        self._clock: Callable[[], float] | None = None

    def begin(self, clock: Callable[[], float], evaluates: bool) -> None:
        """Training begins. The clock gives the seconds since the job began."""
        self._clock, self.evaluates = clock, evaluates

    def add_step(self, samples: int, step_s: float) -> None:
        steps, samples_before, computing = self.total
        self.total = Total(steps + 1, samples_before + samples, computing + step_s)

    def has_diverged(self, round_: int, loss: float | None) -> bool:
        """Counts the loss of a round's last batch; returns whether `FIRST` in a row are `GROWN` times the mean size of
        the job's first ones, and above 1. A worker without these, which came later, leaves it to the others."""
        if loss is None:
            return False
        if round_ <= FIRST:
            self.first_losses.append(abs(loss))
        mean = sum(self.first_losses) / len(self.first_losses) if self.first_losses else math.inf
        self._in_a_row = self._in_a_row + 1 if abs(loss) > max(GROWN * mean, 1.0) else 0
        return self._in_a_row >= FIRST

    def end_round(self, round_: int, loss: float | None, events: Iterable[Mapping[str, str]]) -> None:
        """A round is logged. `loss` is that of its last batch; an event is its kind and its text."""
        if loss is not None:
            self._losses = (self._losses[0] + loss, self._losses[1] + 1)
        self.events += [
            ToldEvent(round_, self._clock() if self._clock else 0.0, event["kind"], event["text"][:MAX_TEXT])
            for event in events
        ]

    def measured(self, round_: int, value: float | None) -> None:
        """The metric's value of the model after this round is known; None: it has failed."""
        self.newest = value
        if value is not None:
            self.evaluations.append(Point(round_, self._clock() if self._clock else 0.0, value))

    def curve(self) -> list[Point]:
        """The metric's values since the job began."""
        return spaced([*self.earlier, *self.evaluations], self.metric)

    def mean(self, evaluations: int) -> float | None:
        """The mean of the newest evaluations; None while this process has made fewer."""
        values = [point.value for point in self.evaluations[-evaluations:]]
        return sum(values) / evaluations if len(values) == evaluations else None

    def to_wire(self) -> dict[str, Any]:
        """The fields of REPORT and QUERY."""
        elapsed = {"elapsed": self._clock()} if self._clock else {}
        protocol = {"way": self.protocol} if self.protocol else {}
        (total, count), self._losses = self._losses, (0.0, 0)
        self._loss = total / count if count else self._loss
        loss = {} if self._loss is None else {"loss": self._loss}
        return {**elapsed, "total": self.total._asdict(), **protocol, **loss}


@dataclass(frozen=True)
class Limits:
    """When a job ends by itself; 0, and a target of None: no limit."""

    max_rounds: int = 0
    max_seconds: float = 0.0
    target: float | None = None  # of the metric
    metric: Metric = ACCURACY
    evaluations: int = 1  # in a row, whose mean is to be at the target

    def rounds_done(self, rounds: int) -> str:
        """The reason in words if the limit of rounds is reached, else an empty string."""
        return f"{rounds} rounds done" if self.max_rounds and rounds >= self.max_rounds else ""

    def reached(self, elapsed_s: float, value: float | None) -> str:
        """The reason in words if time or the metric's value has reached its limit, else an empty string. `value` is the
        mean of the last `evaluations`; None while there are fewer."""
        if self.target is not None and value is not None and self.metric.reached(value, self.target):
            return f"test {self.metric.name} {self.metric.text(value)} {REACHED} {self.target}"
        if self.max_seconds and elapsed_s >= self.max_seconds:
            return f"{elapsed_s:.1f} s of {self.max_seconds:g} s passed"
        return ""
