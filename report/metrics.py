"""The modes, the logs of one run of a mode, and the numbers that summarise them. Pure functions, no files.

Durations are in seconds, sizes in bytes, speeds in samples/s and MB/s (10^6 bytes).
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from algorithms import ENTRIES, EVALUATOR, EVENTS, MEMBERS, RESUME, Entry, entry_of, folder_name, owner_of
from esync.metric import ACCURACY, Metric
from trainer.run_logs.pace import Doubts, Pace, doubts
from trainer.run_logs.rounds import Round, Seconds, Warn

Value = TypeVar("Value")

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
        algorithm = dataclasses.replace(self.algorithm, title=f"{self.algorithm.title} of {of}")
        return dataclasses.replace(self, algorithm=algorithm)

    @property
    def title(self) -> str:
        return self.algorithm.title if self.split == IID else f"{self.algorithm.title} {self.split}"


LOCAL = Mode(STANDALONE, IID)
_ALL = [Mode(entry, split) for split in (IID, NON_IID) for entry in COMPARED]
# One worker alone has all classes.
MODES = {mode.name: mode for mode in (*_ALL, LOCAL) if mode.split == IID or mode.exchanges}


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


STANDALONE_FILE = "standalone.txt"  # in the network's folder: the last value of one device alone


def compared(values: Mapping[Mode, Value]) -> dict[Mode, Value]:
    """The modes other than standalone training, which is a dotted line in the figures."""
    return {mode: value for mode, value in values.items() if mode != LOCAL}


# -------------------------------------------------------------------------------------------------- events


class Event(NamedTuple):
    """An event of a run, at the end of the round that logged it."""

    elapsed_s: Seconds
    kind: str  # of algorithms.EVENTS
    text: str


def sound_events(values: Iterable[Any], where: str, warn: Warn) -> list[Event]:
    """The events of a log or a summary, `[seconds, kind, text]` each, without malformed ones and those of unknown
    kinds, of which `warn` gets a line."""
    found, faults = [], []
    for value in values:
        try:
            event = msgspec.convert(value, Event)
        except msgspec.ValidationError as error:
            faults.append(f"event {reprlib.repr(value)} is not [seconds, kind, text] ({error})")
            continue
        if event.kind in EVENTS:
            found.append(event)
        else:
            faults.append(f"an event's kind is {event.kind!r}, but should be one of {', '.join(EVENTS)}")
    if faults:
        warn(f"{where}: {len(faults)} event(s) left out: {faults[0]}")
    return found


# ------------------------------------------------------------------------------------------------- devices

Curve = Sequence[tuple[float, float]]  # (elapsed seconds, value of the metric on the test set), in order of time


@dataclass(frozen=True)
class Device:
    """One worker's rounds, its evaluations and events, and what its run.json says."""

    rounds: Sequence[Round]
    values: Sequence[float] = ()  # of the metric, over the evaluations
    value_times: Sequence[float] | None = ()  # elapsed seconds at each; None: unknown, as in published summaries
    metric: Metric = ACCURACY
    events: Sequence[Event] = ()
    pace: Pace | None = None
    rank: int | None = None
    num_workers: int | None = None  # of the whole job
    of_workers: int | None = None  # of the cluster, where --fastest has chosen them
    parameter_bytes: int | None = None  # size of the model
    at_target: bool = False  # the job ended there: its last value is no final one
    virtual: bool = False  # its seconds are virtual

    @property
    def elapsed_s(self) -> float:
        """At the end of the last round."""
        return self.rounds[-1].elapsed_s

    @property
    def curve(self) -> Curve:
        """The metric over time; empty without evaluations, or where their times are unknown."""
        return [] if self.value_times is None else list(zip(self.value_times, self.values, strict=True))

    def evaluated_every(self, rounds: int) -> Device:
        """Sets unknown times of the values to those of every `rounds`-th round, if there are as many."""
        times = [one.elapsed_s for one in self.rounds[rounds - 1 :: rounds]]
        if self.value_times is not None or len(times) != len(self.values):
            return self
        return dataclasses.replace(self, value_times=times)

    @property
    def moved(self) -> list[str]:
        """The texts of the events in which it took the evaluations over from the process beside it."""
        return [event.text for event in self.events if event.kind == EVALUATOR.name]

    def column(self, name: str) -> list[Any] | None:
        """A field of all rounds; None where a round lacks it: the sum of the others would pass for that of all."""
        values = [getattr(one, name) for one in self.rounds]
        return None if None in values else values

    def reached(self, target: float) -> Reached:
        return reached(self.curve, target, self.metric, self.virtual, bool(self.moved))


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

    Where workers were lost or came, or a job was started again, several may have evaluated in turn: then the one with
    most rounds gets all values.
    """
    found = {key: device for key, device in devices.items() if device.values}
    if not found:
        return None
    metric = max(found.values(), key=lambda device: len(device.values)).metric
    for (host, name), device in found.items():
        if device.metric != metric:
            warn(f"{host}/{name} has {device.metric.plural}; those of {metric.name} are used")
    found = {key: device for key, device in found.items() if device.metric == metric}
    ranks = {device.rank for device in found.values()}  # of standalone devices all are 0
    was_resumed = len(ranks) == len(found) and have_changed(devices.values(), RESUME.name)
    if len(found) > 1 and (was_resumed or have_changed(devices.values())):
        curve = sorted(point for device in found.values() for point in device.curve)
        longest = max(found.values(), key=lambda device: len(device.rounds))
        return dataclasses.replace(
            longest,
            values=[value for _, value in curve],
            value_times=[elapsed_s for elapsed_s, _ in curve],
            events=sorted(
                event
                for device in found.values()
                for event in device.events
                if device is longest or event.kind == EVALUATOR.name
            ),
        )
    host, name = max(found, key=lambda key: len(found[key].values))
    if len(found) > 1:
        warn(f"{len(found)} devices have {metric.plural}; those of {host}/{name} are used")
    return found[host, name]


def have_changed(devices: Iterable[Device], kind: str = MEMBERS.name) -> bool:
    """Returns whether workers left the job or came to it, or there was an event of another kind."""
    return any(event.kind == kind for device in devices for event in device.events)


CLOSE = 10  # so many evaluations before, and so many times the gap to the last of them, tell a time by themselves


class Reached(NamedTuple):
    """The time at which a run reached a target: between two evaluations."""

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
        """Returns whether it is known which of two runs was sooner: intervals that meet have no order, nor have seconds
        of workers that evaluate beside those of workers that do not."""
        in_order = self.by_s <= other.after_s or other.by_s <= self.after_s
        return in_order and self.is_moved == other.is_moved


def reached(
    curve: Curve, target: float, metric: Metric = ACCURACY, is_virtual: bool = False, is_moved: bool = False
) -> Reached:
    """The time at which a curve reached `target`. `is_moved` as Reached has it."""
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
    """The time at which each mode's run reached `target`."""
    return {mode: device.reached(target) if device else reached((), target) for mode, device in evaluators.items()}


