"""What every room needs and no package brings: version, errors with exit codes, logging, atomic files, round logs.

Standard library only, so that a figure machine needs no MXNet and a trainer machine no Django.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trainer import round_faults
from trainer.sound_rounds import EVALUATED as EVALUATED
from trainer.sound_rounds import LoggedRound, sound_rounds


def version_number() -> str:
    """The program's version, such as "0.6.0", with which CHANGELOG.md begins."""
    return (Path(__file__).resolve().parent / "VERSION").read_text().strip()


# ---------------------------------------------------------------------------------------------- exit codes

EXIT_OK = 0  # the job ended as asked: a limit, a target or a first signal; the logs are complete
EXIT_BUG = 1  # an error that nobody foresaw; the traceback is in the log
EXIT_SETUP = 2  # a flag, a file, a device, a port or an address is wrong; nothing was trained or overwritten
EXIT_PEER_LOST = 3  # another process of the job died or fell silent
EXIT_FORCED = 130  # a second signal: stopped at once

BEGINS = "training begins"  # says a worker when all are there; the launchers look for it
STOPPED = "a signal came"  # why a worker has ended that was stopped
LEFT = "left the job, which goes on without it"  # and one that was (--leave)
DIVERGED = "training has diverged"  # says a worker that ends for this; scripts/find_switch_point.py looks for it


class JobError(Exception):
    """Ends this process with one line on stderr and `exit_code`; never with a traceback."""

    exit_code = EXIT_BUG


class SetupError(JobError):
    """Something that the user can put right before the job starts. The message says how."""

    exit_code = EXIT_SETUP


class PeerLost(JobError):
    """Another process of the job is gone, so this one cannot go on."""

    exit_code = EXIT_PEER_LOST


class JobOver(JobError):
    """The job has ended without this process, or goes on without it; here nothing is left to do."""

    exit_code = EXIT_OK


# ------------------------------------------------------------------------------------------------- logging


LOG_TIME_FORMAT = "%Y-%m-%d %H:%M:%S"  # the date too: jobs run over midnight, and logs are read days later


def setup_logging(role: str) -> None:
    """Sends log lines as `2026-11-21 12:00:01 role | text`, for people and for grep: errors to stderr, all else to
    stdout."""
    normal, errors = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
    normal.addFilter(lambda record: record.levelno < logging.ERROR)
    errors.setLevel(logging.ERROR)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {role} | %(message)s",
        datefmt=LOG_TIME_FORMAT,
        handlers=[normal, errors],
        force=True,
    )


def fail(message: str) -> None:
    """Writes the one line that says why this process ends. Goes to stderr at once, also from a thread."""
    logging.error("error: %s", message)
    for handler in logging.getLogger().handlers:
        handler.flush()


@contextlib.contextmanager
def die_on_error(what: str) -> Iterator[None]:
    """Ends the process on an error in a callback or a thread, where an exception would be printed and forgotten."""
    try:
        yield
    except BaseException:
        logging.exception(what)
        fail(what)
        os._exit(EXIT_BUG)


# --------------------------------------------------------------------------------------------- atomic files


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as JSON, atomically.

    Raises:
        SetupError: the disk is full, or the folder cannot be written to.
    """
    write_atomically(path, json.dumps(value, allow_nan=False).encode())


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees the old one or the new one, never a part of it.

    Raises:
        SetupError: the disk is full, or the folder cannot be written to.
    """
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise SetupError(f"{error.filename or path} cannot be written: {error.strerror}") from None


def append_line(path: Path, line: str) -> None:
    """Appends a line to a file, so that a crash can cut off this line alone.

    Raises:
        SetupError: the disk is full, or the folder cannot be written to.
    """
    try:
        with path.open("ab+", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                file.seek(end - 1)
                if file.read(1) != b"\n":  # an earlier writer was stopped in the middle of a line
                    line = f"\n{line}"
            content = f"{line}\n".encode()
            if file.write(content) < len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    except OSError as error:
        raise SetupError(f"{error.filename or path} cannot be written: {error.strerror}") from None


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        SetupError: the file is missing, truncated or not JSON. The message names it.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise SetupError(f"{path} does not exist") from None
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}") from None
    return parsed_json(content, str(path))


