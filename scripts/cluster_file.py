"""Clusters as files: a CSV with one row a worker.

    step_time_s,straggler_trace
    0.1,
    0.6,traces/network-at-20s-for-60s-30ms.csv

The second column may be empty; a path there is relative to the cluster file. Files for published experiments are in
scripts/clusters/, where a bare name is looked up.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

from config import at_least
from trainer import straggler_trace  # imports no MXNet, nor does the package
from utils import SetupError

COLUMNS = ("step_time_s", "straggler_trace")
READY_MADE = Path(__file__).resolve().parent / "clusters"

_step_time = at_least(0, float)


@dataclass(frozen=True)
class Worker:
    """One worker of a cluster on one machine."""

    step_time_s: float  # its shortest, 0 or more
    straggler_trace: Path | None = None  # absolute; a file that trainer/straggler_trace.py reads


def find(name: str) -> Path:
    """The cluster file that the user means: a path, or the bare name of a ready-made one.

    Raises:
        SetupError: there is neither. The message has the ready-made ones.
    """
    given, ready = Path(name), READY_MADE / f"{name.removesuffix('.csv')}.csv"
    if given.exists():
        return given
    if given.name == name and ready.is_file():
        return ready
    names = ", ".join(sorted(path.stem for path in READY_MADE.glob("*.csv")))
    raise SetupError(f"cluster file {name} does not exist: give the path of one, or a ready-made one: {names}")


def read(path: Path) -> tuple[Worker, ...]:
    """Reads a cluster file and checks the traces that it names.

    Raises:
        SetupError: the file or a trace is not there or not of its form. The message names file and line.
    """
    try:
        with path.open(newline="") as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SetupError(f"cluster file {path} cannot be read: {error}") from None
    if tuple(header) != COLUMNS:
        raise SetupError(
            f"cluster file {path}, line 1: {','.join(header)!r}; the first line must be {','.join(COLUMNS)}"
        )
    if not rows:
        raise SetupError(f"cluster file {path}, line 2: no worker; give one line for each, such as 0.1,")
    return tuple(_worker(path, number, row) for number, row in rows)


def _worker(path: Path, number: int, row: list[str]) -> Worker:
    where = f"cluster file {path}, line {number}"
    try:
        step_time_s, trace = _step_time(row[0]), "".join(row[1:2])
    except (ValueError, argparse.ArgumentTypeError):
        step_time_s, trace = None, ""
    if step_time_s is None or len(row) > len(COLUMNS):
        raise SetupError(
            f"{where}: {','.join(row)!r}; give the shortest time of a step in seconds, 0 or more, a comma, and nothing "
            "or the path of a straggler trace"
        )
    if not trace:
        return Worker(step_time_s)
    trace_path = (path.parent / trace).resolve()
    try:
        straggler_trace.read(trace_path)
    except SetupError as error:
        raise SetupError(f"{where}: {error}") from None
    return Worker(step_time_s, trace_path)
