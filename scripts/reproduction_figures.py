"""The five figures of the preprint's cluster, drawn from the runs of scripts/reproduce.sh."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

import draw as draw_program
from algorithms import ENTRIES
from report.comparison import IID
from report.figures import draw_accuracy, draw_bars, draw_computing_ratio
from report.metrics import IID as IID_TITLE
from report.metrics import NON_IID, STANDALONE, Mode
from report.reproduction import CLUSTER, NUM_GPUS, TRAINING, Row

DRAWN = {  # file name -> what it shows
    "accuracy-iid": "test accuracy over time, i.i.d.",
    "accuracy-non-iid": "test accuracy over time, by class",
    "throughput": "data throughput",
    "traffic": "traffic load",
    "computing-time": "computing time ratio",
}


def drawn(rows: Sequence[Row]) -> dict[str, str]:
    """The figures that there are runs for."""
    return {name: words for name, words in DRAWN.items() if any(figure[1] for figure in _figures(rows, name))}


def draw(rows: Sequence[Row], folder: Path, say: Callable[[str], None]) -> None:
    """Draws each that has data as PNG and PDF into the folder, and says where they are."""
    logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of each font in a PDF
    with mpl.rc_context(draw_program.STYLE):
        draw_program.save_figures(_figures(rows), folder, Figure, say)


def _figures(rows: Sequence[Row], only: str = "") -> list[draw_program.NamedFigure]:
    found: list[draw_program.NamedFigure] = []
    for name, split in (("accuracy-iid", IID_TITLE), ("accuracy-non-iid", NON_IID)):
        its = {mode: row for mode, row in _first(rows, TRAINING).items() if mode.split == split and row.curve}
        curves = {mode: row.curve for mode, row in its.items()}
        title = f"{_network(its)} on the preprint's cluster, {split}"
        found.append((name, curves, partial(draw_accuracy, title=title, standalone=_standalone(rows))))
    its = _first(rows, CLUSTER)
    title = "the preprint's cluster, ResNet-18's 44.7 MB"
    bars: tuple[tuple[str, str, Mapping[Mode, Any]], ...] = (
        ("throughput", "data throughput (samples/s)", {mode: row.samples_per_s for mode, row in its.items()}),
        ("traffic", "traffic load, one way (MB/s)", {mode: row.traffic for mode, row in its.items()}),
    )
    found += [(name, data, partial(draw_bars, title=title, label=label)) for name, label, data in bars]
    ratios = {
        mode: {("preprint", _device(rank)): ratio for rank, ratio in enumerate(row.computing)}
        for mode, row in its.items()
    }
    found.append(("computing-time", ratios, partial(draw_computing_ratio, title=title)))
    return [each for each in found if only in ("", each[0])]


def _first(rows: Sequence[Row], part: str) -> dict[Mode, Row]:
    """Of each algorithm and split the first run: of ESync's rules the published one."""
    found: dict[Mode, Row] = {}
    for row in rows:
        if row.part == part and row.entry != "alone" and not row.failed:
            found.setdefault(Mode(ENTRIES[row.entry], IID_TITLE if row.split == IID else NON_IID), row)
    return found


def _device(rank: int) -> str:
    """What the worker was on the preprint's cluster."""
    return f"gpu{rank}" if rank < NUM_GPUS else f"cpu{rank - NUM_GPUS}"


def _network(rows: Mapping[Mode, Row]) -> str:
    return next((row.network for row in rows.values()), "")


def _standalone(rows: Sequence[Row]) -> float | None:
    """The last accuracy of one machine alone."""
    return next((row.last for row in rows if row.part == TRAINING and row.entry in ("alone", STANDALONE.name)), None)
