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


def _counted(*lists: tuple[Sequence[float], Sequence[float]]) -> Position:
    """The sum of counts up to a time, from pairs of the ends of rounds and the count of each."""
    totals = [(times, [0, *itertools.accumulate(counts)]) for times, counts in lists]
    return lambda elapsed_s: sum(total[bisect.bisect_right(times, elapsed_s)] for times, total in totals)


def _seconds(devices: Devices, evaluator: Device) -> Position:
    return lambda elapsed_s: elapsed_s


def _rounds(devices: Devices, evaluator: Device) -> Position:
    return _counted((evaluator.elapsed_time_list, [1] * len(evaluator.elapsed_time_list)))


def _samples(devices: Devices, evaluator: Device) -> Position:
    return _counted(*((device.elapsed_time_list, device.num_samples_list) for device in devices.values()))


def _bytes(devices: Devices, evaluator: Device) -> Position | None:
    lists = []
    for device in devices.values():
        for counts in (device.bytes_pushed_list, device.bytes_pulled_list):
            if counts is None:
                return None
            lists.append((device.elapsed_time_list, counts))
    return _counted(*lists)


MINUTES_FROM_S = 600.0  # above it a time axis is in minutes
SECONDS = XAxis("time", (("s", 1.0, 0.0), ("min", 60.0, MINUTES_FROM_S)), _seconds)
X_AXES: Mapping[str, XAxis] = {
    "seconds": SECONDS,
    "rounds": XAxis("rounds of the worker that evaluates", (("", 1.0, 0.0),), _rounds, "-over-rounds"),
    "samples": XAxis(
        "samples of all workers",
        (("", 1.0, 0.0), ("thousand", 1e3, 1e4), ("million", 1e6, 1e7)),
        _samples,
        "-over-samples",
    ),
    "bytes": XAxis("pushed and pulled by all workers", (("MB", 1e6, 0.0), ("GB", 1e9, 1e10)), _bytes, "-over-bytes"),
}