def duration(devices: Collection[Device]) -> float:
    """Seconds of the run: the longest elapsed time of its workers."""
    return max(device.elapsed_s for device in devices)


def throughput(devices: Collection[Device]) -> float:
    """Samples of all workers per second of the run."""
    return sum(one.samples for device in devices for one in device.rounds) / duration(devices)


def traffic(devices: Collection[Device]) -> float | None:
    """MB (10^6 bytes) that all workers pushed and pulled per second of the run; None where one did not count them."""
    total_bytes = _total(devices, "bytes_pushed", "bytes_pulled")
    return None if total_bytes is None else total_bytes / 1e6 / duration(devices)


def _total(devices: Collection[Device], *names: str) -> float | None:
    """The sum of some fields of all rounds of all workers; None where a round lacks one."""
    columns = [device.column(name) for device in devices for name in names]
    return None if None in columns else sum(sum(column or ()) for column in columns)


def published_traffic(devices: Collection[Device], model_bytes: float | None) -> float | None:
    """MB per second as in the published figures: the model's size once a worker and round, over the duration.
    `model_bytes` is the size of the model for workers whose summary lacks it."""
    if model_bytes is None and not all(device.parameter_bytes for device in devices):
        return None
    total_bytes = sum((device.parameter_bytes or model_bytes or 0) * len(device.rounds) for device in devices)
    return total_bytes / 1e6 / duration(devices)


def computing_ratio(device: Device) -> float | None:
    """Share of a worker's elapsed time in get_batch, forward and backward, local update; None where it is unknown."""
    computing_s = _total([device], "computing_s")
    return None if computing_s is None else computing_s / device.elapsed_s


def published_computing_ratio(device: Device) -> float:
    """Share of a worker's elapsed time outside aggregation, as in the published figures.

    So evaluation, loading and waiting for the state server count as computing. It is 0 where an elapsed time that was
    rounded down is below the aggregation's.
    """
    return max(0.0, 1 - sum(one.aggregation_s for one in device.rounds) / device.elapsed_s)


def lost_share(devices: Collection[Device]) -> float | None:
    """Share of all workers' local steps that were abandoned, dropped or have to be done again; None where a worker did
    not count them, or without steps."""
    begun, lost = _total(devices, "begun"), _total(devices, "lost")
    return lost / begun if begun and lost is not None else None


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
