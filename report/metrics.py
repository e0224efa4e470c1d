"""The modes, the logs of one run of a mode, and the numbers that summarise them. Pure functions, no files.

Durations are in seconds, sizes in bytes, speeds in samples/s and MB/s (10^6 bytes).
"""

from __future__ import annotations

import bisect
import dataclasses
import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from algorithms import ENTRIES, EVALUATOR, EVENTS, MEMBERS, OWNERS, Entry, entry_of, folder_name, owner_of
from report.sound_devices import ACCURACIES, ACCURACY_TIMES, VALUE_TIMES, VALUES
from trainer.metric import ACCURACY, Metric, metric_of
from trainer.run_logs.pace import Doubts, Pace, doubts
from trainer.run_logs.round_faults import are_quantities, is_quantity

Value = TypeVar("Value")
Warn = Callable[[str], None]

# --------------------------------------------------------------------------------------------------- modes

IID = "i.i.d."
NON_IID = "non-i.i.d."


SSGD, STANDALONE = ENTRIES["sync"], ENTRIES["local"]
COMPARED = tuple(entry for entry in ENTRIES.values() if entry is not STANDALONE)


@dataclass(frozen=True)
class Mode:
    """An algorithm on one split of the data: a folder of the log tree, a summary file, a row, a curve."""

    algorithm: Entry
    split: str  # IID or NON_IID

    @property
    def name(self) -> str:
        """Its folder in the log tree; summary.py's -m."""
        return folder_name(self.algorithm.name, split_by_class=self.split == NON_IID)

    @property
    def file_name(self) -> str:
        """Its summary in that folder."""
        return f"{self.algorithm.stem}-Non-IID.json" if self.split == NON_IID else f"{self.algorithm.stem}.json"

    @property
    def exchanges(self) -> bool:
        return owner_of(self.algorithm.name).is_distributed

    def told(self, devices: Devices) -> Mode:
        """With the number of the cluster's workers in the title, where only the fastest of them take part."""
        of = max((device.of_workers or 0 for device in devices.values()), default=0)
        if not (self.algorithm.fastest and of):
            return self
        return dataclasses.replace(
            self, algorithm=dataclasses.replace(self.algorithm, title=f"{self.algorithm.title} of {of}")
        )

    @property
    def title(self) -> str:
        return self.algorithm.title if self.split == IID else f"{self.algorithm.title} {self.split}"


LOCAL = Mode(STANDALONE, IID)
SPLIT = tuple(entry for entry in COMPARED if OWNERS[entry.name].is_distributed)  # one worker alone has all classes
MODES = {
    mode.name: mode
    for mode in (*(Mode(entry, IID) for entry in COMPARED), *(Mode(entry, NON_IID) for entry in SPLIT), LOCAL)
}


def mode_of(folder: str) -> Mode | None:
    """The mode of a folder in the log tree; None: it is none."""
    if folder in MODES:
        return MODES[folder]
    name = folder.removesuffix(folder_name("", split_by_class=True))
    entry = entry_of(name)
    return Mode(entry, IID if name == folder else NON_IID) if entry is not None else None


def modes_of(folders: Iterable[str]) -> list[Mode]:
    """The modes of those folders in the log tree that are of one, in the order of `in_order`."""
    return in_order(mode for mode in map(mode_of, folders) if mode is not None)


def in_order(modes: Iterable[Mode]) -> list[Mode]:
    """Modes in the order of the table of algorithms; one on few workers behind the same one on all or on fewer."""
    tables = [*MODES]

    def place(mode: Mode) -> tuple[int, int]:
        entry = mode.algorithm
        whole = entry.name.removesuffix(f"-k{entry.fastest}") if entry.fastest else entry.name
        return tables.index(folder_name(whole, mode.split == NON_IID)), entry.fastest

    return sorted(modes, key=place)


STANDALONE_FILE = (
    "standalone.txt"  # in the network's folder: the last accuracy of one device alone, or a metric's entry
)


def compared(values: Mapping[Mode, Value]) -> dict[Mode, Value]:
    """The modes other than standalone training, which is a dotted line in the figures."""
    return {mode: value for mode, value in values.items() if mode != LOCAL}


