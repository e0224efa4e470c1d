"""The figures of the runs of a network: their data, the functions that draw them, their files."""

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matplotlib.figure import Figure

from esync.metric import ACCURACY, Metric
from report import metrics, tables
from report.bars import draw_bars, draw_computing_ratio
from report.definitions import MARK, RATIO, TRAFFIC, published_note
from report.figures import draw_curves
from report.metrics import IID, NON_IID, Curve, Mode, compared
from report.runs import SECONDS, Run, XAxis, by_mode, estimate, mean_ratios
from trainer.run_logs.rounds import Warn
from utils import setup_errors

KINDS: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}}  # no date: same data, same file
logging.getLogger("fontTools").setLevel(logging.WARNING)  # it tells of every glyph of a PDF
NamedFigure = tuple[str, Any, Callable[[Figure, Any], None]]  # file name, data, drawing function


def curve_figures(
    network: str,
    runs: Sequence[Run],
    warn: Warn,
    axes: Sequence[XAxis] = (SECONDS,),
    metric: Metric = ACCURACY,
    target: float | None = None,
    others: Mapping[Mode, Curve] = MappingProxyType({}),
) -> list[NamedFigure]:
    """The metric over each axis on each split, with marks at events of the device that evaluated, and the `others`
    beside ours; of several runs medians and bands."""
    figures: list[NamedFigure] = []
    devices = by_mode([run.devices for run in runs])
    times = {} if target is None else by_mode([metrics.times_of(run.evaluators, target) for run in runs])
    known = [run.standalone[1] for run in runs if run.standalone is not None]
    standalone = sum(known) / len(known) if known else None
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", metric.name)
    for x_axis in axes:
        found = [run.drawn_over(x_axis, warn) for run in runs]
        curves = compared(by_mode([curves for curves, _ in found]))
        events = found[0][1] if len(runs) == 1 else {}
        more: dict[str, Any] = {"standalone": standalone, "events": events, "metric": metric, "target": target}
        if others and x_axis is not SECONDS:
            warn(f"files beside ours have seconds alone: they are left out of the {metric.name} over {x_axis.label}")
        beside = {mode: [curve] for mode, curve in others.items() if x_axis is SECONDS}
        for name, split in ((f"{stem}-iid", IID), (f"{stem}-non-iid", NON_IID)):
            its = {mode: value for mode, value in curves.items() if mode.split == split}
            doubts = tables.short_doubts_of({mode: devices[mode] for mode in its})
            wide = tables.wide_times({mode.title: times.get(mode, []) for mode in its})
            note = "; ".join(filter(None, [doubts, wide]))
            drawn = partial(draw_curves, title=f"{network}, {split}", note=note, x_axis=x_axis, **more)
            figures.append((name + x_axis.suffix, its and {**its, **beside}, drawn))
    return figures


def bar_figures(network: str, runs: Sequence[Run], warn: Warn) -> list[NamedFigure]:
    """Throughput, traffic and computing time of distributed training; `warn` gets what is left out."""
    devices = compared(by_mode([run.devices for run in runs]))
    numbers = {mode: its for mode, its in by_mode([run.numbers for run in runs]).items() if mode in devices}
    speeds = {mode: estimate([metrics.throughput(run.values()) for run in its]) for mode, its in devices.items()}
    by_size = [mode for mode, its in numbers.items() if any(run.traffic_published for run in its)]
    by_aggregation = [mode for mode, its in numbers.items() if any(run.ratios_published for run in its)]
    if 0 < len(by_size) < len(devices) or 0 < len(by_aggregation) < len(devices):
        text = f"numbers with {MARK} follow the published definition, the others are measured"
        warn(f"{text}: compare them with --definitions published")
    loads, ratios = {}, {}
    for mode, its in numbers.items():
        for run, there in zip(its, devices[mode], strict=True):
            if unknown := ["/".join(key) for key in there if key not in run.ratios]:
                warn(f"{mode.title}: no computing time of {', '.join(unknown)}; make its summary anew with summary.py")
        if found := mean_ratios([run.ratios for run in its]):
            ratios[mode] = found
        if (load := estimate([run.traffic for run in its])) is not None:
            loads[mode] = load
        else:
            more = ", nor hold the size of the model: give it with --model-bytes" * (mode in by_size)
            warn(f"{mode.title} left out of the traffic figure: its logs do not count the bytes of every worker{more}")
    all_of: dict[str, Any] = {"title": network, "doubts": tables.short_doubts_of(devices)}
    sizes: dict[str, Any] = {"label": "traffic load (MB/s)", "marked": by_size, "note": published_note(TRAFFIC)}
    shares: dict[str, Any] = {"marked": by_aggregation, "note": published_note(RATIO)}
    return [
        ("throughput", speeds, partial(draw_bars, label="data throughput (samples/s)", **all_of)),
        ("traffic", loads, partial(draw_bars, **sizes, **all_of)),
        ("computing-time", ratios, partial(draw_computing_ratio, **shares, **all_of)),
    ]


def save_figures(
    figures: Sequence[NamedFigure],
    folder: Path,
    say: Callable[[str], None],
    new_figure: Callable[[], Figure] | None = None,
) -> None:
    """Draws each figure that has data as PNG and PDF; `say` gets their paths. Raises SetupError if a file cannot be
    written."""
    for name, data, draw in figures:
        files = {folder / f"{name}.{kind}": metadata for kind, metadata in KINDS.items()}
        if not data:
            say(f"no figure {name}: the logs have no numbers for it")
            for path in files:
                path.unlink(missing_ok=True)  # drawn from other logs
            continue
        figure = (new_figure or Figure)()
        draw(figure, data)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # otherwise each file would compute the layout again
        for path, metadata in files.items():
            with setup_errors(f"{path} cannot be written", "give another folder with -o"):
                figure.savefig(path, metadata=metadata)
            say(str(path))
