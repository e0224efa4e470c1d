"""Figures with a row a mode: bars of one number, and the computing time ratios of its devices."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from report.definitions import mark
from report.metrics import IID, NON_IID, Mode
from report.statistics import Estimate
from report.style import POINTS, SMALL, TEXT, fill, height_of, legend, note_below
from summary import natural_order

_HATCHES = {IID: "", NON_IID: "///"}
_BAR_POINTS = 5.0  # of a device: thinner ones hide their hatches
_LABEL_POINTS = 9.0  # of a slanted label
_ROW_INCHES = 0.16  # of a bar or a box
Ratios = Mapping[tuple[str, str], float]  # by host and device


def draw_bars(
    figure: Figure,
    values: Mapping[Mode, float | Estimate],
    title: str,
    label: str,
    marked: Collection[Mode] = (),
    note: str = "",
    doubts: str = "",
) -> None:
    """One bar a mode, from the left to the right; those of an algorithm on both splits are one above the other.

    A median over runs has its interval as an error bar. The numbers of the `marked` modes follow the published
    definition, which `note` explains below the axes. `doubts` are shown there too.
    """
    algorithms = [*dict.fromkeys(mode.algorithm for mode in values)]
    axes = figure.add_subplot()
    splits = [*dict.fromkeys(mode.split for mode in values)]
    width = 0.8 / len(splits)
    for mode, value in values.items():
        row = algorithms.index(mode.algorithm) + (splits.index(mode.split) - (len(splits) - 1) / 2) * width
        hatch = _HATCHES[mode.split] if len(splits) > 1 else ""
        look: dict[str, Any] = {"color": mode.algorithm.look.colour, "hatch": hatch, "edgecolor": "white"}
        if isinstance(value, Estimate):
            value, low, high = value
            look |= {"xerr": [[max(0.0, value - low)], [max(0.0, high - value)]], "capsize": 2}
        bar = axes.barh(row, value, 0.92 * width, **look)
        text = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
        axes.bar_label(bar, labels=[mark(text, mode in marked)], padding=2, fontsize=SMALL)
    axes.grid(visible=False)  # it would cross the numbers
    axes.margins(x=0.8 / figure.get_figwidth())  # room for them
    axes.set_xlim(left=0)
    axes.set_xlabel(label)
    inches = _name_rows(figure, axes, [algorithm.title for algorithm in algorithms], len(splits))
    inches += _title(figure, axes, title)
    if len(splits) > 1:
        keys = [Patch(facecolor="grey", edgecolor="white", hatch=_HATCHES[split], label=split) for split in splits]
        inches += legend(figure, keys, loc="outside upper center")
    figure.set_figheight(0.5 + inches + note_below(figure, note if marked else "", doubts))


def _name_rows(figure: Figure, axes: Axes, names: Sequence[str], bars: int = 1) -> float:
    """Names the rows, the first at the top; returns the inches that they need with so many bars each."""
    labels = [textwrap.fill(name, int(5 * figure.get_figwidth())) for name in names]
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    row = max(_ROW_INCHES * bars, *(height_of(label, SMALL) for label in labels))
    return len(labels) * row * 1.2


def _title(figure: Figure, axes: Axes, title: str) -> float:
    """Adds a title; returns its inches."""
    text = fill(title, figure, TEXT, less=1.4)
    axes.set_title(text, loc="left")
    return height_of(text, TEXT)


def draw_computing_ratio(
    figure: Figure,
    runs: Mapping[Mode, Ratios],
    title: str,
    marked: Collection[Mode] = (),
    note: str = "",
    doubts: str = "",
) -> None:
    """Computing time ratio: axes for each split, with a group of bars for each device, a bar for each mode; of more
    devices than have room, the distribution over them, a row for each mode.

    `marked`, `note` and `doubts` as in draw_bars; the mark is in the legend, or at the row.
    """
    splits = [*dict.fromkeys(mode.split for mode in runs)]
    keys = sorted({key for ratios in runs.values() for key in ratios}, key=lambda key: [*map(natural_order, key)])
    bars = max(sum(mode.split == split for mode in runs) for split in splits)
    group = max(_BAR_POINTS * (bars + 1), _LABEL_POINTS)
    has_room = len(keys) * group <= (figure.get_figwidth() - 0.6) * POINTS
    rows = figure.subplots(len(splits), 1, sharex=True, squeeze=False)[:, 0]
    inches = 0.0
    for axes, split in zip(rows, splits, strict=True):
        its = {mode: ratios for mode, ratios in runs.items() if mode.split == split}
        names = [mark(mode.algorithm.title, mode in marked) for mode in its]
        inches += _title(figure, axes, f"{title}, {split}" if has_room else f"{title}, {split}, {len(keys)} devices")
        inches += _draw_groups(axes, its, names, keys) if has_room else _draw_boxes(figure, axes, its, names)
    key = "" if has_room else "coloured strokes: devices; box: quartiles; black: median, least and greatest"
    if has_room:
        inches += _name_groups(figure, rows[-1], device_labels(keys))
        handles = {bar.get_label(): bar for axes in rows for bar in axes.containers}
        inches += legend(figure, list(handles.values()), loc="outside upper center")
    else:
        rows[-1].set_xlabel("computing time ratio")
    figure.set_figheight(0.5 + inches + note_below(figure, key, note if marked else "", doubts))


def _draw_groups(
    axes: Axes, its: Mapping[Mode, Ratios], names: Sequence[str], keys: Sequence[tuple[str, str]]
) -> float:
    """A group of bars for each device; returns the inches of the axes."""
    width = 0.8 / len(its)
    for number, ((mode, ratios), name) in enumerate(zip(its.items(), names, strict=True)):
        places = [keys.index(key) + (number - (len(its) - 1) / 2) * width for key in ratios]
        look: dict[str, Any] = {"color": mode.algorithm.look.colour, "hatch": mode.algorithm.look.hatch}
        axes.bar(places, [*ratios.values()], width, edgecolor="white", linewidth=0.5, label=name, **look)
    axes.set_ylabel("computing time ratio")
    axes.set_ylim(0, 1)
    axes.grid(axis="x", visible=False)
    return 1.6


def _name_groups(figure: Figure, axes: Axes, labels: Sequence[str]) -> float:
    """Names the devices, slanted where they would touch; returns the inches of the names."""
    axes.set_xticks(range(len(labels)), labels)
    axes.set_xlim(-0.6, len(labels) - 0.4)
    longest = max(map(len, labels)) * 0.6 * SMALL / POINTS
    if len(labels) * longest < figure.get_figwidth() - 0.8:
        return 0.0
    axes.tick_params(axis="x", rotation=45)
    for text in axes.get_xticklabels():
        text.set(ha="right", rotation_mode="anchor")
    return 0.7 * longest


def _draw_boxes(figure: Figure, axes: Axes, its: Mapping[Mode, Ratios], names: Sequence[str]) -> float:
    """A row a mode: a box from quartile to quartile, and a stroke for each device; returns the inches of the axes."""
    for row, (mode, ratios) in enumerate(its.items()):
        values, colour = list(ratios.values()), mode.algorithm.look.colour
        line = {"color": "black", "linewidth": 0.8}
        looks: dict[str, Any] = {
            "boxprops": {"facecolor": colour, "alpha": 0.35, "linewidth": 0.5},
            "medianprops": {**line, "linewidth": 1.6},
            **{"whiskerprops": line, "capprops": line},
        }
        form: dict[str, Any] = {"orientation": "horizontal", "widths": 0.6, "whis": (0, 100), "patch_artist": True}
        axes.boxplot(values, positions=[row], manage_ticks=False, **form, **looks)
        axes.plot(values, [row] * len(values), "|", color=colour, markersize=6, markeredgewidth=0.5, clip_on=False)
    axes.set_xlim(0, 1)
    return _name_rows(figure, axes, names)


def device_labels(keys: Sequence[tuple[str, str]]) -> list[str]:
    """`host/device`; without the host if there is one alone, and with its domain only if hosts differ in it."""
    hosts = dict.fromkeys(host for host, _ in keys)
    if len(hosts) == 1:
        return [device for _, device in keys]
    short = {host: host.split(".")[0] for host in hosts}
    if len(set(short.values())) < len(hosts) or any(name.isdigit() for name in short.values()):
        short = {host: host for host in hosts}  # IP addresses, or the same name in two domains
    return [f"{short[host]}/{device}" for host, device in keys]
