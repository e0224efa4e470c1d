"""Figures of the metric over time or another axis. Draws on a given figure, in its width.

Of several runs of the same job it draws the median and its interval at each point; of one it marks events, such as a
switch or a resumption. A value holds from its evaluation to the next, so a curve is a step function without
interpolation. A band runs from the latest first evaluation to the earliest last one: outside not all runs have a known
value.
"""

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from algorithms import EVENTS, Entry
from esync.metric import ACCURACY, Metric
from report import statistics
from report.metrics import STANDALONE, Curve, Event, Mode
from report.runs import SECONDS, XAxis
from report.statistics import FEWEST_RUNS
from report.style import SMALL, TEXT, fill, height_of, legend, note_below
from report.tables import span, target_text

MAX_POINTS = 1000  # of a band; more cannot be seen
_TARGET_LOOK: dict[str, Any] = {"color": "#444444", "linestyle": (0, (5, 4)), "linewidth": 0.8}  # thinner than a curve
# Marks of one kind on one curve; more would hide it.
MAX_TICKS = 30
MAX_HOLLOW = 12
_LEGEND_COLOUR = "#444444"  # of no mode: marks have the colour of their curve


def draw_curves(
    figure: Figure,
    curves: Mapping[Mode, Sequence[Curve]],
    title: str,
    standalone: float | None,
    events: Mapping[Mode, Sequence[Event]] = MappingProxyType({}),
    x_axis: XAxis = SECONDS,
    note: str = "",
    metric: Metric = ACCURACY,
    target: float | None = None,
) -> None:
    """The metric over time or another axis, a dotted line at that of standalone training, and a dashed one at the
    target. Of one run each mode has its curve; of several their median in its band, or each run's curve where they are
    too few.

    `events` of one run are marked on the curve of their mode and explained below the axes, as is `note`. Positions are
    in the axis's smallest unit, such as seconds.
    """
    axes, is_one = figure.add_subplot(), all(len(its) == 1 for its in curves.values())
    label, size = x_axis.unit(max(curve[-1][0] for its in curves.values() for curve in its))
    for number, (mode, its) in enumerate(curves.items()):
        middle = band(its) if len(its) >= FEWEST_RUNS else None
        if middle is not None:
            draw_band(axes, middle, size, curve_look(mode.algorithm, len(middle.at), number, len(curves)))
            continue
        for place, curve in enumerate(its):
            look = curve_look(mode.algorithm, len(curve), number, len(curves))
            if not is_one:
                look |= {"drawstyle": "steps-post", "linewidth": 0.7}
            if place:
                look["label"] = "_"  # one line of the legend for all
            axes.plot([at / size for at, _ in curve], [value for _, value in curve], **look)
    axes.set_xlim(0, axes.dataLim.x1 or 1)  # events and other lines leave the axis as it is
    for line in axes.lines:
        line.set_clip_on(False)  # their last markers
    kinds = draw_marks(axes, place_marks({mode: its[0] for mode, its in curves.items()}, events), size)
    if standalone is not None:
        alone, text = STANDALONE.look, f"{standalone:.3f}" if metric.is_accuracy else metric.text(standalone)
        axes.axhline(standalone, color=alone.colour, linestyle=alone.line, label=f"{STANDALONE.title} ({text})")
    if target is not None:
        axes.axhline(target, zorder=1, label=f"target ({target_text(target, metric)})", **_TARGET_LOOK)
    title = fill(title if is_one else f"{title}: {_runs_text([*map(len, curves.values())])}", figure, TEXT, less=0.6)
    axes.set_title(title, loc="left")
    axes.set_xlabel(label)
    axes.set_ylabel(metric.name if metric.name.startswith("test") else f"test {metric.name}")
    inches = 1.2 + 0.25 * figure.get_figwidth() + height_of(title, TEXT) + legend_of_curves(figure, axes)
    if kinds:
        # The note is its title: the layout of a legend below the axes ignores all other texts there.
        below = {"title": fill(note, figure, SMALL)} if note else {}
        inches += legend(
            figure, kinds, loc="outside lower center", columnspacing=1.5, handlelength=1.5, markerscale=0.7, **below
        )
    figure.set_figheight(inches + note_below(figure, "" if kinds else note))


def _runs_text(numbers: Sequence[int]) -> str:
    enough = [number for number in numbers if number >= FEWEST_RUNS]
    single = "single runs" + (f" where there are fewer than {FEWEST_RUNS}" if enough else "")
    parts = [f"median of {span(enough)} runs, with its interval"] if enough else []
    return "; ".join(parts + [single] * (len(enough) < len(numbers)))


class Band(NamedTuple):
    """Medians of runs and the ends of their intervals, each (points,), at the points where a run was evaluated."""

    at: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(curves: Sequence[Curve]) -> Band | None:
    """The band of several curves; None where no point has a value on all of them. Raises ValueError for no curves, or
    one without evaluations."""
    if not curves or not all(curves):
        raise ValueError("a band needs curves, and each of them an evaluation")
    begin, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if end < begin:
        return None
    grid = np.array(sorted({at for curve in curves for at, _ in curve if begin <= at <= end}))
    if len(grid) > MAX_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, MAX_POINTS).round().astype(int)]
    values = []
    for places, its in (np.array(curve).T for curve in curves):
        values.append(its[np.searchsorted(places, grid, side="right") - 1])  # of the last evaluation until each point
    return Band(grid, *statistics.of_sorted(np.sort(values, axis=0)))


def draw_band(axes: Axes, its: Band, size: float, look: Mapping[str, Any]) -> None:
    """The interval as an area and the median as a line, both step functions."""
    axes.fill_between(its.at / size, its.low, its.high, step="post", alpha=0.2, linewidth=0, color=look["color"])
    axes.plot(its.at / size, its.median, drawstyle="steps-post", **look)


def curve_look(entry: Entry, points: int, number: int, of: int) -> dict[str, Any]:
    """Arguments of Axes.plot for curve `number` of `of`; dense markers would hide the line's dashes."""
    look, every = entry.look, max(1, points // 8)
    return {
        "color": look.colour,
        "linestyle": look.line,
        "marker": look.marker,
        "markevery": (number * every // of, every),
        "label": entry.title,
    }


def legend_of_curves(figure: Figure, axes: Axes) -> float:
    """Adds a legend whose handles show a whole pattern of dashes; returns its inches."""
    handles = axes.get_legend_handles_labels()[0]
    return legend(figure, handles, loc="outside upper center", columnspacing=1.5, handlelength=3.5)


# ---------------------------------------------------------------------------------------------- marks at events


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
    drawn = {mode: curve for mode, curve in curves.items() if curve}
    end = max((curve[-1][0] for curve in drawn.values()), default=0.0)
    for name, kind in EVENTS.items():
        times = {}
        for mode, curve in drawn.items():
            begin = curve[0][0] if kind.is_frequent else 0.0
            its = [event.elapsed_s for event in events.get(mode, []) if event.kind == name]
            times[mode] = [elapsed_s for elapsed_s in its if begin <= elapsed_s <= end]
        every = thinning(max(map(len, times.values()), default=0), MAX_HOLLOW if kind.is_hollow else MAX_TICKS)
        for mode, of_mode in times.items():
            if at := of_mode[::every]:
                moments, values = zip(*curves[mode], strict=True)
                points = list(zip(at, np.interp(at, moments, values).tolist(), strict=True))
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
