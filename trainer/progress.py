"""What a worker has done since its job began, by its own count and clock: every message tells the state server.

So a server that was restarted, or that was not asked about every step, knows it all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

# What a worker says that it does.
TRAINING, EVALUATING, ENDED = "training", "evaluating", "ended"

MAX_POINTS = 400  # of an accuracy curve; the state server takes no more


@dataclass(frozen=True)
class Total:
    """Of one worker since the job began: complete local steps, samples in them, and the seconds that they took.

    A step takes from its batch to the update of the local weights, or to the gradient where nothing is updated locally;
    what --min-step-time adds is in it, waiting for others or for the network is not.
    """

    steps: int = 0
    samples: int = 0
    computing_s: float = 0.0

    def plus(self, samples: int, step_s: float) -> Total:
        """After one more step."""
        return Total(self.steps + 1, self.samples + samples, self.computing_s + step_s)

    def to_wire(self) -> dict[str, Any]:
        """As the messages have it."""
        return {"steps": self.steps, "samples": self.samples, "computing": self.computing_s}


class Point(NamedTuple):
    """A test accuracy: the round after which it was measured, seconds since the job began, correct / total."""

    round: int
    elapsed_s: float
    accuracy: float


class Curve:
    """The test accuracies so far: all of a short job, evenly spaced ones of a long one; always the last and the best.

    One thread adds, any thread reads.
    """

    def __init__(self, limit: int = MAX_POINTS) -> None:
        self._limit = limit - 2  # the last and the best come on top
        self._kept: tuple[Point, ...] = ()
        self._stride = 1  # of how many one is kept
        self._count = 0
        self._ends: tuple[Point, ...] = ()  # the last and the best

    def add(self, point: Point) -> None:
        """Takes the next evaluation."""
        if self._count % self._stride == 0:
            self._kept = (*self._kept, point)
        self._count += 1
        if len(self._kept) > self._limit:
            self._kept, self._stride = self._kept[::2], 2 * self._stride
        best = max((*self._ends[1:], point), key=lambda one: one.accuracy)  # the first of equals
        self._ends = (point, best)

    def points(self) -> list[Point]:
        """In the order of their rounds."""
        return sorted({*self._kept, *self._ends})


class Progress:
    """Where a worker is. The training thread changes it, any thread reads."""

    def __init__(self) -> None:
        self.total = Total()
        self.doing = TRAINING
        self.way = ""  # how the job goes on where that changes, such as BSP or ASP
        self.curve: Curve | None = None  # of the worker that evaluates
        self._clock: Callable[[], float] | None = None

    def begin(self, clock: Callable[[], float], evaluates: bool) -> None:
        """Training begins.

        Args:
            clock: seconds since the job began.
            evaluates: this worker does.
        """
        self._clock = clock
        if evaluates and self.curve is None:
            self.curve = Curve()

    def add_step(self, samples: int, step_s: float) -> None:
        """A local step of so many samples is complete."""
        self.total = self.total.plus(samples, step_s)

    def point(self, round_: int, accuracy: float) -> Point:
        """An accuracy that is told now, and was measured after this round."""
        return Point(round_, self._clock() if self._clock else 0.0, accuracy)

    def to_wire(self) -> dict[str, Any]:
        """What REPORT and QUERY say of it."""
        elapsed = {"elapsed": self._clock()} if self._clock else {}
        way = {"way": self.way} if self.way else {}
        return {**elapsed, "total": self.total.to_wire(), **way}


class Accuracy:
    """The newest test accuracy that a worker knows.

    Attributes:
        newest: None before the first evaluation.
    """

    def __init__(self) -> None:
        self.newest: float | None = None
        self._untold: float | None = None

    def measured(self, accuracy: float | None) -> None:
        """An evaluation is done."""
        self.newest = self._untold = accuracy

    def take(self) -> float | None:
        """Returns an accuracy that was measured since the last call, and clears it."""
        accuracy, self._untold = self._untold, None
        return accuracy