# -------------------------------------------------------------------------------------------------- events


class Event(NamedTuple):
    """An event of a run, at the end of the round that logged it."""

    elapsed_s: float
    kind: str  # of algorithms.EVENTS
    text: str

    @classmethod
    def from_json(cls, value: Any) -> Event:
        """Reads an entry of a summary's event_list, `[seconds, kind, text]`. Raises ValueError for another shape, or an
        unknown kind."""
        if not isinstance(value, (list, tuple)) or len(value) != 3 or not is_quantity(value[0]):
            raise ValueError(f"event {reprlib.repr(value)} is not [seconds, kind, text]")
        elapsed_s, kind, text = value
        if kind not in list(EVENTS):  # it may be unhashable
            kinds = ", ".join(EVENTS)
            raise ValueError(f"an event's kind is {reprlib.repr(kind)}, but should be one of {kinds}")
        if not isinstance(text, str):
            raise ValueError(f"the text of a {kind} event is {reprlib.repr(text)}, but should be a string")
        return cls(elapsed_s, kind, text)

    @classmethod
    def from_log(cls, elapsed_s: float, value: Any) -> Event:
        """Reads an entry of a round log's "events", `{"kind": kind, "text": text}`; `elapsed_s` is that of the round.
        Raises ValueError as from_json."""
        if not isinstance(value, dict):
            raise ValueError(f'event {reprlib.repr(value)} is not an object with "kind" and "text"')
        return cls.from_json([elapsed_s, value.get("kind"), value.get("text")])


# ------------------------------------------------------------------------------------------------- devices

Curve = Sequence[tuple[float, float]]  # (elapsed seconds, value of the metric on the test set), in order of time


