"""Curves from CSV files, as TensorBoard exports them and Sync-Switch's measurements are published, to be drawn beside
ours."""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from algorithms import ENTRIES, PALETTE, Entry
from report.metrics import IID, Curve, Mode
from trainer.metric import Metric
from utils import SetupError

_NAME_LETTERS = 60
_TIME, _WALL_TIME, _VALUE = "time", "wall time", "value"  # heads of the columns, in any case
_COLUMNS = "Value, and Time (s) or Wall time (s since 1970; that of the first row becomes 0)"


class Beside(NamedTuple):
    """A file of `--beside NAME=FILE.csv`."""

    name: str
    path: Path


def beside(text: str) -> Beside:
    """Parses NAME=FILE.csv."""
    name, equals, path = text.partition("=")
    name = name.strip()
    if not equals or not path or not name.isprintable() or not 0 < len(name) <= _NAME_LETTERS or name[0] == "_":
        raise argparse.ArgumentTypeError(
            f"{text!r} is no NAME=FILE.csv with a name of up to {_NAME_LETTERS} printable characters for the legend, "
            "the first of them no _"
        )
    return Beside(name, Path(path))


def read_beside(files: Sequence[Beside], modes: Collection[Mode], metric: Metric) -> dict[Mode, Curve]:
    """The curves of the files, in looks that those of `modes` do not have.

    Raises:
        SetupError: a name is taken, or a file has no curve of this metric.
    """
    taken = {mode.algorithm.title for mode in modes}
    used = {mode.algorithm.look for mode in modes}
    looks = (look for look in (*PALETTE, *(e.look for e in ENTRIES.values() if e.look.marker)) if look not in used)
    found: dict[Mode, Curve] = {}
    for (name, path), look in zip(files, looks, strict=False):
        if name in taken:
            raise SetupError(f"--beside {name}={path}: the figure has another curve of that name: give another name")
        taken.add(name)
        entry: Entry = replace(ENTRIES["sync-switch"], name=name, title=name, own_look=look)
        found[Mode(entry, IID)] = read(path, metric)
    if len(found) < len(files):
        raise SetupError(f"--beside {files[len(found)].name}: there are no looks for so many curves: leave some out")
    return found


def read(path: Path, metric: Metric) -> Curve:
    """The values of the metric over seconds.

    Raises:
        SetupError: it cannot be read, lacks a column, or a row has no number there.
    """
    try:
        return list(_points(path, metric))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SetupError(f"{path} cannot be read as CSV: {error}") from None


def _points(path: Path, metric: Metric) -> Iterator[tuple[float, float]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.DictReader(file)
        heads = {(head or "").strip().lower(): head for head in rows.fieldnames or []}
        time = next((heads[name] for name in (_TIME, _WALL_TIME) if name in heads), None)
        if time is None or _VALUE not in heads:
            there = ", ".join(rows.fieldnames or [])[:80]
            raise SetupError(f"{path} begins with {there!r}; its columns should be {_COLUMNS}")
        begin_s, last_s = 0.0 if _TIME in heads else None, -math.inf
        for row in rows:
            where = f"{path}, line {rows.line_num}"
            at = _number(row, time, where)
            begin_s = at if begin_s is None else begin_s
            if at < last_s or at < begin_s:
                raise SetupError(f"{where}: {time} is {at:g}, before that of the row above or 0: sort the rows by it")
            last_s, value = at, _number(row, heads[_VALUE], where)
            if fault := metric.fault(value):
                raise SetupError(f"{where}: {heads[_VALUE]} is {value:g}, {fault}, as the {metric.name} of these logs")
            yield at - begin_s, value
    if last_s == -math.inf:
        raise SetupError(f"{path} holds no row below its head")


def _number(row: Mapping[str, str], column: str, where: str) -> float:
    text = row[column]
    try:
        value = float(text)
    except (TypeError, ValueError):  # a row that is too short has None
        value = math.nan
    if not abs(value) <= sys.float_info.max:
        raise SetupError(f"{where}: {column} is {(text or '')[:40]!r}, but should be a number")
    return value
