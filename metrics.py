"""The modes, what one run of a mode left behind, and the numbers that sum it up: pure functions, no files.

Durations are in seconds, sizes in bytes, speeds in samples/s and MB/s (10^6 bytes).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import utils

Value = TypeVar("Value")
Warn = Callable[[str], None]

# --------------------------------------------------------------------------------------------------- modes

IID = "i.i.d."
NON_IID = "non-i.i.d."


@dataclass(frozen=True)
class Algorithm:
    """A synchronisation algorithm: its names, and one look in every figure, also in black and white."""

    name: str  # as main.py and the log tree call it
    stem: str  # of its summary's file name
    title: str  # as the papers call it
    colour: str  # of Okabe and Ito's palette, which colour-blind readers can tell apart
    line: str | tuple[int, tuple[int, ...]]  # as matplotlib takes it: offset and lengths of the dashes
    marker: str
    hatch: str


ESYNC = Algorithm("esync", "ESync", "ESync", "#0072B2", "-", "o", "")
SSGD = Algorithm("sync", "Sync", "SSGD", "#D55E00", "--", "s", "//")
ASGD = Algorithm("async", "Async", "ASGD", "#009E73", "-.", "^", "..")
DC_ASGD = Algorithm("dcasgd", "DCASGD", "DC-ASGD", "#CC79A7", (0, (4, 1, 1, 1, 1, 1)), "D", "xx")
SSP = Algorithm("ssp", "SSP", "SSP", "#E69F00", (0, (6, 2)), "v", "\\\\")
LOCAL_SGD = Algorithm("local-sgd", "LocalSGD", "Local SGD", "#56B4E9", (0, (2, 1)), "P", "++")
WBSP = Algorithm("wbsp", "WBSP", "WBSP", "#882255", (0, (8, 2, 2, 2)), "<", "--")
WBSP_PCC = Algorithm("wbsp-pcc", "WBSP-PCC", "WBSP with overlap", "#999933", (0, (8, 2)), ">", "||")
SYNC_SWITCH = Algorithm("sync-switch", "SyncSwitch", "Sync-Switch", "#332288", (0, (1, 1)), "X", "oo")
STANDALONE = Algorithm("local", "Local", "Standalone", "#000000", ":", "", "")

DISTRIBUTED = (ESYNC, SSGD, ASGD, DC_ASGD, SSP, LOCAL_SGD, WBSP, WBSP_PCC, SYNC_SWITCH)


@dataclass(frozen=True)
class Mode:
    """An algorithm on one way to split the data: a folder of the log tree, a JSON file, a row, a curve."""

    algorithm: Algorithm
    split: str  # IID or NON_IID

    @property
    def name(self) -> str:
        """Its folder in the log tree, which is also the value of -m."""
        return utils.mode_name(self.algorithm.name, split_by_class=self.split == NON_IID)

    @property
    def file_name(self) -> str:
        """Its summary in that folder."""
        return f"{self.algorithm.stem}-Non-IID.json" if self.split == NON_IID else f"{self.algorithm.stem}.json"

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.algorithm.title if self.split == IID else f"{self.algorithm.title} {self.split}"


LOCAL = Mode(STANDALONE, IID)
MODES = {
    mode.name: mode
    for mode in (*(Mode(algorithm, split) for split in (IID, NON_IID) for algorithm in DISTRIBUTED), LOCAL)
}
STANDALONE_FILE = "standalone.txt"  # in the network's folder: the accuracy that training on one device reaches


def distributed(values: Mapping[Mode, Value]) -> dict[Mode, Value]:
    """All but standalone training, which is one dotted line in the figures."""
    return {mode: value for mode, value in values.items() if mode != LOCAL}


# ------------------------------------------------------------------------------------------------- devices

Curve = Sequence[tuple[float, float]]  # (elapsed seconds, test accuracy), in order of time


@dataclass(frozen=True)
class Device:
    """What one worker did, round by round. The fields are the keys of the JSON; those with a default are optional.

    Raises:
        ValueError: the lists do not fit together or hold something else than numbers from 0 on.
    """

    accuracy_list: list[float]  # over the rounds with an evaluation; the other lists run over all rounds
    num_samples_list: list[int]
    self_iters_list: list[int]  # entries of `time`: the local steps, and the aggregation where it has its own entry
    elapsed_time_list: list[float]  # at the end of the round, since this worker began to train
    aggregate_time_list: list[float]
    accuracy_time_list: list[float] | None = None  # elapsed time of each accuracy
    computing_time_list: list[float] | None = None  # in utils.COMPUTING_STAGES
    bytes_pushed_list: list[int] | None = None
    bytes_pulled_list: list[int] | None = None
    rank: int | None = None
    num_workers: int | None = None  # of the whole job

    def __post_init__(self) -> None:
        lists = {name: value for name, value in vars(self).items() if name.endswith("_list") and value is not None}
        for name, values in lists.items():
            if not isinstance(values, list) or not all(map(is_quantity, values)):
                raise ValueError(f"{name} is not a list of numbers from 0 on")
        for name, values in lists.items():
            expected = "accuracy_list" if name == "accuracy_time_list" else "elapsed_time_list"
            if name != "accuracy_list" and len(values) != len(lists[expected]):
                raise ValueError(f"{name} has {len(values)} entries, {expected} {len(lists[expected])}")
        if not self.elapsed_time_list:
            raise ValueError("not one round")
        if min(self.elapsed_time_list + (self.accuracy_time_list or [])) <= 0:
            raise ValueError("an elapsed time is not above 0")

    @classmethod
    def from_json(cls, value: Any) -> Device:
        """Reads back `to_json`, or what the published program wrote (no optional keys, perhaps others beside).

        Raises:
            ValueError: it has another shape; the message says what is wrong with it.
        """
        if not isinstance(value, dict):
            raise ValueError("not an object of lists")
        fields = dataclasses.fields(cls)
        missing = [field.name for field in fields if field.default is dataclasses.MISSING and field.name not in value]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        return cls(**{field.name: value[field.name] for field in fields if field.name in value})

    def to_json(self) -> dict[str, Any]:
        """The object that stands for this device in the summary."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def curve(self) -> Curve:
        """Test accuracy over time; empty where this device has none, or where its times are not known."""
        times = self.accuracy_time_list
        if times is None and len(self.accuracy_list) == len(self.elapsed_time_list):
            times = self.elapsed_time_list  # a published summary with an evaluation in every round
        return list(zip(times or [], self.accuracy_list, strict=False))


