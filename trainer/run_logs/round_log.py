"""The log of a device's rounds: written as files `iter-N.txt` or as lines of one file, and read back. Standard library
only."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from trainer.run_logs import round_faults
from trainer.run_logs.measure import COMPUTING_STAGES, LINES_FILE
from trainer.run_logs.sound_rounds import EVALUATED as EVALUATED
from trainer.run_logs.sound_rounds import LoggedRound, sound_rounds
from utils import SetupError, parsed_json, read_json

_ITER_FILE = re.compile(r"iter-([1-9]\d*)\.txt")


def iter_files(folder: Path) -> dict[int, Path]:
    """The round logs of one device's folder by round number, in ascending order."""
    found = ((_ITER_FILE.fullmatch(path.name), path) for path in folder.iterdir())
    return dict(sorted((int(match[1]), path) for match, path in found if match))


def round_files(folder: Path) -> list[Path]:
    """The files of one device's folder that hold its rounds, in both forms."""
    lines = folder / LINES_FILE
    return [*iter_files(folder).values(), *([lines] if lines.exists() else [])]


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
