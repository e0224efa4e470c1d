"""The data of a run, and of several runs of the same job, such as one for each seed; the horizontal axes of their
curves: seconds, rounds, samples and bytes. Pure functions."""

import bisect
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from esync.metric import ACCURACY, Metric
from report import metrics, statistics
from report.definitions import Numbers
from report.metrics import Curve, Device, Devices, Event, Mode, Value
from report.statistics import FEWEST_RUNS, Estimate
from trainer.run_logs.rounds import Round, Warn


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


@dataclass(frozen=True)
class Run:
    """The modes of one network in one log tree."""

    devices: Mapping[Mode, Devices]
    numbers: Mapping[Mode, Numbers]
    evaluators: Mapping[Mode, Device | None]  # the device of each mode whose curve is drawn; None where none evaluated
    standalone: tuple[Metric, float] | None = None  # the metric and its value of training on one device

    @property
    def curves(self) -> dict[Mode, Curve]:
        return {mode: device.curve if device else [] for mode, device in self.evaluators.items()}

    def of_metric(self, metric: Metric, warn: Warn) -> "Run":
        """Without the evaluations of other metrics."""
        evaluators = {mode: its if its and its.metric == metric else None for mode, its in self.evaluators.items()}
        standalone = self.standalone
        if standalone is not None and standalone[0] != metric:
            warn(f"there is no line of training on one device: its file has {standalone[0].name}, not {metric.name}")
            standalone = None
        return replace(self, evaluators=evaluators, standalone=standalone)

    def drawn_over(self, x_axis: XAxis, warn: Warn) -> tuple[dict[Mode, Curve], dict[Mode, Sequence[Event]]]:
        """Curves and events on an axis; `warn` gets the modes without one."""
        curves: dict[Mode, Curve] = {}
        events: dict[Mode, Sequence[Event]] = {}
        for mode, device in self.evaluators.items():
            if device is None or not device.curve:
                continue
            found = x_axis.curve(self.devices[mode], device, device.events)
            if found is None:
                what = f"{device.metric.name} over {x_axis.label}"
                warn(f"{mode.title} left out of the {what}: its logs do not count that")
            else:
                curves[mode], events[mode] = found
        return curves, events


def of_one_metric(runs: Sequence[Run], warn: Warn) -> tuple[list[Run], Metric]:
    """The runs with the evaluations of one metric, and that: the one of most modes. `warn` gets what is left out."""
    counts = Counter(device.metric for run in runs for device in run.evaluators.values() if device is not None)
    metric = counts.most_common(1)[0][0] if counts else ACCURACY
    for mode in by_mode([run.evaluators for run in runs]):
        others = {its.metric.name for run in runs if (its := run.evaluators.get(mode)) and its.metric != metric}
        if others:
            have = " and ".join(sorted(others))
            warn(f"{mode.title} left out of the curves and times of {metric.name}: its logs have {have}")
    return [run.of_metric(metric, warn) for run in runs], metric


def by_mode(runs: Sequence[Mapping[Mode, Value]]) -> dict[Mode, list[Value]]:
    """The runs' values of each mode, in the order of the table of algorithms; a mode may be missing in some runs."""
    order = metrics.in_order({mode for run in runs for mode in run})
    return {mode: [run[mode] for run in runs if mode in run] for mode in order}


def estimate(values: Sequence[float | None]) -> float | Estimate | None:
    """Median of the runs with its interval, or the mean of too few; None where a run lacks the number."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return statistics.median(known) if len(known) >= FEWEST_RUNS else sum(known) / len(known)


def mean_ratios(runs: Sequence[Mapping[tuple[str, str], float]]) -> dict[tuple[str, str], float]:
    """Mean over the runs by device, for devices in all runs."""
    common = [key for key in runs[0] if all(key in run for run in runs)]
    return {key: sum(run[key] for run in runs) / len(runs) for key in common}
