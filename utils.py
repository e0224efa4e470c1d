"""What every room needs and no package brings: errors with exit codes, logging, atomic files, round logs.

Standard library only, so that a figure machine needs no MXNet and a trainer machine no Django.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# ---------------------------------------------------------------------------------------------- exit codes

EXIT_OK = 0  # the job ended as asked: a limit, a target or a first signal; the logs are complete
EXIT_BUG = 1  # an error that nobody foresaw; the traceback is in the log
EXIT_SETUP = 2  # a flag, a file, a device, a port or an address is wrong; nothing was trained or overwritten
EXIT_PEER_LOST = 3  # another process of the job died or fell silent
EXIT_FORCED = 130  # a second signal: stopped at once


class JobError(Exception):
    """Ends this process with one line on stderr and `exit_code`; never with a traceback."""

    exit_code = EXIT_BUG


class SetupError(JobError):
    """Something that the user can put right before the job starts. The message says how."""

    exit_code = EXIT_SETUP


class PeerLost(JobError):
    """Another process of the job is gone, so this one cannot go on."""

    exit_code = EXIT_PEER_LOST


# ------------------------------------------------------------------------------------------------- logging


def setup_logging(role: str) -> None:
    """Sends log lines as `12:00:01 role | text`, for people and for grep: errors to stderr, all else to stdout."""
    normal, errors = logging.StreamHandler(sys.stdout), logging.StreamHandler(sys.stderr)
    normal.addFilter(lambda record: record.levelno < logging.ERROR)
    errors.setLevel(logging.ERROR)
    logging.basicConfig(
        level=logging.INFO,
        format=f"%(asctime)s {role} | %(message)s",
        datefmt="%H:%M:%S",
        handlers=[normal, errors],
        force=True,
    )


def fail(message: str) -> None:
    """Writes the one line that says why this process ends. Goes to stderr at once, also from a thread."""
    logging.error("error: %s", message)
    for handler in logging.getLogger().handlers:
        handler.flush()


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


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
        SetupError: the file is missing, truncated or not JSON. The message names it.
    """
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise SetupError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise SetupError(f"{path} cannot be read as JSON: {error}") from None


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

# Kinds of events in a round log, "events": [{"kind": ..., "text": ...}, ...]
RELEASE = "release"  # WBSP's global model became a newer one
SWITCH = "switch"  # Sync-Switch went over to its next phase
GREEDY, ELASTIC = "greedy", "elastic"  # a straggler policy acted
RESUME = "resume"  # the job went on from a checkpoint
EVENT_KINDS = (RELEASE, SWITCH, GREEDY, ELASTIC, RESUME)

COMPUTING_STAGES = (GET_BATCH, FORWARD_BACKWARD, LOCAL_UPDATE)
AGGREGATION_STAGES = (GLOBAL_UPDATE, GLOBAL_AGGREGATE)

RUN_FILE = "run.json"
CHECKPOINT_FILE = "checkpoint.npz"
_ITER_FILE = re.compile(r"iter-([1-9]\d*)\.txt")


def iter_file(number: int) -> str:
    """Name of the log file of round `number`, counted from 1."""
    return f"iter-{number}.txt"


def iter_files(folder: Path) -> dict[int, Path]:
    """The round logs of one device's folder by round number, in ascending order."""
    found = ((_ITER_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


# Algorithms that are another mode of main.py with a flag: their name -> that mode and the flag's field in Config.
VARIANTS = {"dcasgd": ("async", "use_dcasgd"), "wbsp-pcc": ("wbsp", "wbsp_overlap")}


def mode_name(algorithm: str, split_by_class: bool) -> str:
    """Folder of a run in the log tree: the mode as summary.py names it (dcasgd, esync-niid, ...)."""
    return f"{algorithm}-niid" if split_by_class else algorithm


class Measure:
    """Times the stages of each local step and writes one `iter-N.txt` a round.

    The time between two calls belongs to the stage that was entered last. Only writing the file is in none.
    """

    def __init__(
        self,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        rounds_before: int = 0,
        elapsed_before_s: float = 0.0,
    ) -> None:
        """
        Args:
            rounds_before: that the folder holds, where a job is resumed.
            elapsed_before_s: seconds that they took.
        """
        self._folder = folder
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

    def write_round(self, num_samples: int, accuracy: float | None, **extra: Any) -> dict[str, Any]:
        """Ends the round: writes its file and returns what it holds.

        Args:
            num_samples: samples that this worker trained on in this round.
            accuracy: test accuracy after this round, where this worker evaluated.
            extra: more keys for the file, such as bytes_pushed.
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
        write_json(self._folder / iter_file(self._round), record)
        self._reset()
        return record


def read_rounds(folder: Path, warn: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Reads back what `Measure` (or the published program) wrote into one device's folder, in order.

    A gap in the numbers or an unreadable file is told to `warn` by name; the sound rounds are still yielded.
    """
    files = iter_files(folder)
    missing = sorted(set(range(1, max(files, default=0) + 1)) - set(files))
    if missing:
        warn(f"{folder}: {len(missing)} round(s) missing, the first is {iter_file(missing[0])}")
    for number, path in files.items():
        try:
            record = read_json(path)
            steps = sorted(record["time"].items(), key=lambda item: int(item[0]))
            record["time"] = {
                step: {stage: float(seconds) for stage, seconds in times.items()} for step, times in steps
            }
            record["num_samples"], record["total_time"] = int(record["num_samples"]), float(record["total_time"])
            record["num_iters"] = number  # that of the file, so that who reads on can name it
        except SetupError as error:
            warn(f"{error}; round left out")
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            warn(f"{path} is not a round log ({type(error).__name__}: {error}); round left out")
        else:
            yield record
