"""The five figures of the preprint's cluster, drawn from the runs of scripts/reproduce.sh."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from algorithms import ENTRIES
from experiments.reproduction.published import FINAL_MINUTES
from experiments.reproduction.reproduction import CLUSTER, NUM_GPUS, TRAINING, Row, by_experiment
from report.bars import draw_bars, draw_computing_ratio
from report.figure_set import NamedFigure, save_figures
from report.figures import draw_curves
from report.metrics import IID as IID_TITLE, NON_IID, STANDALONE, Mode
from report.style import style
from scripts.run_lines import IID

DRAWN = {  # titles by file name
    "accuracy-iid": "test accuracy over time, i.i.d.",
    "accuracy-non-iid": "test accuracy over time, by class",
    "throughput": "data throughput",
    "traffic": "traffic load",
    "computing-time": "computing time ratio",
}


def drawn(rows: Sequence[Row]) -> dict[str, str]:
    """The figures that have runs."""
    return {name: DRAWN[name] for name, data, _ in figures(rows) if data}


def draw(rows: Sequence[Row], folder: Path, say: Callable[[str], None]) -> None:
    """Draws each that has data as PNG and PDF into the folder, and prints their paths."""
    with style():
        save_figures(figures(rows), folder, say)


def figures(rows: Sequence[Row]) -> list[NamedFigure]:
    """All figures with their data (empty without runs)."""
    found: list[NamedFigure] = []
    evaluated = _first([row for row in rows if row.curve], TRAINING)
    for name, split in (("accuracy-iid", IID_TITLE), ("accuracy-non-iid", NON_IID)):
        runs = {mode: its for mode, its in evaluated.items() if mode.split == split}
        network = next((its[0].network for its in runs.values()), "")
        curves = {mode: [row.curve for row in its] for mode, its in runs.items()}  # of several seeds: with bands
        title = f"{network} on the preprint's cluster, {split}"
        found.append((name, curves, partial(draw_curves, title=title, standalone=_standalone(rows))))
    its = {mode: runs[0] for mode, runs in _first(rows, CLUSTER).items()}
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
    return found


def _first(rows: Sequence[Row], part: str) -> dict[Mode, list[Row]]:
    """The runs of the first row of the table of each algorithm and split: of ESync's rules the published one."""
    found: dict[Mode, list[Row]] = {}
    for runs in by_experiment(row for row in rows if row.part == part and row.entry != "alone" and not row.failed):
        found.setdefault(Mode(ENTRIES[runs[0].entry], IID_TITLE if runs[0].split == IID else NON_IID), runs)
    return found


def _device(rank: int) -> str:
    return f"gpu{rank}" if rank < NUM_GPUS else f"cpu{rank - NUM_GPUS}"


def _standalone(rows: Sequence[Row]) -> float | None:
    """The mean last accuracy of one machine alone; None where it trained for a shorter time than published."""
    its = [row for row in rows if row.part == TRAINING and row.entry in ("alone", STANDALONE.name)]
    last = [row.last for row in its if row.last is not None and row.seconds >= 60 * (FINAL_MINUTES - 1)]
    return mean(last) if last else None
