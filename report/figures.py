"""Figures: the metric over time, bars, and computing time by device. Draws on a given figure."""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from algorithms import Entry
from report.bands import Band, band
from report.definitions import mark
from report.marks import draw_marks, place_marks
from report.metrics import IID, NON_IID, STANDALONE, Curve, Event, Mode
from report.statistics import FEWEST_RUNS, Estimate
from report.tables import span
from report.x_axes import SECONDS, XAxis
from summary import natural_order
from trainer.metric import ACCURACY, Metric

_ROW_INCHES = 0.22  # of a legend
_TITLE_LETTERS = 85  # of a line above the axes
_NOTE_LETTERS = 105  # of a line below them, in small print


def draw_curves(
    figure: Figure,
    curves: Mapping[Mode, Curve],
    title: str,
    standalone: float | None,
    events: Mapping[Mode, Sequence[Event]] | None = None,
    x_axis: XAxis = SECONDS,
    note: str = "",
    metric: Metric = ACCURACY,
) -> None:
    """The metric over time or another axis, one curve a mode, and a dotted line at that of standalone training.

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
    kinds = draw_marks(axes, place_marks(curves, events or {}), size)
    _finish_curves(figure, axes, title, label, standalone, kinds, note, metric)


def draw_curves_of_runs(
    figure: Figure,
    runs: Mapping[Mode, Sequence[Curve]],
    title: str,
    standalone: float | None,
    x_axis: XAxis = SECONDS,
    note: str = "",
    metric: Metric = ACCURACY,
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
            axes.plot([at / size for at in positions], values, drawstyle="steps-post", linewidth=0.9, **look)
    _finish_curves(figure, axes, f"{title}: {_runs_text(runs)}", label, standalone, [], note, metric)


def draw_band(axes: Axes, its: Band, size: float, look: Mapping[str, Any]) -> None:
    """The interval as an area and the median as a line, both step functions."""
    axes.fill_between(its.at / size, its.low, its.high, step="post", alpha=0.2, linewidth=0, color=look["color"])
    axes.plot(its.at / size, its.median, drawstyle="steps-post", **look)


def _runs_text(runs: Mapping[Mode, Sequence[Curve]]) -> str:
    numbers = [len(curves) for curves in runs.values()]
    enough = [number for number in numbers if number >= FEWEST_RUNS]
    single = "single runs" + (f" where there are fewer than {FEWEST_RUNS}" if enough else "")
    parts = [f"median of {span(enough)} runs, with its interval"] if enough else []
    return "; ".join(parts + [single] * (len(enough) < len(numbers)))


def curve_look(entry: Entry, points: int, number: int, of: int) -> dict[str, Any]:
    """Arguments of Axes.plot for curve `number` of `of`; dense markers would hide the line's dashes."""
    look, every = entry.look, max(1, points // 12)
    return {
        "color": look.colour,
        "linestyle": look.line,
        "marker": look.marker,
        "markersize": 5,
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
) -> None:
    """The line of standalone training, labels, a note, and legends of the curves and of the marks on them."""
    if standalone is not None:
        look, name = STANDALONE.look, STANDALONE.title
        number = f"{standalone:.3f}" if metric.is_accuracy else metric.text(standalone)
        axes.axhline(standalone, color=look.colour, linestyle=look.line, label=f"{name} ({number})")
    axes.set_title(textwrap.fill(title, _TITLE_LETTERS), loc="left", fontsize="medium")
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    axes.set_ylabel(f"test {metric.name}")
    rows = legend_of_curves(figure, axes)
    if kinds:
        at_most = 5 if sum(len(str(kind.get_label())) for kind in kinds) < 60 else 3
        room = {"columnspacing": 1.5, "handlelength": 1.5, "markerscale": 0.7}
        # The note is its title: the layout of a legend below the axes ignores all other texts there.
        text = {"title": textwrap.fill(note, _NOTE_LETTERS), "title_fontsize": "small"} if note else {}
        rows += _legend(figure, kinds, at_most, loc="outside lower center", **room, **text)
    figure.set_size_inches(7.5, 4.4 + _ROW_INCHES * rows)
    note_below(figure, "" if kinds else note)


def legend_of_curves(figure: Figure, axes: Axes) -> int:
    """Adds a legend whose handles show a whole pattern of dashes; returns its number of rows."""
    handles = axes.get_legend_handles_labels()[0]
    at_most = 4 if max(len(str(handle.get_label())) for handle in handles) < 20 else 3
    return _legend(figure, handles, at_most, loc="outside upper center", columnspacing=1.5, handlelength=3.5)


def _legend(figure: Figure, handles: Sequence[Any], at_most: int, **look: Any) -> int:
    """Adds a legend of at most `at_most` columns, with rows of about equal length; returns its number of rows."""
    rows = -(-len(handles) // at_most)
    figure.legend(handles=handles, ncols=-(-len(handles) // rows), **look)
    return rows


def draw_bars(
    figure: Figure,
    values: Mapping[Mode, float | Estimate],
    title: str,
    label: str,
    marked: Collection[Mode] = (),
    note: str = "",
    doubts: str = "",
) -> None:
    """One bar a mode; those of an algorithm on both splits are side by side.

    A median over runs has its interval as an error bar. The numbers of the `marked` modes follow the published
    definition, which `note` explains below the axes. `doubts` are shown there too.
    """
    algorithms = list(dict.fromkeys(mode.algorithm for mode in values))
    figure.set_size_inches(1.8 + 1.2 * len(algorithms), 4.0)
    axes = figure.add_subplot()
    splits = _splits(values)
    width = 0.8 / len(splits)
    for mode, value in values.items():
        x = algorithms.index(mode.algorithm) + (splits.index(mode.split) - (len(splits) - 1) / 2) * width
        hatch = _SPLIT_HATCHES[mode.split] if len(splits) > 1 else ""
        look: dict[str, Any] = {"color": mode.algorithm.look.colour, "hatch": hatch, "edgecolor": "white"}
        if isinstance(value, Estimate):
            value, low, high = value
            look |= {"yerr": [[max(0.0, value - low)], [max(0.0, high - value)]], "capsize": 3}
        bar = axes.bar(x, value, 0.92 * width, **look)
        axes.bar_label(bar, labels=[mark(_short_number(value), mode in marked)], padding=2)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xticks(range(len(algorithms)), [textwrap.fill(algorithm.title, 12) for algorithm in algorithms])
    axes.set_xlim(-0.6, len(algorithms) - 0.4)
    axes.margins(y=0.1)  # room for the numbers
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(label)
    if len(splits) > 1:
        keys = [
            Patch(facecolor="grey", edgecolor="white", hatch=_SPLIT_HATCHES[split], label=split) for split in splits
        ]
        figure.legend(handles=keys, loc="outside upper center", ncols=len(keys))
    note_below(figure, note if marked else "", doubts)


def note_below(figure: Figure, *texts: str) -> None:
    """Adds the texts below the axes in small print."""
    if any(texts):
        letters = int(14 * figure.get_figwidth())  # of a line
        lines = [textwrap.fill(text, letters) for text in texts if text]
        figure.supxlabel("\n".join(lines), fontsize="small")


_SPLIT_HATCHES = {IID: "", NON_IID: "///"}


def _splits(modes: Collection[Mode]) -> list[str]:
    return list(dict.fromkeys(mode.split for mode in modes))


def _short_number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def draw_computing_ratio(
    figure: Figure,
    runs: Mapping[Mode, Mapping[tuple[str, str], float]],
    title: str,
    marked: Collection[Mode] = (),
    note: str = "",
    doubts: str = "",
) -> None:
    """Computing time ratio: axes for each split, with a group of bars for each device, a bar for each mode.

    `marked`, `note` and `doubts` as in draw_bars; the mark is in the legend.
    """
    splits = _splits(runs)
    keys = sorted({key for ratios in runs.values() for key in ratios}, key=lambda key: [*map(natural_order, key)])
    labels = device_labels(keys)
    bars = max(sum(mode.split == split for mode in runs) for split in splits)
    figure.set_size_inches(min(30.0, max(6.4, 1.2 + 0.16 * len(keys) * (bars + 1))), 0.8 + 2.9 * len(splits))
    rows = figure.subplots(len(splits), 1, sharex=True, squeeze=False)[:, 0]
    handles = {}
    for axes, split in zip(rows, splits, strict=True):
        modes = [mode for mode in runs if mode.split == split]
        width = 0.8 / len(modes)
        for number, mode in enumerate(modes):
            look = mode.algorithm.look
            name = mark(mode.algorithm.title, mode in marked)
            handles[name] = axes.bar(
                [keys.index(key) + (number - (len(modes) - 1) / 2) * width for key in runs[mode]],
                list(runs[mode].values()),
                width,
                color=look.colour,
                hatch=look.hatch,
                edgecolor="white",
                linewidth=0.5,
                label=name,
            )
        axes.set_title(f"{title}, {split}", loc="left", fontsize="medium")
        axes.set_ylabel("computing time ratio")
        axes.set_ylim(0, 1)
        axes.grid(axis="x", visible=False)
    slanted = len(keys) * max(map(len, labels)) > 60
    rows[-1].set_xticks(range(len(keys)), labels)
    if slanted:
        rows[-1].tick_params(axis="x", rotation=45)
        for text in rows[-1].get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")
    rows[-1].set_xlim(-0.6, len(keys) - 0.4)
    _legend(figure, list(handles.values()), 5, loc="outside upper center")
    note_below(figure, note if marked else "", doubts)


def device_labels(keys: Sequence[tuple[str, str]]) -> list[str]:
    """`host/device`; without the host if there is one alone, and with its domain only if hosts differ in it."""
    hosts = dict.fromkeys(host for host, _ in keys)
    if len(hosts) == 1:
        return [device for _, device in keys]
    short = {host: host.split(".")[0] for host in hosts}
    if len(set(short.values())) < len(hosts) or any(name.isdigit() for name in short.values()):
        short = {host: host for host in hosts}  # IP addresses, or the same name in two domains
    return [f"{short[host]}/{device}" for host, device in keys]
