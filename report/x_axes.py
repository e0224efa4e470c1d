"""Horizontal axes of a curve: seconds, rounds, samples and bytes. Pure functions."""

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

from report.metrics import Curve, Device, Devices, Event
from trainer.run_logs.rounds import Round


class XAxis(NamedTuple):
    """A horizontal axis."""

    label: str
    # (unit, its size, length of the longest curve above which it is used), the smallest unit first
    units: Sequence[tuple[str, float, float]]
    suffix: str = ""  # of the figure's file name
    counts: Sequence[Callable[[Round], int | None]] = ()  # of a round, whose sum it shows; none: seconds
    is_of_all: bool = True  # workers; else of the one that evaluates

    def unit(self, longest: float) -> tuple[str, float]:
        """Label and size of the unit for curves up to `longest`."""
        name, size, _ = next(unit for unit in reversed(self.units) if longest > unit[2] or unit is self.units[0])
        return (f"{self.label} ({name})" if name else self.label), size

    def curve(
        self, devices: Devices, evaluator: Device, events: Sequence[Event]
    ) -> tuple[Curve, Sequence[Event]] | None:
        """A run's curve and events on this axis in place of seconds; None where the logs do not count it."""
        totals: list[tuple[list[float], list[int]]] = []
        for device in devices.values() if self.is_of_all else [evaluator]:
            for count in self.counts:
                counts = [its for one in device.rounds if (its := count(one)) is not None]
                if len(counts) < len(device.rounds):
                    return None
                totals.append(([one.elapsed_s for one in device.rounds], [0, *itertools.accumulate(counts)]))

        def position(elapsed_s: float) -> float:
            return sum(total[bisect.bisect_right(times, elapsed_s)] for times, total in totals)

        if not self.counts:
            return evaluator.curve, events
        curve = [(position(elapsed_s), value) for elapsed_s, value in evaluator.curve]
        return curve, [event._replace(elapsed_s=position(event.elapsed_s)) for event in events]


MINUTES_FROM_S = 600.0  # above it a time axis is in minutes
SECONDS = XAxis("time", (("s", 1.0, 0.0), ("min", 60.0, MINUTES_FROM_S)))
_SAMPLES = (("", 1.0, 0.0), ("thousand", 1e3, 1e4), ("million", 1e6, 1e7))
_BYTES = (("MB", 1e6, 0.0), ("GB", 1e9, 1e10))
_PUSHED_AND_PULLED = (attrgetter("bytes_pushed"), attrgetter("bytes_pulled"))
X_AXES: Mapping[str, XAxis] = {
    "seconds": SECONDS,
    "rounds": XAxis("rounds of the worker that evaluates", (("", 1.0, 0.0),), "-over-rounds", (lambda one: 1,), False),
    "samples": XAxis("samples of all workers", _SAMPLES, "-over-samples", (attrgetter("samples"),)),
    "bytes": XAxis("pushed and pulled by all workers", _BYTES, "-over-bytes", _PUSHED_AND_PULLED),
}
