"""Times the stages of local steps, smooths times, and writes the log of each round."""

import contextlib
import itertools
import json
import logging
import os
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from esync.base import SetupError, append_line, write_atomically

CHECK_READY = "check ready"
GET_BATCH = "get_batch"
FORWARD_BACKWARD = "forward and backward"
LOCAL_UPDATE = "local update"
GLOBAL_UPDATE = "global update"  # ESync's aggregation
GLOBAL_AGGREGATE = "global aggregate"  # that of the others
EVALUATION = "evaluation"
CHECKPOINT = "checkpoint"
SAVING = "save model"
ABANDONED = "abandoned"  # a step that was given up half-way because the round was over: work, but no use

COMPUTING_STAGES = (GET_BATCH, FORWARD_BACKWARD, LOCAL_UPDATE)
OWN_STAGES = (*COMPUTING_STAGES, EVALUATION, SAVING, CHECKPOINT)  # in which a worker waits for no other process
AGGREGATION_STAGES = (GLOBAL_UPDATE, GLOBAL_AGGREGATE)
STAGES = (CHECK_READY, *COMPUTING_STAGES, ABANDONED, *AGGREGATION_STAGES, EVALUATION, SAVING, CHECKPOINT)

STANDS_S, STANDS_TIMES = 30.0, 10.0  # a stage stands for so long, and so many times its longest time so far

MOST_KEPT = 64 << 20  # characters of the rounds that the disk has not taken
LINES_FILE = "rounds.jsonl"  # the rounds of a run, one JSON object a line


def stands(took_s: float, longest_s: float | None, first_s: float) -> bool:
    """Whether a stage takes so long that it does not seem to end. `longest_s` is its longest time so far, and `first_s`
    the patience where there is none."""
    return took_s > (first_s if longest_s is None else max(STANDS_S, STANDS_TIMES * longest_s))


def drop_after(folder: Path, rounds: int) -> None:
    """Drops later rounds from the LINES_FILE in a folder, if it is there; a full disk does not prevent it. Raises
    SetupError if the file cannot be written to."""
    path = folder / LINES_FILE
    if path.exists():
        kept = itertools.takewhile(lambda line: _number(line) <= rounds, path.read_bytes().splitlines(keepends=True))
        try:
            os.truncate(path, sum(map(len, kept)))
        except OSError as error:
            raise SetupError(f"{path} cannot be written: {error.strerror}") from None


def _number(line: bytes) -> int:
    with contextlib.suppress(ValueError, TypeError, KeyError):  # a broken line
        return int(json.loads(line)["num_iters"])
    return 0


def iter_file(number: int) -> str:
    """Name of the log file of round `number`, counted from 1."""
    return f"iter-{number}.txt"


class Smoothed:
    """The lower median of the last five times, as the state server smooths step times: one outlier has no effect, a
    lasting change has after three."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=5)

    def add(self, value: float) -> None:
        """Adds a time in seconds."""
        self._values.append(value)

    @property
    def value(self) -> float:
        return statistics.median_low(self._values) if self._values else 0.0


class Measure:
    """Times the stages of each local step and logs each round: as a file `iter-N.txt`, or as a line of one file. The
    time between two calls belongs to the stage that was entered last. Writing the log belongs to no stage. Rounds that
    a full disk does not take are kept in memory, and written when there is room."""

    def __init__(
        self,
        folder: Path | None,  # None: nothing is written
        clock: Callable[[], float] = time.monotonic,
        rounds_before: int = 0,  # in the folder, where a job is resumed
        elapsed_before_s: float = 0.0,  # seconds of these rounds
        as_lines: bool = False,  # appends the rounds to one file, for the many short ones of a device alone
    ) -> None:
        self._folder = folder
        self._as_lines = as_lines
        self._clock = clock
        self._begin = clock() - elapsed_before_s
        self._round = rounds_before
        self._kept: deque[tuple[Path, str]] = deque()  # path and log of each round that is not written
        self._size = 0  # of these logs
        self._dropped = 0  # rounds
        self._longest: dict[str, float] = {}  # seconds of each stage
        self._fault = ""  # why they are not written
        self._reset()

    def _reset(self) -> None:
        self._steps: list[dict[str, float]] = [{}]
        self._stage: str | None = None
        self._since = self._clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this worker began to train."""
        return self._clock() - self._begin

    def stop(self) -> None:
        """Training ends now: time passes no more."""
        ended = self._clock()
        self._clock = lambda: ended

    def enter(self, stage: str) -> None:
        """Begins a stage of the current local step."""
        self._close()
        self._stage = stage

    def is_in(self, stage: str) -> None:
        """What runs since the last call is this stage, whatever was entered."""
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
            times, took_s = self._steps[-1], now - self._since
            times[self._stage] = times.get(self._stage, 0.0) + took_s
            self._longest[self._stage] = max(took_s, self._longest.get(self._stage, 0.0))
        self._since = now

    def standing(self, since: float, first_s: float) -> str:
        """Why this worker's training seems to stand, in words; empty: it does not. Any thread may call it.

        Args:
            since: on this object's clock, when the training last had a reason to wait.
            first_s: how long the first stage of a kind may take.
        """
        stage, took_s = self._stage, self._clock() - max(self._since, since)
        if stage not in OWN_STAGES or not stands(took_s, longest_s := self._longest.get(stage), first_s):
            return ""
        before = "" if longest_s is None else f", the longest so far {longest_s:.3g} s"
        return f"{stage} takes {took_s:.0f} s{before}"

    def skip(self, rounds: int) -> None:
        """Counts rounds that the others have done without this worker: the one under way has a later number."""
        self._round += rounds

    def write_round(self, num_samples: int, **extra: Any) -> dict[str, Any]:
        """Ends the round, logs it and returns the log. This worker trained on `num_samples` in it. `extra` has more
        keys for the log, such as bytes_pushed, and the metric's where this worker evaluated."""
        self._close()
        self._round += 1
        record: dict[str, Any] = {"num_iters": self._round, "num_samples": num_samples, "total_time": self.elapsed_s}
        record |= extra
        record["time"] = {str(step): times for step, times in enumerate(self._steps)}
        self.log(record)
        self._reset()
        return record

    def log(self, record: Mapping[str, Any]) -> None:
        """Logs a round; the newest one perhaps once more, since entries were added."""
        if self._folder is None:
            return
        text = json.dumps(record, allow_nan=False)
        self._kept.append((self._folder / (LINES_FILE if self._as_lines else iter_file(self._round)), text))
        self._size += len(text)
        self._write()

    def _write(self) -> None:
        """Writes what is kept, as far as the disk takes it."""
        if self._folder is not None and not self._folder.exists():
            logging.warning("warning: %s was removed: what was in it is lost, and it is made again", self._folder)
        try:
            while self._kept:
                path, text = self._kept[0]
                append_line(path, text) if self._as_lines else write_atomically(path, text.encode())
                self._kept.popleft()
                self._size -= len(text)
        except SetupError as error:
            if not self._fault:
                logging.warning("warning: %s; training goes on, and the newest rounds' logs are kept in memory", error)
            self._fault = str(error)
        else:
            if self._fault and not self._dropped:
                logging.info("the rounds' logs are written again, and none is missing")
            self._fault = ""
        while self._size > MOST_KEPT:
            self._size -= len(self._kept.popleft()[1])
            self._dropped += 1

    def unwritten(self) -> str:
        """What is missing in the log for good, in words; empty if nothing is."""
        self._write()
        missing = self._dropped + len(self._kept)
        return f"the logs of {missing} round(s) are lost: {self._fault or 'too many were kept'}" if missing else ""
