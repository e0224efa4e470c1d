"""Curves from CSV files, as TensorBoard exports them and Sync-Switch's measurements are published, to be drawn beside
ours."""

import argparse
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from algorithms import ENTRIES, PALETTE
from esync.metric import Metric
from flag_values import finite
from report.metrics import IID, Curve, Mode
from trainer import spreadsheet
from utils import SetupError

_NAME_LETTERS = 60
_TIME, _WALL_TIME, _VALUE = "time", "wall_time", "value"
_COLUMNS = "Value, and Time (s) or Wall time (s since 1970; that of the first row becomes 0)"


def beside(text: str) -> tuple[str, Path]:
    """Parses --beside NAME=FILE.csv."""
    name, equals, path = text.partition("=")
    name = name.strip()
    if not equals or not path or not name.isprintable() or not 0 < len(name) <= _NAME_LETTERS or name[0] == "_":
        wanted = f"NAME=FILE.csv with a name of up to {_NAME_LETTERS} printable characters for the legend"
        raise argparse.ArgumentTypeError(f"{text!r} is no {wanted}, the first of them no _")
    return name, Path(path)


def read_beside(files: Sequence[tuple[str, Path]], modes: Collection[Mode], metric: Metric) -> dict[Mode, Curve]:
    """The curves of the files, in looks that those of `modes` do not have. Raises SetupError if a name is taken, or a
    file has no curve of this metric."""
    taken = {mode.algorithm.title for mode in modes}
    used = {mode.algorithm.look for mode in modes}
    looks = (look for look in (*PALETTE, *(e.look for e in ENTRIES.values() if e.look.marker)) if look not in used)
    found: dict[Mode, Curve] = {}
    for (name, path), look in zip(files, looks, strict=False):
        if name in taken:
            raise SetupError(f"--beside {name}={path}: the figure has another curve of that name: give another name")
        taken.add(name)
        found[Mode(replace(ENTRIES["sync-switch"], name=name, title=name, look=look), IID)] = read(path, metric)
    if len(found) < len(files):
        raise SetupError(f"--beside {files[len(found)][0]}: there are no looks for so many curves: leave some out")
    return found


def read(path: Path, metric: Metric) -> Curve:
    """The values of the metric over seconds. Raises SetupError if it cannot be read, lacks a column, or a row has no
    number there."""
    head, *rows = spreadsheet.rows(path, "file") or [spreadsheet.Row(f"file {path}", 1, "", [])]
    heads = dict(zip(head.columns(), head.cells, strict=True))
    time = next((name for name in (_TIME, _WALL_TIME) if name in heads), "")
    if not time or _VALUE not in heads:
        raise SetupError(f"{head.file} begins with {head.text[:80]!r}; its columns should be {_COLUMNS}")
    if not rows:
        raise SetupError(f"{head.file} holds no row below its head")
    points: list[tuple[float, float]] = []
    for row in rows:
        cells, numbers = row.values([*heads]), []
        for name in (time, _VALUE):
            try:
                numbers.append(finite(cells[name]))
            except (ValueError, argparse.ArgumentTypeError):
                text = f"{row.where}: {heads[name]} is {cells[name][:40]!r}, but should be a number"
                raise SetupError(text) from None
        at, value = numbers
        if at < (points[-1][0] if points else 0):
            text = f"{row.where}: {heads[time]} is {at:g}, before that of the row above or 0"
            raise SetupError(f"{text}: sort the rows by it")
        if fault := metric.fault(value):
            raise SetupError(f"{row.where}: {heads[_VALUE]} is {value:g}, {fault}, as the {metric.name} of these logs")
        points.append((at, value))
    begin_s = 0.0 if time == _TIME else points[0][0]
    return [(at - begin_s, value) for at, value in points]
