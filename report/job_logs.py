"""Reads the logs of one job, a worker at a time, and puts their stages on the worker's clock. Standard library only."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import utils
from algorithms import MEMBERS
from report.metrics import Curve, Warn, joined
from report.newest_run import Place, RunFile, of_newest
from trainer.metric import ACCURACY, Metric, logged_value
from trainer.run_logs import round_log
from trainer.run_logs.measure import FORWARD_BACKWARD
from utils import SetupError


@dataclass(frozen=True)
class WorkerLog:
    """The logs of one worker; `rounds` as round_log.read_rounds returns them, `run` is its run.json, or empty."""

    host: str
    device: str
    rounds: Sequence[dict[str, Any]]
    run: Mapping[str, Any]

    @property
    def place(self) -> str:
        """HOST/DEVICE, as in the log tree."""
        return f"{self.host}/{self.device}"

    @property
    def elapsed_s(self) -> float:
        """At the end of the last round."""
        return float(self.rounds[-1]["total_time"])

    @property
    def curve(self) -> Curve:
        """The metric over time; empty where this worker did not evaluate."""
        return [(one["total_time"], found[1]) for one in self.rounds if (found := logged_value(one)) is not None]

    @property
    def metric(self) -> Metric:
        """Of all its evaluations (sound_rounds.py)."""
        return next((found[0] for one in self.rounds if (found := logged_value(one)) is not None), ACCURACY)


def read(folders: Iterable[Path], warn: Warn) -> list[WorkerLog]:
    """Reads the workers of a job, sorted by rank; where a rank is unknown, in the order of `folders`. Each of the
    `folders` is HOST/DEVICE. Raises SetupError if no round is readable."""
    logs = []
    for each in newest(folders, warn):
        rounds = [one for one in round_log.read_rounds(each.folder, warn) if one["num_iters"] <= each.until]
        if rounds:
            logs.append(WorkerLog(each.folder.parent.name, each.folder.name, rounds, each.run_file.run))
        else:
            warn(f"{each.folder} holds no readable round log; left out")
    if not logs:
        raise SetupError("no readable round log (HOST/DEVICE/iter-N.txt or rounds.jsonl); train first")
    ranks = [log.run.get("rank") for log in logs]
    if all(isinstance(rank, int) for rank in ranks) and len(set(ranks)) == len(logs):
        logs.sort(key=lambda log: int(log.run["rank"]))
    return logs


class WorkerFolder(NamedTuple):
    """The folder of a worker of the newest run; rounds after `until` belong to another run."""

    folder: Path
    run_file: RunFile
    until: float
    is_whole: bool  # it took part to the end of the run

    @property
    def place(self) -> Place:
        """Host and device, as in the log tree."""
        return self.folder.parent.name, self.folder.name


def newest(folders: Iterable[Path], warn: Warn) -> list[WorkerFolder]:
    """The devices' folders of the newest run (newest_run.py); `warn` gets a line about the others."""
    there = {(folder.parent.name, folder.name): folder for folder in folders}
    found = {place: RunFile(read_run(folder, warn), _written_s(folder)) for place, folder in there.items()}
    chosen = of_newest(found)
    for line in chosen.lines:
        warn(f"{next(iter(there.values())).parents[1]}: {line}")
    until = chosen.until
    return [
        WorkerFolder(there[each], found[each], until.get(each, math.inf), each not in until) for each in chosen.places
    ]


def _written_s(folder: Path) -> float:
    try:
        return (folder / utils.RUN_FILE).stat().st_mtime
    except OSError:  # published logs have none
        return 0.0


def metric_of(logs: Iterable[WorkerLog]) -> Metric:
    """The metric of the worker that evaluated most often."""
    return max(logs, key=lambda log: len(log.curve)).metric


def curve_of(logs: Iterable[WorkerLog]) -> Curve:
    """The metric over time of the worker that evaluated, or of several in turn where workers were lost."""
    logs = list(logs)
    metric = metric_of(logs)
    said = [record.get("events") for log in logs for record in log.rounds]
    events = [event for each in said if isinstance(each, list) for event in each]
    if any(isinstance(event, dict) and event.get("kind") == MEMBERS.name for event in events):
        return joined(log.curve for log in logs if log.metric == metric)
    return max((log.curve for log in logs), key=len)


def read_run(folder: Path, warn: Warn) -> Mapping[str, Any]:
    """A device's run.json; empty where it is missing, as in logs of the published program, or damaged."""
    path = folder / utils.RUN_FILE
    if not path.exists():
        return {}
    try:
        run = utils.read_json(path)
    except SetupError as error:
        warn(str(error))
        return {}
    if not isinstance(run, dict):
        warn(f"{path} is not a JSON object")
        return {}
    return run


class Slice(NamedTuple):
    """A stage of a local step, or of the aggregation after it; seconds since the worker began to train."""

    step: int  # its entry in the round log, from 0
    stage: str  # of round_log.py
    begin_s: float
    end_s: float


class TimedRound(NamedTuple):
    """A round on its worker's clock."""

    record: Mapping[str, Any]
    begin_s: float
    end_s: float
    slices: tuple[Slice, ...]

    @property
    def unlogged_s(self) -> float:
        """Outside all stages: mostly the writing of the previous round's log."""
        return self.end_s - self.begin_s - sum(end_s - begin_s for *_, begin_s, end_s in self.slices)

    def step_slices(self) -> Iterator[list[Slice]]:
        """The stages of each complete local step."""
        for number in dict.fromkeys(each.step for each in self.slices):
            stages = [each for each in self.slices if each.step == number]
            if any(each.stage == FORWARD_BACKWARD for each in stages):
                yield stages


def timed_rounds(rounds: Iterable[Mapping[str, Any]]) -> Iterator[TimedRound]:
    """The rounds in order, each with its stages in the order of the log.

    A log has the total time of a stage of a step, not its begin. Time outside all stages is put at the beginning of a
    round, when the previous round's log is written. Where times do not fit (the published program truncates to whole
    seconds) later stages are moved, so that nothing overlaps.
    """
    before, number = 0.0, 0
    for record in rounds:
        stages = [
            (int(step), stage, max(0.0, seconds))
            for step, times in record["time"].items()
            for stage, seconds in times.items()
        ]
        took_s = sum(seconds for *_, seconds in stages)
        moment = max(before, record["total_time"] - took_s)
        follows = record["num_iters"] == number + 1
        begin_s, slices = before if follows else moment, []
        for step, stage, seconds in stages:
            slices.append(Slice(step, stage, moment, moment + seconds))
            moment += seconds
        before, number = max(moment, record["total_time"]), record["num_iters"]
        yield TimedRound(record, begin_s, before, tuple(slices))
