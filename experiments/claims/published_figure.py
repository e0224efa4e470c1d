"""The figure of the published numbers against those measured here, by verdict."""

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from experiments.claims.claims import BY_CONSTRUCTION, REPRODUCED, REPRODUCED_WITHIN, VERDICTS, Claims
from experiments.reproduction import published
from report.style import legend, note_below

# Shade and marker tell the verdicts apart in grey.
LOOKS = {
    REPRODUCED: ("black", "o"),
    "direction": ("white", "o"),
    BY_CONSTRUCTION: ("0.75", "s"),
    "contradicted": ("white", "X"),
}
NUMBER = re.compile(r"(\d+(?:\.\d+)?)x?")


class Compared(NamedTuple):
    """A number measured here over the published one, with its interval over the seeds."""

    name: str
    ratio: float
    low: float
    high: float
    verdict: str


def compared(claims: Claims) -> list[Compared]:
    """The published figures that are one number and were measured here, in the order of verdicts, then by ratio."""
    found = []
    for told in (told for claim in claims.claims for told in claim.numbers):
        there = NUMBER.fullmatch(published.figures().get(told.published, ""))
        if there and told.of and not math.isinf(here := _value(told.number.number)):
            ends = (told.number.low, told.number.high) if told.number.interval else (told.number.number,) * 2
            ratios = [each / float(there[1]) for each in (here, *map(_value, ends))]
            found.append(Compared(told.published, ratios[0], ratios[1], ratios[2], told.verdict))
    return sorted(found, key=lambda each: (VERDICTS.index(each.verdict), -each.ratio))


def _value(text: str) -> float:
    return float(text) if NUMBER.fullmatch(text) else math.inf


def draw(figure: Figure, rows: Sequence[Compared]) -> None:
    """A row a figure: what was measured here over what is published, on a logarithmic scale."""
    figure.set_figheight(1.1 + 0.145 * len(rows))
    axes = figure.subplots()
    axes.axvspan(1 - REPRODUCED_WITHIN, 1 + REPRODUCED_WITHIN, color="0.92", linewidth=0)
    axes.axvline(1, color="black", linewidth=0.6)
    for verdict, (shade, marker) in LOOKS.items():
        its = [(place, row) for place, row in enumerate(rows) if row.verdict == verdict]
        axes.errorbar(
            [row.ratio for _, row in its],
            [place for place, _ in its],
            xerr=[[row.ratio - row.low for _, row in its], [min(row.high, 99) - row.ratio for _, row in its]],
            linestyle="",
            marker=marker,
            markersize=4.5 if marker == "X" else 4,
            markerfacecolor=shade,
            markeredgecolor="black",
            markeredgewidth=0.6,
            ecolor="black",
            elinewidth=0.7,
            label=verdict,
        )
    axes.set_xscale("log")
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10], ["0.1", "0.2", "0.5", "1", "2", "5", "10"])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(rows)), [row.name for row in rows], fontsize=6)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)
    axes.set_xlabel("measured here / published")
    legend(figure, axes.get_legend_handles_labels()[0], loc="outside upper center")
    words = "Grey band: within a fifth. Bars: least to greatest seed; without one: one run or equal ones."
    note_below(figure, words, "Contradicted and yet near 1: another order of the algorithms, or none.")
