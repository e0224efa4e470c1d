"""The logs of one job, worker by worker, with its stages laid out on the worker's own clock. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import utils
from algorithms import MEMBERS
from report.metrics import Curve, Warn, is_quantity, joined
from utils import FORWARD_BACKWARD, SetupError


@dataclass(frozen=True)
class WorkerLog:
    """What one worker has left.

    Attributes:
        rounds: as utils.read_rounds gives them.
        run: its run.json; empty where there is none.
    """

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
        """Seconds until its last round was over."""
        return float(self.rounds[-1]["total_time"])

    @property
    def curve(self) -> Curve:
        """Test accuracy over time; empty where this worker did not evaluate."""
        return [(one["total_time"], one["accuracy"]) for one in self.rounds if is_quantity(one.get("accuracy"))]


def read(folders: Iterable[Path], warn: Warn) -> list[WorkerLog]:
    """The workers of a job in the order of their ranks; where one does not say its own, in the order that is given.

    Args:
        folders: HOST/DEVICE of each.

    Raises:
        SetupError: there is not one readable round.
    """
    logs = []
    for folder in folders:
        rounds = list(utils.read_rounds(folder, warn))
        if rounds:
            logs.append(WorkerLog(folder.parent.name, folder.name, rounds, read_run(folder, warn)))
        else:
            warn(f"{folder} holds no readable round log; left out")
    if not logs:
        raise SetupError("no readable round log (HOST/DEVICE/iter-N.txt or rounds.jsonl); train first")
    ranks = [log.run.get("rank") for log in logs]
    if all(isinstance(rank, int) for rank in ranks) and len(set(ranks)) == len(logs):
        logs.sort(key=lambda log: int(log.run["rank"]))
    return logs


def curve_of(logs: Iterable[WorkerLog]) -> Curve:
    """That of the worker that evaluated, or of those that did in turn where workers were lost; empty where none did."""
    logs = list(logs)
    events = [event for log in logs for record in log.rounds for event in record.get("events", ())]
    if any(isinstance(event, dict) and event.get("kind") == MEMBERS.name for event in events):
        return joined(log.curve for log in logs)
    return max((log.curve for log in logs), key=len)


def read_run(folder: Path, warn: Warn) -> Mapping[str, Any]:
    """A device's run.json; empty where there is none, as in logs of the published program, or where it is damaged."""
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
    """A stage of a local step, or of the aggregation behind it; seconds since the worker began to train."""

    step: int  # the entry of the round log that it stands in, from 0
    stage: str  # of utils.py
    begin_s: float
    end_s: float


class LaidOut(NamedTuple):
    """A round on its worker's clock."""

    record: Mapping[str, Any]
    begin_s: float
    end_s: float
    slices: tuple[Slice, ...]

    @property
    def unlogged_s(self) -> float:
        """What no stage counts: above all the writing of the log of the round before."""
        return self.end_s - self.begin_s - sum(end_s - begin_s for *_, begin_s, end_s in self.slices)

    def step_slices(self) -> Iterator[list[Slice]]:
        """The stages of each complete local step."""
        for number in dict.fromkeys(each.step for each in self.slices):
            stages = [each for each in self.slices if each.step == number]
            if any(each.stage == FORWARD_BACKWARD for each in stages):
                yield stages


def laid_out(rounds: Iterable[Mapping[str, Any]]) -> Iterator[LaidOut]:
    """The rounds one after the other, and in each the stages one after the other, as the log has them.

    A log says how long a stage of a step took in all, not when; stages are entered in the order in which they stand
    there. What no stage counts comes at the beginning of a round: the log of the one before is written then. Times that
    do not fit (the published program cuts seconds off) move what follows to later, so that nothing overlaps.
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
        yield LaidOut(record, begin_s, before, tuple(slices))
