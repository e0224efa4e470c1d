"""Raw results as JSON lines, one a run: written as runs end, read back as dataclasses whose fields are the keys."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

from config import names_of
from utils import SetupError, append_line

RUNS_FILE = "runs.jsonl"


class Keyed(Protocol):
    """A run that knows what it is one of."""

    @property
    def key(self) -> Hashable:
        """Of two runs with the same the later one counts."""


Line = TypeVar("Line", bound=Keyed)


def append(folder: Path, line: Any) -> None:
    """Adds a run, a dataclass.

    Raises:
        SetupError: the disk is full, or the folder cannot be written to.
    """
    append_line(folder / RUNS_FILE, json.dumps(dataclasses.asdict(line), allow_nan=False))


def read(folder: Path, of: type[Line], maker: str) -> list[Line]:
    """All runs, in order; of those of the same thing only the last.

    Args:
        of: what a line is.
        maker: the command that makes the file, for who has none.

    Raises:
        SetupError: the file is not there, or a line of it is no run. The message names it.
    """
    path = folder / RUNS_FILE
    try:
        texts = path.read_text().splitlines()
    except OSError as error:
        raise SetupError(f"{path} cannot be read: {error.strerror}; {maker} makes one") from None
    lines: dict[Hashable, Line] = {}
    for number, text in enumerate(texts, start=1):
        try:
            line = of(**json.loads(text))
        except (TypeError, ValueError, AttributeError, RecursionError) as error:
            raise SetupError(f"{path}, line {number} is no run: {error}") from None
        lines.pop(line.key, None)
        lines[line.key] = line
    return list(lines.values())


def value_in(command: Sequence[str], *fields: str) -> str:
    """The value of a flag in a run's command; of several the last, as argparse takes it. Empty where there is none.

    Args:
        fields: of Config, of whose flags the command has one.
    """
    flags = {flag for field in fields for flag in names_of(field)}
    words = [part for word in command for part in word.split("=", 1)]
    return next((value for flag, value in reversed(list(pairwise(words))) if flag in flags), "")


class Versioned(Protocol):
    """A run that knows which program made it."""

    @property
    def commit(self) -> str | None:
        """That was checked out; None where there was no git."""

    @property
    def program(self) -> str:
        """A hash of its files."""


def programs(lines: Iterable[Versioned]) -> list[str]:
    """The versions of the program that made the runs: commits, with `-dirty` where files were changed since, or hashes
    of its files where there was no git."""
    names = ((line.commit or line.program).partition("-") for line in lines)
    return list(dict.fromkeys(f"{name[:12]}{dash}{changed}" for name, dash, changed in names))