@dataclass(frozen=True)
class Device:
    """One worker's rounds. The fields are the keys of the JSON; those with a default are optional. There the lists of
    another metric than accuracy have keys of their own.

    Raises:
        ValueError: the lists' lengths differ, or a value is no number from 0 on, or none of the metric.
    """

    accuracy_list: list[float]  # of the metric, over the rounds with an evaluation; the other lists run over all rounds
    num_samples_list: list[int]
    self_iters_list: list[int]  # entries of `time`: the local steps, and the aggregation where it has its own entry
    elapsed_time_list: list[float]  # at the end of the round, since this worker began to train
    aggregate_time_list: list[float]
    accuracy_time_list: list[float] | None = None  # elapsed time of each of them
    computing_time_list: list[float] | None = None  # in measure.COMPUTING_STAGES
    bytes_pushed_list: list[int] | None = None
    bytes_pulled_list: list[int] | None = None
    rank: int | None = None
    num_workers: int | None = None  # of the whole job
    of_workers: int | None = None  # of the cluster, where --fastest has chosen them
    parameter_bytes: int | None = None  # size of the model
    steps_list: list[int] | None = None  # local steps that were begun, complete or abandoned
    # Abandoned, skipped, dropped or to be done again; perhaps of earlier rounds.
    lost_steps_list: list[int] | None = None
    event_list: list[list[Any]] | None = None  # [elapsed seconds, kind, text] each
    step_s: float | None = None  # this and the next two as in trainer/run_logs/pace.py
    emulated_s: float | None = None
    evaluation_share: float | None = None
    at_target: bool | None = None  # the job ended there: its last value is no final one
    virtual: bool | None = None  # its seconds are virtual
    metric: Metric = ACCURACY

    def __post_init__(self) -> None:
        lists = {name: value for name, value in vars(self).items() if name.endswith("_list") and value is not None}
        events = lists.pop("event_list", [])
        if not isinstance(events, list):
            raise ValueError("event_list is not a list of [seconds, kind, text]")
        for event in events:
            Event.from_json(event)
        for name, values in lists.items():
            if not isinstance(values, list) or not (name == ACCURACIES or are_quantities(values)):
                raise ValueError(f"{name} is not a list of numbers from 0 on")
        if fault := next(filter(None, map(self.metric.fault, self.accuracy_list)), ""):
            raise ValueError(f"a value of {self.metric.name} is {fault}")
        for name, values in lists.items():
            expected = "accuracy_list" if name == "accuracy_time_list" else "elapsed_time_list"
            if name != "accuracy_list" and len(values) != len(lists[expected]):
                raise ValueError(f"{name} has {len(values)} entries, {expected} {len(lists[expected])}")
        if not self.elapsed_time_list:
            raise ValueError("not one round")
        if self.elapsed_time_list[-1] <= 0:  # published ones are whole seconds, so that short rounds end at 0
            raise ValueError("the last elapsed time is not above 0")
        for name in ("parameter_bytes", *Pace._fields):
            if (value := getattr(self, name)) is not None and not is_quantity(value):
                raise ValueError(f"{name} is {reprlib.repr(value)}, but should be a number from 0 on")

    @classmethod
    def from_json(cls, value: Any) -> Device:
        """Reads a device of a summary; the published program's has no optional keys, and may have others. Raises
        ValueError if it has another shape."""
        if not isinstance(value, dict):
            raise ValueError("not an object of lists")
        metric = metric_of(value.get("metric"))
        if metric is not None:
            own = {ACCURACIES: value.get(VALUES), ACCURACY_TIMES: value.get(VALUE_TIMES)}
            value = {**value, **{name: its for name, its in own.items() if its is not None}}
        value = {**value, "metric": metric or ACCURACY}
        fields = dataclasses.fields(cls)
        missing = [field.name for field in fields if field.default is dataclasses.MISSING and field.name not in value]
        if missing:
            raise ValueError(f"no {', '.join(missing)}")
        return cls(**{field.name: value[field.name] for field in fields if field.name in value})

    def to_json(self) -> dict[str, Any]:
        its = {name: value for name, value in vars(self).items() if value is not None and name != "metric"}
        if self.metric.is_accuracy:
            return its
        names = {ACCURACIES: VALUES, ACCURACY_TIMES: VALUE_TIMES}
        return {"metric": self.metric.about(), **{names.get(name, name): value for name, value in its.items()}}

    @property
    def curve(self) -> Curve:
        """The metric over time; empty without evaluations, or where their times are unknown."""
        times = self.accuracy_time_list
        if times is None and len(self.accuracy_list) == len(self.elapsed_time_list):
            times = self.elapsed_time_list  # a published summary with an evaluation in every round
        return list(zip(times or [], self.accuracy_list, strict=False))

    def evaluated_every(self, rounds: int) -> Device:
        """Sets unknown times of the accuracies to those of every `rounds`-th round, if there are as many."""
        times = self.elapsed_time_list[rounds - 1 :: rounds]
        if self.curve or len(times) != len(self.accuracy_list):
            return self
        return dataclasses.replace(self, accuracy_time_list=times)

    @property
    def pace(self) -> Pace | None:
        if self.step_s is None or self.emulated_s is None or self.evaluation_share is None:
            return None
        return Pace(self.step_s, self.emulated_s, self.evaluation_share)

    @property
    def events(self) -> list[Event]:
        return [Event.from_json(event) for event in self.event_list or []]

    @property
    def moved(self) -> list[str]:
        """What its log says where it took the evaluations over from the process beside it."""
        return [event.text for event in self.events if event.kind == EVALUATOR.name]

    def reached(self, target: float) -> Reached:
        return reached(self.curve, target, self.metric, self.virtual is True, bool(self.moved))


Devices = Mapping[tuple[str, str], Device]  # by host and device, in natural order


# ------------------------------------------------------------------------------------------------- numbers


def doubts_of(runs: Sequence[Devices]) -> Doubts:
    """Doubts about a mode's runs: speeds that were not kept, and the cost of evaluations."""
    hosts = {host for devices in runs for host, _ in devices}
    paces = [(key, device.pace) for devices in runs for key, device in devices.items()]
    moved = [text for devices in runs for device in devices.values() for text in device.moved]
    return doubts([(name if len(hosts) == 1 else f"{host}/{name}", pace) for (host, name), pace in paces], moved)


