"""The log of a device's rounds: written as files `iter-N.txt` or as lines of one file, and read back. Standard library
only."""

import contextlib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trainer.run_logs import round_faults
from trainer.run_logs.measure import COMPUTING_STAGES, LINES_FILE
from trainer.run_logs.sound_rounds import EVALUATED as EVALUATED
from trainer.run_logs.sound_rounds import MISSED, LoggedRound, sound_rounds
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


class Form(NamedTuple):
    """How a reader wants the rounds."""

    # Reads the JSON of a round as round_faults.checked would return it; None where that has to tell what is wrong
    quick: Callable[[bytes], dict[str, Any] | None]
    # What is kept of a round, and the seconds of all its stages
    reduced: Callable[[dict[str, Any]], tuple[dict[str, Any], float]]


WHOLE = Form(lambda content: None, lambda record: (record, round_faults.stages_s(record)))


def logged_rounds(folder: Path, warn: Callable[[str], None], form: Form = WHOLE) -> dict[int, LoggedRound]:
    """All rounds in one device's folder, sound or not, in both forms, by number in ascending order."""
    files, lines = iter_files(folder), _logged_lines(folder / LINES_FILE, warn, form)
    if files and lines:
        warn(f"{folder} holds rounds in {LINES_FILE} and in iter-N.txt; each is read once")
    logged = lines | {number: _logged_file(path, number, form) for number, path in files.items()}
    return dict(sorted(logged.items()))


def _logged_file(path: Path, number: int, form: Form) -> LoggedRound:
    content = b""
    with contextlib.suppress(OSError):  # read_json tells it
        content = path.read_bytes()
    record = form.quick(content)
    if record is not None and number <= round_faults.MOST_ROUNDS:
        return LoggedRound(str(path), *form.reduced(record))
    return _checked(str(path), *_parsed(partial(read_json, path)), number, form)


def _logged_lines(path: Path, warn: Callable[[str], None], form: Form) -> dict[int, LoggedRound]:
    """The lines of LINES_FILE by round; an unreadable line gets the next number."""
    found: dict[int, LoggedRound] = {}
    number, twice, prefix = 0, [], f"{path}, line "
    try:
        with path.open("rb", buffering=1 << 18) as file:
            for line_number, line in enumerate(_lines(file), start=1):
                where, record = f"{prefix}{line_number}", form.quick(line)
                value, fault = record, ""
                if record is None:
                    value, fault = _parsed(partial(parsed_json, line.removesuffix(b"\n"), where))
                said = value.get("num_iters") if isinstance(value, dict) else None
                number = said if type(said) is int and 0 < said <= round_faults.MOST_ROUNDS else number + 1
                if number in found and found[number].record is not None and not fault:
                    twice.append(f"{where}: round {number} is there once more, and the last counts")
                if record is not None:
                    found[number] = LoggedRound(where, *form.reduced(record))
                else:
                    found[number] = _checked(where, value, fault, number, form)
    except FileNotFoundError:
        return {}
    except OSError as error:
        warn(f"{path} cannot be read: {error.strerror}; left out")
        return {}
    round_faults.tell(twice, f"{path}: {len(twice)} lines are of rounds that are there already", warn)
    return found


def _lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """Those of bytes.splitlines, one at a time; each may have the end of a line."""
    for line in file:
        if b"\r" in line:
            yield from line.splitlines()
        else:
            yield line


def _parsed(parse: Callable[[], Any]) -> tuple[Any, str]:
    """A JSON value, and why it cannot be read; else empty."""
    try:
        return parse(), ""
    except SetupError as error:
        return None, str(error)


def _checked(where: str, value: Any, fault: str, number: int, form: Form) -> LoggedRound:
    if fault:
        return LoggedRound(where, None, fault=fault)
    try:
        return LoggedRound(where, *form.reduced(round_faults.checked(value, number)))
    except ValueError as error:
        rest = {key: value[key] for key in (MISSED, EVALUATED) if key in value} if isinstance(value, dict) else {}
        return LoggedRound(where, rest, fault=f"{where} is not a round log ({error})")


def computing_seconds(record: Mapping[str, Any]) -> float:
    """Seconds that a round's local steps computed, by its log (read_rounds)."""
    return seconds_in(record["time"].values(), COMPUTING_STAGES)


def seconds_in(steps: Iterable[Mapping[str, float]], stages: Collection[str]) -> float:
    """Seconds of stages in some entries of a round log's "time"."""
    return sum([times[stage] for times in steps for stage in stages if stage in times], start=0.0)


def read_rounds(folder: Path, warn: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    """Reads the rounds that `Measure` or the published program wrote into one device's folder, in order. Warns of gaps
    in the numbers, unreadable files and broken lines by name, and still yields the sound rounds."""
    return sound_rounds(folder, logged_rounds(folder, warn), warn)