def parsed_json(content: bytes, where: str) -> Any:
    """What JSON in UTF-8, 16 or 32 says.

    Args:
        where: file, perhaps with its line, for the message.

    Raises:
        SetupError: it is not JSON.
    """
    try:
        return json.loads(content)
    except RecursionError:
        raise SetupError(f"{where} cannot be read as JSON: it is nested too deeply") from None
    except ValueError as error:
        raise SetupError(f"{where} cannot be read as JSON: {error}") from None


# --------------------------------------------------------------------------------------------------- containers


RUN_AS_OWNER = 'run the container as the owner of the mounted folder (--user "$(id -u):$(id -g)")'


def remedy(on_host: str, in_image: str) -> str:
    """What to do about an error: in the project's Docker image other things help than on a host."""
    return in_image if "ESYNC_IMAGE" in os.environ else on_host


# ---------------------------------------------------------------------------------------------- round logs

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
AGGREGATION_STAGES = (GLOBAL_UPDATE, GLOBAL_AGGREGATE)

RUN_FILE = "run.json"
LINES_FILE = "rounds.jsonl"  # the rounds of a run, one JSON object a line
CHECKPOINT_FOLDER = ".checkpoints"
SEED_FOLDER = re.compile(r"seed-\d+")  # the log tree of one of several runs
EARLIER = "earlier"  # folder of what earlier runs left, in the log tree and in the folder of checkpoints
FLOAT32_COUNTS_TO = 1 << 24  # whole numbers up to this survive the kvstore, which knows float32 alone
_ITER_FILE = re.compile(r"iter-([1-9]\d*)\.txt")


def iter_file(number: int) -> str:
    """Name of the log file of round `number`, counted from 1."""
    return f"iter-{number}.txt"


def iter_files(folder: Path) -> dict[int, Path]:
    """The round logs of one device's folder by round number, in ascending order."""
    found = ((_ITER_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def round_files(folder: Path) -> list[Path]:
    """The files of one device's folder that hold its rounds, in either form."""
    lines = folder / LINES_FILE
    return [*iter_files(folder).values(), *([lines] if lines.exists() else [])]


class Measure:
    """Times the stages of each local step and logs each round: as a file `iter-N.txt`, or as a line of one file.

    The time between two calls belongs to the stage that was entered last. Only writing the log is in none.
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
            as_lines: append the rounds to one file, for the many short ones of a device that waits for nobody.
            rounds_before: that the folder holds, where a job is resumed.
            elapsed_before_s: seconds that they took.
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
        """From now on time belongs to `stage` of the current local step."""
        self._close()
        self._stage = stage

    def next_step(self) -> None:
        """From now on time belongs to the next entry: another local step, or the aggregation."""
        self._close()
        self._stage = None
        self._steps.append({})

    def abandon_step(self) -> None:
        """The current entry's step is given up: what it took so far was of no use."""
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
        """The others have done so many rounds without this worker: the one under way has a later number."""
        self._round += rounds

    def write_round(self, num_samples: int, accuracy: float | None, **extra: Any) -> dict[str, Any]:
        """Ends the round: logs it and returns what the log holds.

        Args:
            num_samples: samples that this worker trained on in this round.
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
    """All rounds in one device's folder, in both forms, by their numbers in ascending order; sound or not."""
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
    """The lines of LINES_FILE by the numbers of their rounds; one that cannot be read has the next number."""
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
    """How long a round's local steps computed, by its log (read_rounds)."""
    return seconds_in(record["time"].values(), COMPUTING_STAGES)


def seconds_in(steps: Iterable[Mapping[str, float]], stages: Collection[str]) -> float:
    """How long stages took in some entries of a round log's "time"."""
    return sum((times.get(stage, 0.0) for times in steps for stage in stages), start=0.0)


def read_rounds(folder: Path, warn: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Reads back what `Measure` (or the published program) wrote into one device's folder, in order.

    A gap in the numbers, an unreadable file or a broken line is told to `warn` by name; the sound rounds are still
    yielded.
    """
    return sound_rounds(folder, logged_rounds(folder, warn), warn)
