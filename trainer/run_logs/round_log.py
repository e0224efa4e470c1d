"""The log of a device's rounds: written as files `iter-N.txt` or as lines of one file, and read back. Standard library
only."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trainer.run_logs import round_faults
from trainer.run_logs.sound_rounds import EVALUATED as EVALUATED
from trainer.run_logs.sound_rounds import LoggedRound, sound_rounds
from utils import SetupError, append_line, parsed_json, read_json, write_json

CHECK_READY = "check ready"
GET_BATCH = "get_batch"
FORWARD_BACKWARD = "forward and backward"
LOCAL_UPDATE = "local update"
GLOBAL_UPDATE = "global update"  # ESync's aggregation
GLOBAL_AGGREGATE = "global aggregate"  # that of the others
EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"
SAVING = "save model"
ABANDONED = "abandoned"  # a step that was given up because the round was over

COMPUTING_STAGES = (GET_BATCH, FORWARD_BACKWARD, LOCAL_UPDATE)
AGGREGATION_STAGES = (GLOBAL_UPDATE, GLOBAL_AGGREGATE)

LINES_FILE = "rounds.jsonl"  # the rounds of a run, one JSON object a line
_ITER_FILE = re.compile(r"iter-([1-9]\d*)\.txt")


def iter_file(number: int) -> str:
    """Name of the log file of round `number`, counted from 1."""
    return f"iter-{number}.txt"


def iter_files(folder: Path) -> dict[int, Path]:
    """The round logs of one device's folder by round number, in ascending order."""
    found = ((_ITER_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def round_files(folder: Path) -> list[Path]:
    """The files of one device's folder that hold its rounds, in both forms."""
    lines = folder / LINES_FILE
    return [*iter_files(folder).values(), *([lines] if lines.exists() else [])]


class Measure:
    """Times the stages of each local step and logs each round: as a file `iter-N.txt`, or as a line of one file.

    The time between two calls belongs to the stage that was entered last. Writing the log belongs to no stage.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        rounds_before: int = 0,
        elapsed_before_s: float = 0.0,
        as_lines: bool = False,
    ) -> None:
        """
        Args:
            rounds_before: rounds in the folder, where a job is resumed.
            elapsed_before_s: seconds of these rounds.
            as_lines: append the rounds to one file, for the many short ones of a device that trains alone.
        """
        self._folder = folder
        self._as_lines = as_lines
        self._clock = clock
        self._begin = clock() - elapsed_before_s
        self._round = rounds_before
        self._reset()

    def _reset(self) -> None:
        self._steps: list[dict[str, float]] = [{}]
        self._stage: str | None = None
        self._since = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this worker began to train."""
        return self._clock() - self._begin

    def enter(self, stage: str) -> None:
        """Begins a stage of the current local step."""
        self._close()
        self._stage = stage

    def next_step(self) -> None:
        """Begins the next entry: another local step, or the aggregation."""
        self._close()
        self._stage = None
        self._steps.append({})

    def abandon_step(self) -> None:
        """Counts the time of the current entry's step as abandoned."""
        self._close()
        self._stage = None
        times = self._steps[-1]
        lost = sum(times.pop(stage) for stage in COMPUTING_STAGES if stage in times)
        times[ABANDONED] = lost

    def _close(self) -> None:
        now = self._clock()
        if self._stage is not None:
            times = self._steps[-1]
            times[self._stage] = times.get(self._stage, 0.0) + now - self._since
        self._since = now

    def skip(self, rounds: int) -> None:
        """Counts rounds that the others have done without this worker: the one under way has a later number."""
        self._round += rounds

    def write_round(self, num_samples: int, accuracy: float | None, **extra: Any) -> dict[str, Any]:
        """Ends the round, logs it and returns the log.

        Args:
            num_samples: that this worker trained on in this round.
            accuracy: test accuracy after this round, where this worker evaluated.
            extra: more keys for the log, such as bytes_pushed.

        Raises:
            SetupError: the disk is full, or the folder cannot be written to.
        """
        self._close()
        self._round += 1
        record: dict[str, Any] = {
            "num_iters": self._round,
            "num_samples": num_samples,
            "total_time": self.elapsed_s,
        }
        if accuracy is not None:
            record["accuracy"] = accuracy
        record |= extra
        record["time"] = {str(step): times for step, times in enumerate(self._steps)}
        if self._as_lines:
            append_line(self._folder / LINES_FILE, json.dumps(record, allow_nan=False))
        else:
            write_json(self._folder / iter_file(self._round), record)
        self._reset()
        return record


def logged_rounds(folder: Path, warn: Callable[[str], None]) -> dict[int, LoggedRound]:
    """All rounds in one device's folder, sound or not, in both forms, by number in ascending order."""
    files, lines = iter_files(folder), _logged_lines(folder / LINES_FILE, warn)
    if files and lines:
        warn(f"{folder} holds rounds in {LINES_FILE} and in iter-N.txt; each is read once")
    logged = lines | {number: _logged(str(path), partial(read_json, path)) for number, path in files.items()}
    return dict(sorted(logged.items()))


def _logged(where: str, read: Callable[[], Any]) -> LoggedRound:
    try:
        return LoggedRound(where, read(), "")
    except SetupError as error:
        return LoggedRound(where, None, str(error))


def _logged_lines(path: Path, warn: Callable[[str], None]) -> dict[int, LoggedRound]:
    """The lines of LINES_FILE by round; an unreadable line gets the next number."""
    found: dict[int, LoggedRound] = {}
    number, twice = 0, []
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        warn(f"{path} cannot be read: {error.strerror}; left out")
        return {}
    for line_number, line in enumerate(lines, start=1):
        where = f"{path}, line {line_number}"
        logged = _logged(where, partial(parsed_json, line, where))
        said = logged.record.get("num_iters") if isinstance(logged.record, dict) else None
        number = said if type(said) is int and 0 < said <= round_faults.MOST_ROUNDS else number + 1
        if number in found and not found[number].fault and not logged.fault:
            twice.append(f"{where}: round {number} is there once more, and the last counts")
        found[number] = logged
    round_faults.tell(twice, f"{path}: {len(twice)} lines are of rounds that are there already", warn)
    return found


def computing_seconds(record: Mapping[str, Any]) -> float:
    """Seconds that a round's local steps computed, by its log (read_rounds)."""
    return seconds_in(record["time"].values(), COMPUTING_STAGES)


def seconds_in(steps: Iterable[Mapping[str, float]], stages: Collection[str]) -> float:
    """Seconds of stages in some entries of a round log's "time"."""
    return sum((times.get(stage, 0.0) for times in steps for stage in stages), start=0.0)


def read_rounds(folder: Path, warn: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Reads the rounds that `Measure` or the published program wrote into one device's folder, in order.

    Warns of gaps in the numbers, unreadable files and broken lines by name, and still yields the sound rounds.
    """
    return sound_rounds(folder, logged_rounds(folder, warn), warn)