def evaluating_device(devices: Devices, warn: Warn) -> Device | None:
    """The device that has evaluated; None where none has.

    Where workers were lost or came, several may have evaluated in turn: then the one with most rounds gets all
    values.
    """
    found = {key: device for key, device in devices.items() if device.accuracy_list}
    if not found:
        return None
    metric = max(found.values(), key=lambda device: len(device.accuracy_list)).metric
    for (host, name), device in found.items():
        if device.metric != metric:
            warn(f"{host}/{name} has {device.metric.plural}; those of {metric.name} are used")
    found = {key: device for key, device in found.items() if device.metric == metric}
    if len(found) > 1 and have_changed(devices.values()):
        curve = joined(device.curve for device in found.values())
        longest = max(found.values(), key=lambda device: len(device.elapsed_time_list))
        return dataclasses.replace(
            longest,
            accuracy_list=[value for _, value in curve],
            accuracy_time_list=[elapsed_s for elapsed_s, _ in curve],
            event_list=sorted(
                [event.elapsed_s, event.kind, event.text]
                for device in found.values()
                for event in device.events
                if device is longest or event.kind == EVALUATOR.name
            ),
        )
    host, name = max(found, key=lambda key: len(found[key].accuracy_list))
    if len(found) > 1:
        warn(f"{len(found)} devices have {metric.plural}; those of {host}/{name} are used")
    return found[host, name]


def have_changed(devices: Iterable[Device]) -> bool:
    """Whether workers left the job or came to it."""
    return any(event.kind == MEMBERS.name for device in devices for event in device.events)


def joined(curves: Iterable[Curve]) -> Curve:
    """The curves of workers that evaluated in turn, as one."""
    return sorted(point for curve in curves for point in curve)


CLOSE = 10  # so many evaluations before, and so many times the gap to the last of them, tell a time by themselves


class Reached(NamedTuple):
    """When a run reached a target, as far as its evaluations tell: between two of them."""

    after_s: float  # of the last evaluation that had not reached it; 0 where none came before; in virtual time as by_s
    by_s: float  # of the first one that had; infinite where none had
    low_s: float  # the least time that is told: by_s where evaluations are close, else after_s
    best: float | None  # value; None where it was never evaluated
    late_s: float = 0.0  # in virtual time, since the evaluation before
    is_moved: bool = False  # the worker took the evaluations over from the process beside it

    @property
    def is_at_target(self) -> bool:
        return self.by_s < math.inf

    def is_apart(self, other: Reached) -> bool:
        """Whether it is known which of two runs was sooner: intervals that meet, and seconds of workers that evaluate
        beside those of workers that do not, have no order."""
        in_order = self.by_s <= other.after_s or other.by_s <= self.after_s
        return in_order and self.is_moved == other.is_moved


def reached(
    curve: Curve, target: float, metric: Metric = ACCURACY, is_virtual: bool = False, is_moved: bool = False
) -> Reached:
    """When a curve reached `target`. `is_moved` as Reached has it."""
    best = metric.best(value for _, value in curve) if curve else None
    place = next((place for place, (_, value) in enumerate(curve) if metric.reached(value, target)), len(curve))
    after_s = curve[place - 1][0] if place else 0.0
    if place == len(curve):
        return Reached(after_s, math.inf, math.inf, best, is_moved=is_moved)
    by_s = curve[place][0]
    if is_virtual:
        return Reached(by_s, by_s, by_s, best, by_s - after_s, is_moved)
    is_close = place >= CLOSE and CLOSE * (by_s - after_s) <= by_s
    return Reached(after_s, by_s, by_s if is_close else after_s, best, is_moved=is_moved)


def times_of(evaluators: Mapping[Mode, Device | None], target: float) -> dict[Mode, Reached]:
    """When each mode's run reached `target`."""
    return {mode: device.reached(target) if device else reached((), target) for mode, device in evaluators.items()}


def running_means(curve: Curve, in_a_row: int, grid_s: float) -> Curve:
    """Means of evaluations in a row, each at the time of its last one, since single evaluations are noisy.

    Args:
        in_a_row: how many make a mean.
        grid_s: the first evaluation in each of these seconds counts, so that curves evaluated more often are not more
            often at a target by chance. One a hundredth of them early is in time: logged times are rounded.
    """
    by_cell: dict[int, tuple[float, float]] = {}
    for elapsed_s, value in curve:
        by_cell.setdefault(int(elapsed_s / grid_s + 0.01), (elapsed_s, value))
    points = list(by_cell.values())
    ends = range(in_a_row, len(points) + 1)
    return [(points[end - 1][0], sum(value for _, value in points[end - in_a_row : end]) / in_a_row) for end in ends]


