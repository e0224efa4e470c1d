"""Raw results as JSON lines, one a run: written as runs end, read back as dataclasses whose fields are the keys."""

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

from algorithms import folder_name
from config import names_of
from utils import SetupError, append_line

RUNS_FILE = "runs.jsonl"
IID, BY_CLASS = SPLITS = "iid", "by-class"
# Fields that have a default, and are known before the run.
_KNOWN_BEFORE = ("split", "seed", "case", "momentum", "in_a_row", "parameters", "step_times_s", "command")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run. Its fields are the keys of the JSON."""

    entry: str  # name of an algorithm or a preset, of algorithms.ENTRIES
    network: str  # that was trained; `none` where only times and bytes were simulated
    split: str = IID
    seed: int = 0
    seconds: float = 0.0  # that it took, virtual ones or real ones
    samples_per_s: float = 0.0  # of all workers
    ended: str = ""  # why, in words
    diverged: bool = False  # its loss was no longer finite
    failed: str = ""  # the error that ended it otherwise; empty in nearly all
    command: Sequence[str] = ()  # of simulate.py or scripts/local_cluster.sh, that makes it again
    commit: str | None = None  # None where there was no git
    program: str = ""  # a hash of its files

    @property
    def key(self) -> tuple[Any, ...]:
        """Of two runs with the same key the later one counts."""
        raise NotImplementedError

    @property
    def has_model(self) -> bool:
        """Whether it neither diverged nor failed."""
        return not (self.diverged or self.failed)

    @property
    def filed(self) -> str:
        """The entry's name in the log tree."""
        return self.entry

    @property
    def folder(self) -> str:
        """Of its mode in the log tree: NETWORK/MODE."""
        return f"{self.network}/{folder_name(self.filed, '-s' in self.command)}"


Line = TypeVar("Line", bound=Run)
Task = TypeVar("Task")


def unmade(line: Line) -> Line:
    """The run without its results."""
    blank = {
        field.name: field.default
        for field in dataclasses.fields(line)
        if field.default is not dataclasses.MISSING and field.name not in _KNOWN_BEFORE
    }
    return dataclasses.replace(line, **blank)


def append(folder: Path, line: Run) -> None:
    """Raises SetupError if the disk is full, or the folder cannot be written to."""
    append_line(folder / RUNS_FILE, json.dumps(dataclasses.asdict(line), allow_nan=False))


def read(folder: Path, of: type[Line], maker: str) -> list[Line]:
    """All runs, in order; of those with the same key only the last. `maker` is the command that makes the file, for the
    error. Raises SetupError if the file is not there, or a line of it is no run. The message names it."""
    path = folder / RUNS_FILE
    try:
        texts = path.read_text().splitlines()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}; {maker} makes one") from None
    lines: dict[Any, Line] = {}
    for number, text in enumerate(texts, start=1):
        try:
            line = of(**json.loads(text))
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise SetupError(f"{path}, line {number} is no run: {error}") from None
        lines.pop(line.key, None)
        lines[line.key] = line
    return list(lines.values())


def made(
    tasks: Iterable[Task], make: Callable[[Task], Line | None], at_once: int, folder: Path
) -> Iterator[tuple[Task, Line]]:
    """Makes runs side by side; yields each as it ends, once it stands in the folder's file. `make` returns None where
    the run was stopped."""
    with ThreadPoolExecutor(at_once) as pool:
        futures = {pool.submit(make, task): task for task in tasks}
        for future in as_completed(futures):
            line = future.result()
            if line is not None:
                append(folder, line)
                yield futures[future], line


def duration_text(seconds: float) -> str:
    """`3 min`, `45 s` or `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Progress:
    """Counts the runs of a set, and estimates the time that the others take from those of this call."""

    def __init__(self, runs: int) -> None:
        self._begin, self._runs = time.monotonic(), runs
        self.done = self._fresh = 0

    def ended(self, what: str) -> str:
        """Counts a run; returns a line about it."""
        self.done, self._fresh = self.done + 1, self._fresh + 1
        left_s = (time.monotonic() - self._begin) / self._fresh * (self._runs - self.done)
        return f"{self.done} of {self._runs}: {what}; about {duration_text(left_s)} left"


def value_in(command: Sequence[str], *fields: str) -> str:
    """The value of a flag in a run's command; of several the last, as argparse takes it. Empty where there is none. The
    command has the flag of one of these `fields` of Config."""
    flags = {flag for field in fields for flag in names_of(field)}
    words = [part for word in command for part in word.split("=", 1)]
    return next((value for flag, value in reversed(list(pairwise(words))) if flag in flags), "")


def programs(lines: Iterable[Run]) -> list[str]:
    """The versions of the program that made the runs: commits, with `-dirty` where files were changed since, or hashes
    of its files where there was no git."""
    names = ((line.commit or line.program).partition("-") for line in lines)
    return list(dict.fromkeys(f"{name[:12]}{dash}{changed}" for name, dash, changed in names))