Devices = Mapping[tuple[str, str], Device]  # by host and device, in natural order


def is_quantity(value: Any) -> bool:
    """Whether `value` is a number that a duration, a size or an accuracy can be."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


# ------------------------------------------------------------------------------------------------- numbers


def evaluating_device(devices: Devices, warn: Warn) -> Device | None:
    """The device of rank 0, found from the data: the one that has accuracies. None where none has."""
    found = {key: device for key, device in devices.items() if device.accuracy_list}
    if not found:
        return None
    # True sorts above False: rank 0 before all others, then the longest curve.
    host, name = max(found, key=lambda key: (found[key].rank == 0, len(found[key].accuracy_list)))
    if len(found) > 1:
        warn(f"{len(found)} devices have accuracies; those of {host}/{name} are used")
    return found[host, name]


def time_to_accuracy(curve: Curve, target: float) -> float | None:
    """Elapsed seconds at the first evaluation at or above `target`, without interpolation; None if there is none."""
    return next((elapsed_s for elapsed_s, accuracy in curve if accuracy >= target), None)


def duration(devices: Collection[Device]) -> float:
    """Seconds that the run took: the longest elapsed time of its workers."""
    return max(device.elapsed_time_list[-1] for device in devices)


def throughput(devices: Collection[Device]) -> float:
    """Samples per second: those of all workers over the duration of the run."""
    return sum(sum(device.num_samples_list) for device in devices) / duration(devices)


def traffic(devices: Collection[Device]) -> float | None:
    """MB (10^6 bytes) pushed and pulled per second: those of all workers over the duration of the run.

    None where one of the workers did not count its bytes: traffic is measured, not assumed.
    """
    total_bytes = 0
    for device in devices:
        if device.bytes_pushed_list is None or device.bytes_pulled_list is None:
            return None
        total_bytes += sum(device.bytes_pushed_list) + sum(device.bytes_pulled_list)
    return total_bytes / 1e6 / duration(devices)


def computing_ratio(device: Device) -> float | None:
    """Share of its elapsed time that a worker computed: get_batch, forward and backward, local update.

    None where the computing time is not known (summaries of the published program).
    """
    if device.computing_time_list is None:
        return None
    return sum(device.computing_time_list) / device.elapsed_time_list[-1]


@dataclass(frozen=True)
class SpeedUp:
    """Time to accuracy of a baseline over that of another run."""

    factor: float
    bound: str  # "" where both reached the target; ">" where the baseline did not, "<" where the other did not


def speed_up(baseline: Curve, curve: Curve, target: float) -> SpeedUp | None:
    """How much sooner `curve` reaches test accuracy `target` than `baseline`.

    A run that did not reach it would have needed more than the time of its last evaluation, which bounds the factor.
    None where neither reached the target, or where one of the two has no evaluation.
    """
    baseline_s, curve_s = time_to_accuracy(baseline, target), time_to_accuracy(curve, target)
    if baseline_s is not None and curve_s is not None:
        return SpeedUp(baseline_s / curve_s, "")
    if curve_s is not None and baseline:
        return SpeedUp(baseline[-1][0] / curve_s, ">")
    if baseline_s is not None and curve:
        return SpeedUp(baseline_s / curve[-1][0], "<")
    return None


# -------------------------------------------------------------------------------------------------- tables


def table(runs: Mapping[Mode, Devices], curves: Mapping[Mode, Curve], target: float) -> str:
    """The numbers behind the figures, one row a mode; `-` where the logs do not have them."""
    time_column = f"s to {accuracy_text(target)}"
    rows = [["mode", "rounds", "samples/s", "MB/s", "final acc.", "best acc.", time_column, "computing ratio"]]
    for mode, devices in runs.items():
        workers = devices.values()
        load = traffic(workers)
        ratios = [ratio for worker in workers if (ratio := computing_ratio(worker)) is not None]
        accuracies = [accuracy for _, accuracy in curves[mode]]
        rows.append(
            [
                mode.title,
                span([len(worker.elapsed_time_list) for worker in workers]),
                f"{throughput(workers):.1f}",
                "-" if load is None else f"{load:.2f}",
                f"{accuracies[-1]:.4f}" if accuracies else "-",
                f"{max(accuracies):.4f}" if accuracies else "-",
                _time_text(curves[mode], target),
                span(ratios, ".2f") if ratios else "-",
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def span(values: Collection[float], form: str = "") -> str:
    """`5`, or `5..7` where the values differ."""
    texts = dict.fromkeys(format(value, form) for value in (min(values), max(values)))
    return "..".join(texts)


def accuracy_text(accuracy: float) -> str:
    """`0.80`, but `0.925` where two decimals would be another number."""
    return f"{accuracy:.2f}" if round(accuracy, 2) == accuracy else f"{accuracy:g}"


def _time_text(curve: Curve, target: float) -> str:
    seconds = time_to_accuracy(curve, target)
    if seconds is not None:
        return f"{seconds:.1f}"
    return f"> {curve[-1][0]:.1f}" if curve else "-"


def speed_up_lines(curves: Mapping[Mode, Curve], target: float) -> list[str]:
    """One line a mode: how much sooner than SSGD on the same split it reached the target accuracy."""
    baselines = {mode.split: (mode, curve) for mode, curve in curves.items() if mode.algorithm == SSGD}
    lines = []
    for mode, curve in distributed(curves).items():
        if mode.algorithm == SSGD:
            continue
        name = f"{mode.algorithm.title}, {mode.split}"
        if mode.split in baselines:
            lines.append(f"{name}: {_speed_up_text(mode, curve, *baselines[mode.split], target)}")
        else:
            lines.append(f"{name}: unknown: no summary of {SSGD.title} on {mode.split} data")
    return lines


def _speed_up_text(mode: Mode, curve: Curve, baseline: Mode, baseline_curve: Curve, target: float) -> str:
    goal = accuracy_text(target)
    sides = ((mode.algorithm.title, curve), (baseline.algorithm.title, baseline_curve))
    for title, its_curve in sides:
        if not its_curve:
            return f"unknown: {title} has no accuracies"
    gain = speed_up(baseline_curve, curve, target)
    if gain is None:
        best = ", ".join(f"{title} {max(accuracy for _, accuracy in its_curve):.4f}" for title, its_curve in sides)
        return f"unknown: neither reached {goal}; at best {best}"
    reached, late = [], ""
    for title, its_curve in sides:
        seconds = time_to_accuracy(its_curve, target)
        if seconds is None:
            late = f": {title} had not reached {goal} after {its_curve[-1][0]:.1f} s"
        else:
            reached.append(f"{title} {seconds:.1f} s")
    return f"{_factor_text(gain)}{late} ({', '.join(reached)})"


def _factor_text(gain: SpeedUp) -> str:
    """A bound is rounded to the side on which it still holds."""
    decimals = 1 if gain.factor >= 1 else 2
    rounding: dict[str, Callable[[float], int]] = {">": math.floor, "<": math.ceil, "": round}
    text = f"{rounding[gain.bound](gain.factor * 10**decimals) / 10**decimals:.{decimals}f}x"
    return f"{gain.bound} {text}".lstrip()