def value_at(curve: Curve, elapsed_s: float) -> float:
    """Value of the drawn curve at `elapsed_s`, by linear interpolation; constant before the first and after the last
    evaluation. Raises IndexError if the curve has no evaluation."""
    after = bisect.bisect_right(curve, elapsed_s, key=lambda point: point[0])
    if after in (0, len(curve)):
        return curve[max(0, after - 1)][1]
    (begin_s, begin), (end_s, end) = curve[after - 1], curve[after]
    return begin + (end - begin) * (elapsed_s - begin_s) / (end_s - begin_s)


def duration(devices: Collection[Device]) -> float:
    """Seconds of the run: the longest elapsed time of its workers."""
    return max(device.elapsed_time_list[-1] for device in devices)


def throughput(devices: Collection[Device]) -> float:
    """Samples of all workers per second of the run."""
    return sum(sum(device.num_samples_list) for device in devices) / duration(devices)


def traffic(devices: Collection[Device]) -> float | None:
    """MB (10^6 bytes) that all workers pushed and pulled per second of the run; None where one did not count them."""
    total_bytes = 0
    for device in devices:
        if device.bytes_pushed_list is None or device.bytes_pulled_list is None:
            return None
        total_bytes += sum(device.bytes_pushed_list) + sum(device.bytes_pulled_list)
    return total_bytes / 1e6 / duration(devices)


def published_traffic(devices: Collection[Device], model_bytes: float | None) -> float | None:
    """MB per second as in the published figures: the model's size once a worker and round, over the duration.
    `model_bytes` is the size of the model for workers whose summary lacks it."""
    total_bytes = 0.0
    for device in devices:
        size = device.parameter_bytes or model_bytes
        if size is None:
            return None
        total_bytes += size * len(device.elapsed_time_list)
    return total_bytes / 1e6 / duration(devices)


def computing_ratio(device: Device) -> float | None:
    """Share of a worker's elapsed time in get_batch, forward and backward, local update; None where it is unknown."""
    if device.computing_time_list is None:
        return None
    return sum(device.computing_time_list) / device.elapsed_time_list[-1]


def published_computing_ratio(device: Device) -> float:
    """Share of a worker's elapsed time outside aggregation, as in the published figures.

    So evaluation, loading and waiting for the state server count as computing. It is 0 where an elapsed time that was
    rounded down is below the aggregation's.
    """
    return max(0.0, 1 - sum(device.aggregate_time_list) / device.elapsed_time_list[-1])


def lost_share(devices: Collection[Device]) -> float | None:
    """Share of all workers' local steps that were abandoned, dropped or have to be done again.

    None where a worker did not count them, or without steps.
    """
    steps = lost = 0
    for device in devices:
        if device.steps_list is None or device.lost_steps_list is None:
            return None
        steps += sum(device.steps_list)
        lost += sum(device.lost_steps_list)
    return lost / steps if steps else None


class SpeedUp(NamedTuple):
    """Time to a target of a baseline over that of another run: from `low` to `high`."""

    low: float  # 0: the other did not reach it
    high: float  # infinite: the baseline did not, or the other perhaps at once


def speed_up(baseline: Reached, its: Reached) -> SpeedUp | None:
    """The factor by which a run reaches a target sooner than its baseline; None where neither reached it, or where a
    time was rounded to 0."""
    if 0 in (baseline.by_s, its.by_s) or not (baseline.is_at_target or its.is_at_target):
        return None
    if baseline.low_s == baseline.by_s < math.inf and its.low_s == its.by_s < math.inf:
        return SpeedUp(baseline.by_s / its.by_s, baseline.by_s / its.by_s)
    return SpeedUp(baseline.after_s / its.by_s, baseline.by_s / its.after_s if its.after_s else math.inf)
