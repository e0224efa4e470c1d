"""Transient stragglers, emulated: a CSV file says when this device's steps take longer, and by how much.

    start_s,duration_s,extra_s
    20,15,0.5

From 20 s after training began, for 15 s, every local step takes 0.5 s more. Entries may overlap: they add up.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from utils import SetupError

COLUMNS = ("start_s", "duration_s", "extra_s")


@dataclass(frozen=True)
class Slowdown:
    """One entry; all times in seconds."""

    start_s: float
    duration_s: float
    extra_s: float


def read(path: Path) -> tuple[Slowdown, ...]:
    """Reads a trace.

    Raises:
        SetupError: the file is not there or not of this form. The message names file and line.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SetupError(f"straggler trace {path} cannot be read: {error}") from None
    if not rows or tuple(cell.strip() for cell in rows[0]) != COLUMNS:
        raise SetupError(f"straggler trace {path}: the first line must be {','.join(COLUMNS)}")
    return tuple(_slowdown(path, number, row) for number, row in enumerate(rows[1:], start=2) if row)


def _slowdown(path: Path, number: int, row: list[str]) -> Slowdown:
    try:
        values = [float(cell) for cell in row]
    except ValueError:
        values = []
    if len(values) != len(COLUMNS) or not all(math.isfinite(value) and value >= 0 for value in values):
        raise SetupError(
            f"straggler trace {path}, line {number}: {','.join(row)!r}; give {', '.join(COLUMNS)}, each 0 or more"
        )
    return Slowdown(*values)


def extra_step_time(trace: tuple[Slowdown, ...], elapsed_s: float) -> float:
    """Seconds by which a step takes longer that begins `elapsed_s` after training began."""
    return sum(entry.extra_s for entry in trace if entry.start_s <= elapsed_s < entry.start_s + entry.duration_s)
