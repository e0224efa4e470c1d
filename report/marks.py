"""Marks on the curves for events of a run, such as a switch or a resumption."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from algorithms import EVENTS
from report.metrics import Curve, Event, Mode, value_at

# Marks of one kind on one curve; more would hide it.
MAX_TICKS = 30
MAX_HOLLOW = 12
_LEGEND_COLOUR = "#444444"  # of no mode: marks have the colour of their curve


class Marks(NamedTuple):
    """The marks of one kind on one curve."""

    mode: Mode
    kind: str  # of algorithms.EVENTS
    points: Curve  # on the curve: elapsed seconds, value of the metric
    every: int  # every n-th event of this kind has a mark; the same n on all curves of a figure


def place_marks(curves: Mapping[Mode, Curve], events: Mapping[Mode, Sequence[Event]]) -> list[Marks]:
    """Places events on the curves and thins out those of a kind; modes without a curve have no marks.

    Events of a frequent kind have no marks before the first evaluation, where the curve begins; none has one after the
    end of the longest curve, where the axis ends.
    """
    found = []
    end = max((curve[-1][0] for curve in curves.values() if curve), default=0.0)
    for name, kind in EVENTS.items():
        times = {
            mode: [
                event.elapsed_s
                for event in events.get(mode, [])
                if event.kind == name
                and event.elapsed_s <= end
                and (not kind.is_frequent or event.elapsed_s >= curve[0][0])
            ]
            for mode, curve in curves.items()
            if curve
        }
        at_most = MAX_HOLLOW if kind.is_hollow else MAX_TICKS
        every = thinning(max(map(len, times.values()), default=0), at_most)
        for mode, of_mode in times.items():
            points = [(elapsed_s, value_at(curves[mode], elapsed_s)) for elapsed_s in of_mode[::every]]
            if points:
                found.append(Marks(mode, name, points, every))
    return found


def thinning(count: int, at_most: int) -> int:
    """The least n of 1, 2, 5, 10, 20, 50, ... with at most `at_most` marks if every n-th of `count` events has one."""
    round_numbers = (digit * 10**zeros for zeros in itertools.count() for digit in (1, 2, 5))
    return next(every for every in round_numbers if count <= at_most * every)


def draw_marks(axes: Axes, marks: Sequence[Marks], unit_s: float) -> list[Line2D]:
    """Draws the marks of place_marks, each in its curve's colour; returns legend handles, one a kind. A unit of the
    time axis has `unit_s` seconds."""
    for its in sorted(marks, key=lambda its: -len(its.points)):  # the rare ones on top
        axes.plot(
            [elapsed_s / unit_s for elapsed_s, _ in its.points],
            [value for _, value in its.points],
            label=f"_{its.kind}",  # the underscore keeps it out of the legend of the curves
            zorder=3,  # above the curves
            **_look(its.kind, its.mode.algorithm.look.colour),
        )
    handles = []
    for kind, every in {its.kind: its.every for its in marks}.items():
        label = kind if every == 1 else f"{kind} (every {every}{'nd' if every == 2 else 'th'})"
        handles.append(Line2D([], [], label=label, **_look(kind, _LEGEND_COLOUR)))
    return handles


def _look(kind: str, colour: str) -> dict[str, Any]:
    """Arguments of Line2D. A mark is hollow or a tick, since the markers of evaluations are filled."""
    its = EVENTS[kind]
    return {
        "linestyle": "",
        "marker": its.marker,
        "markersize": its.size,
        "markeredgewidth": its.edge,
        "markeredgecolor": colour,
        "markerfacecolor": "white" if its.is_hollow else colour,
    }
