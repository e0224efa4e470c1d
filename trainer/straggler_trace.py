"""Emulated transient stragglers: a CSV file says when this device is slower, in what, and by how much.

    start_s,duration_s,extra_s,kind
    20,15,0.5,compute
    40,60,0.01,network

From 20 s to 35 s after training began every local step takes 0.5 s more. From 40 s on, for 60 s, each push of gradients
or of an update, and each pull of a model, takes 10 ms more. Without the last column all entries are of kind compute.
With the third kind, sample, a step takes `extra_s` more for each sample of its batch. Overlapping entries of a kind add
up.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from trainer import spreadsheet
from trainer.emulation import COMPUTE, NETWORK, SAMPLE, Slowdown
from utils import SetupError

COLUMNS = ("start_s", "duration_s", "extra_s")
KIND = "kind"  # the fourth column, which may be missing

KINDS = (COMPUTE, NETWORK, SAMPLE)


def read(path: Path) -> tuple[Slowdown, ...]:
    """Reads a trace. Raises SetupError if the file is missing or not of this form. The message names file and line."""
    rows = spreadsheet.rows(path, "straggler trace")
    columns = rows[0].columns() if rows else []
    if tuple(filter(None, columns)) not in (COLUMNS, (*COLUMNS, KIND)):
        raise SetupError(
            f"straggler trace {path}: the first line must be {','.join(COLUMNS)}, and may have ,{KIND} after it"
        )
    return tuple(_slowdown(row, row.values(columns)) for row in rows[1:])


def write(path: Path, entries: Iterable[Slowdown]) -> Path:
    """Writes a trace; returns its path."""
    lines = (f"{each.start_s},{each.duration_s},{each.extra_s},{each.kind}" for each in entries)
    path.write_text("\n".join([",".join((*COLUMNS, KIND)), *lines, ""]))
    return path


def beside(folder: Path, name: str, where: str) -> Path:
    """The path of a trace that another file names relative to its own `folder`. Checks that the trace can be read.
    `where` is file and line, for the message. Raises SetupError as `read`."""
    path = (folder / name).resolve()
    try:
        read(path)
    except SetupError as error:
        raise SetupError(f"{where}: {error}") from None
    return path


def _slowdown(row: spreadsheet.Row, cells: Mapping[str, str]) -> Slowdown:
    kind = cells.get(KIND, COMPUTE)
    try:
        start_s, duration_s, extra_s = (float(cells[name]) for name in COLUMNS)
    except ValueError:
        start_s = duration_s = extra_s = math.nan
    if not all(0 <= each < math.inf for each in (start_s, duration_s, extra_s)) or kind not in KINDS:
        last = f", and for {KIND} {', '.join(KINDS[:-1])} or {KINDS[-1]}" if KIND in cells else ""
        raise SetupError(f"{row.where}: {row.text!r}; give {', '.join(COLUMNS)}, each 0 or more{last}")
    return Slowdown(start_s, duration_s, extra_s, kind)
