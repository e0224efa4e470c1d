"""Horizontal axes of a curve: seconds, rounds, samples and bytes. Pure functions."""

import bisect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from report.metrics import Curve, Device, Devices, Event

Position = Callable[[float], float]  # elapsed seconds of a run -> where that is on the axis
_Count = Callable[[Devices, Device], "Position | None"]


@dataclass(frozen=True)
class XAxis:
    """A horizontal axis."""

    label: str
    # (unit, its size, length of the longest curve above which it is used), the smallest unit first
    units: Sequence[tuple[str, float, float]]
    position: _Count  # from all devices of a run and the one that evaluated; None where their logs do not count it
    suffix: str = ""  # of the figure's file name

    def unit(self, longest: float) -> tuple[str, float]:
        """Label and size of the unit for curves up to `longest`."""
        name, size, _ = next(unit for unit in reversed(self.units) if longest > unit[2] or unit is self.units[0])
        return (f"{self.label} ({name})" if name else self.label), size

    def curve(self, devices: Devices, evaluator: Device, events: Sequence[Event]) -> tuple[Curve, list[Event]] | None:
        """A run's curve and events on this axis in place of seconds; None where the logs do not count it."""
        position = self.position(devices, evaluator)
        if position is None:
            return None
        curve = [(position(elapsed_s), value) for elapsed_s, value in evaluator.curve]
        return curve, [event._replace(elapsed_s=position(event.elapsed_s)) for event in events]


def _seconds(devices: Devices, evaluator: Device) -> Position:
    return lambda elapsed_s: elapsed_s


def _rounds(devices: Devices, evaluator: Device) -> Position | None:
    times = [one.elapsed_s for one in evaluator.rounds]
    return lambda elapsed_s: bisect.bisect_right(times, elapsed_s)


def _sum_of(*names: str) -> _Count:
    """The sum over all workers of fields of the rounds that had ended."""

    def position(devices: Devices, evaluator: Device) -> Position | None:
        columns = [(device, device.column(name)) for device in devices.values() for name in names]
        totals = [
            ([one.elapsed_s for one in device.rounds], [0, *itertools.accumulate(counts)])
            for device, counts in columns
            if counts is not None
        ]
        if len(totals) < len(columns):
            return None
        return lambda elapsed_s: sum(total[bisect.bisect_right(times, elapsed_s)] for times, total in totals)

    return position


MINUTES_FROM_S = 600.0  # above it a time axis is in minutes
SECONDS = XAxis("time", (("s", 1.0, 0.0), ("min", 60.0, MINUTES_FROM_S)), _seconds)
X_AXES: Mapping[str, XAxis] = {
    "seconds": SECONDS,
    "rounds": XAxis("rounds of the worker that evaluates", (("", 1.0, 0.0),), _rounds, "-over-rounds"),
    "samples": XAxis(
        "samples of all workers",
        (("", 1.0, 0.0), ("thousand", 1e3, 1e4), ("million", 1e6, 1e7)),
        _sum_of("samples"),
        "-over-samples",
    ),
    "bytes": XAxis(
        "pushed and pulled by all workers",
        (("MB", 1e6, 0.0), ("GB", 1e9, 1e10)),
        _sum_of("bytes_pushed", "bytes_pulled"),
        "-over-bytes",
    ),
}
