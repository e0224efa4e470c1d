"""Figures of the metric over time or another axis. Draws on a given figure, in its width."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from algorithms import Entry
from report.bands import Band, band
from report.marks import draw_marks, place_marks
from report.metrics import STANDALONE, Curve, Event, Mode
from report.statistics import FEWEST_RUNS
from report.style import SMALL, TEXT, fill, height_of, legend, note_below
from report.tables import span, target_text
from report.x_axes import SECONDS, XAxis
from trainer.metric import ACCURACY, Metric

_TARGET_LOOK: dict[str, Any] = {"color": "#444444", "linestyle": (0, (5, 4)), "linewidth": 0.8}  # thinner than a curve


def draw_curves(
    figure: Figure,
    curves: Mapping[Mode, Curve],
    title: str,
    standalone: float | None,
    events: Mapping[Mode, Sequence[Event]] | None = None,
    x_axis: XAxis = SECONDS,
    note: str = "",
    metric: Metric = ACCURACY,
    target: float | None = None,
) -> None:
    """The metric over time or another axis, one curve a mode, a dotted line at that of standalone training, and a
    dashed one at the target.

    `events` are marked on the curve of their mode and explained below the axes, as is `note`. Positions are in the
    axis's smallest unit, such as seconds.
    """
    axes = figure.add_subplot()
    label, size = x_axis.unit(max(curve[-1][0] for curve in curves.values()))
    for number, (mode, curve) in enumerate(curves.items()):
        axes.plot(
            [at / size for at, _ in curve],
            [value for _, value in curve],
            **curve_look(mode.algorithm, len(curve), number, len(curves)),
        )
    _end_with_curves(axes)
    kinds = draw_marks(axes, place_marks(curves, events or {}), size)
    _finish_curves(figure, axes, title, label, standalone, kinds, note, metric, target)


def draw_curves_of_runs(
    figure: Figure,
    runs: Mapping[Mode, Sequence[Curve]],
    title: str,
    standalone: float | None,
    x_axis: XAxis = SECONDS,
    note: str = "",
    metric: Metric = ACCURACY,
    target: float | None = None,
) -> None:
    """draw_curves for several runs a mode: their median in its band, or each run's curve where they are too few."""
    axes = figure.add_subplot()
    label, size = x_axis.unit(max(curve[-1][0] for curves in runs.values() for curve in curves))
    for number, (mode, curves) in enumerate(runs.items()):
        its = band(curves) if len(curves) >= FEWEST_RUNS else None
        if its is not None:
            look = curve_look(mode.algorithm, len(its.at), number, len(runs))
            draw_band(axes, its, size, look)
            continue
        for place, curve in enumerate(curves):
            look = curve_look(mode.algorithm, len(curve), number, len(runs))
            look["label"] = look["label"] if place == 0 else "_"  # one line of the legend for all
            positions, values = zip(*curve, strict=True)
            axes.plot([at / size for at in positions], values, drawstyle="steps-post", linewidth=0.7, **look)
    _end_with_curves(axes)
    _finish_curves(figure, axes, f"{title}: {_runs_text(runs)}", label, standalone, [], note, metric, target)


def draw_band(axes: Axes, its: Band, size: float, look: Mapping[str, Any]) -> None:
    """The interval as an area and the median as a line, both step functions."""
    axes.fill_between(its.at / size, its.low, its.high, step="post", alpha=0.2, linewidth=0, color=look["color"])
    axes.plot(its.at / size, its.median, drawstyle="steps-post", **look)


def _end_with_curves(axes: Axes) -> None:
    """Events and other lines leave the axis as it is."""
    axes.set_xlim(0, axes.dataLim.x1 or 1)
    for line in axes.lines:
        line.set_clip_on(False)  # their last markers


def _runs_text(runs: Mapping[Mode, Sequence[Curve]]) -> str:
    numbers = [len(curves) for curves in runs.values()]
    enough = [number for number in numbers if number >= FEWEST_RUNS]
    single = "single runs" + (f" where there are fewer than {FEWEST_RUNS}" if enough else "")
    parts = [f"median of {span(enough)} runs, with its interval"] if enough else []
    return "; ".join(parts + [single] * (len(enough) < len(numbers)))


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


def _finish_curves(
    figure: Figure,
    axes: Axes,
    title: str,
    label: str,
    standalone: float | None,
    kinds: Sequence[Line2D],
    note: str,
    metric: Metric,
    target: float | None,
) -> None:
    """The lines of standalone training and the target, labels, a note, legends of the curves and the marks on them."""
    if standalone is not None:
        look, name = STANDALONE.look, STANDALONE.title
        number = f"{standalone:.3f}" if metric.is_accuracy else metric.text(standalone)
        axes.axhline(standalone, color=look.colour, linestyle=look.line, label=f"{name} ({number})")
    if target is not None:
        axes.axhline(target, zorder=1, label=f"target ({target_text(target, metric)})", **_TARGET_LOOK)
    title = fill(title, figure, TEXT, less=0.6)
    axes.set_title(title, loc="left")
    axes.set_xlabel(label)
    axes.set_ylabel(f"test {metric.name}")
    inches = 1.2 + 0.25 * figure.get_figwidth() + height_of(title, TEXT) + legend_of_curves(figure, axes)
    if kinds:
        # The note is its title: the layout of a legend below the axes ignores all other texts there.
        text = {"title": fill(note, figure, SMALL)} if note else {}
        inches += legend(
            figure, kinds, loc="outside lower center", columnspacing=1.5, handlelength=1.5, markerscale=0.7, **text
        )
    figure.set_figheight(inches + note_below(figure, "" if kinds else note))


def legend_of_curves(figure: Figure, axes: Axes) -> float:
    """Adds a legend whose handles show a whole pattern of dashes; returns its inches."""
    handles = axes.get_legend_handles_labels()[0]
    return legend(figure, handles, loc="outside upper center", columnspacing=1.5, handlelength=3.5)
