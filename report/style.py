"""The style of all figures, whatever the user's matplotlibrc says, and texts and legends that fit into their width."""

import itertools
import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import matplotlib.style
from matplotlib.artist import Artist
from matplotlib.figure import Figure

COLUMN, PAGE = "column", "page"
WIDTHS = {COLUMN: 3.3, PAGE: 7.0}  # inches: of a column of a paper with two, and of both
POINTS = 72.0  # of an inch
TEXT, SMALL = 8, 7  # points
_HANDLE = 0.6  # inches: of the line before a name in a legend, and the space around
_LETTER = 0.6  # mean width of a letter over the size of the text, with some room

STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.labelsize": TEXT,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": TEXT,
    "figure.constrained_layout.use": True,
    "figure.labelsize": SMALL,
    "font.size": TEXT,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.title_fontsize": SMALL,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "pdf.fonttype": 42,  # text stays text
    "savefig.dpi": 300,
    "text.parse_math": False,  # names may have dollar signs
    "xtick.labelsize": SMALL,
    "ytick.labelsize": SMALL,
}


def style(width: str = PAGE) -> AbstractContextManager[None]:
    """The context in which figures are made, drawn and saved: new ones have this width of WIDTHS."""
    inches = WIDTHS[width]
    return matplotlib.style.context(["default", {**STYLE, "figure.figsize": (inches, 0.6 * inches)}])


def fill(text: str, figure: Figure, size: float, less: float = 0.0) -> str:
    """The text in lines that fit into the figure's width less so many inches."""
    return textwrap.fill(text, max(12, int((figure.get_figwidth() - less) * POINTS / (_LETTER * size))))


def height_of(text: str, size: float) -> float:
    """Inches of its lines."""
    return 1.3 * size / POINTS * len(text.splitlines())


def legend(figure: Figure, handles: Sequence[Artist], **look: Any) -> float:
    """Adds a legend with as few rows as fit into the figure's width, all about equally long; returns its inches."""
    for rows in itertools.count(1):
        columns = -(-len(handles) // rows)
        less = _HANDLE + 0.2 * max(0, rows - len(handles))  # letters may be wide
        labels = [fill(str(handle.get_label()), figure, SMALL, less) for handle in handles]
        found = figure.legend(handles=handles, labels=labels, ncols=columns, **look)
        box = found.get_window_extent()
        if box.width <= figure.bbox.width:
            return box.height / figure.dpi
        found.remove()
    raise AssertionError("one column of short lines always does")


def note_below(figure: Figure, *texts: str) -> float:
    """Adds the texts below the axes in small print; returns their inches."""
    note = "\n".join(fill(text, figure, SMALL) for text in texts if text)
    if note:
        figure.supxlabel(note)
    return height_of(note, SMALL)
