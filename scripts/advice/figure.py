"""The curves of what a search has tried, with bands where several seeds ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from algorithms import ENTRIES
from esync.metric import Metric
from report import style
from report.figure_set import save_figures
from report.figures import band
from scripts.advice.answer import Row
from scripts.advice.search import Found

LINES = ("-", "--", ":", "-.")  # of the numbers of machines of a family


def save(path: Path, found: Found, rows: Sequence[Row], metric: Metric, say: Callable[[str], None]) -> None:
    """Draws the rows that were tried, as PNG and PDF beside each other. Raises SetupError if a file cannot be
    written."""
    with style.style():
        save_figures([(path.stem, rows, lambda figure, data: _draw(figure, found, data, metric))], path.parent, say)


def _draw(figure: Figure, found: Found, rows: Sequence[Row], metric: Metric) -> None:
    axes = figure.add_subplot()
    seen: dict[str, int] = {}
    for row in rows:
        entry, curves = row.candidate.family.entry, found.curves.get(row.candidate, ())
        its = band(curves) if curves else None
        if its is None:
            continue
        line = LINES[seen.get(entry, 0) % len(LINES)]
        seen[entry] = seen.get(entry, 0) + 1
        colour = ENTRIES[entry].look.colour
        (drawn,) = axes.plot(its.at, its.median, line, marker=".", color=colour, label=row.candidate.name)
        axes.fill_between(its.at, its.low, its.high, color=drawn.get_color(), alpha=0.2, linewidth=0)
    axes.axhline(found.target, color="grey", linewidth=0.8, label="target on these samples")
    axes.set_xlabel("seconds")
    axes.set_ylabel(f"{metric.name} on held-out samples, mean of three")
    axes.legend()
