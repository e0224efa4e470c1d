"""Summaries -> a table, the speed-ups over SSGD and the five figures.

    python draw.py -b /path/to/logs -n resnet18-v1

reads what summary.py wrote and saves each figure as PNG and PDF: the metric over time (i.i.d. and non-i.i.d.) with
marks at events, data throughput, traffic load and computing time ratio. Of several runs of the same jobs,
/path/to/logs/seed-N/NETWORK, it draws the medians and their intervals. Numbers, table and figures are made in report/.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import json
import re
import reprlib
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.registry import BackendFilter, backend_registry
from matplotlib.figure import Figure

import summary
from flag_values import at_least, finite
from report import definitions, metrics, run_tables, tables
from report.definitions import AUTO, DEFINITIONS, MARK, MODEL_BYTES, RATIO, TRAFFIC, Numbers, published_note
from report.figures import draw_bars, draw_computing_ratio, draw_curves, draw_curves_of_runs
from report.metrics import IID, MODES, NON_IID, SSGD, Curve, Device, Devices, Event, Mode, Warn, compared
from report.runs import Run, by_mode, estimate, mean_ratios, of_one_metric
from report.statistics import Estimate
from report.x_axes import SECONDS, X_AXES, XAxis
from summary import warning
from trainer.metric import ACCURACY, Metric, logged_value
from utils import SetupError

KINDS: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}}  # no date: same data, same file
ALL = "all"  # of X_AXES
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "grid.alpha": 0.35,
    "hatch.linewidth": 0.7,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text
    "savefig.dpi": 150,
}

# ------------------------------------------------------------------------------------------------- reading


def read_summaries(network_folder: Path, base: Path, warn: Warn) -> dict[Mode, Devices]:
    """Reads all summaries; where there are only logs, `warn` gets the command that makes one.

    Raises:
        SetupError: no summary of distributed training can be read.
    """
    runs: dict[Mode, Devices] = {}
    for mode in MODES.values():
        folder = network_folder / mode.name
        command = _summary_command(base, network_folder.name, mode)
        if not (folder / mode.file_name).exists():
            if _has_logs(folder):
                warn(f"{mode.title} left out: {folder} has logs but no {mode.file_name}; make it with: {command}")
            continue
        try:
            runs[mode] = summary.read_summary(folder / mode.file_name, warn)
        except SetupError as error:
            warn(f"{mode.title} left out: {error}; make it anew with: {command}")
    if not compared(runs):
        raise SetupError(
            f"nothing to draw: no summary of distributed training can be read in {network_folder}; "
            f"make them with: {_summary_command(base, network_folder.name)}"
        )
    return runs


def _has_logs(folder: Path) -> bool:
    return folder.is_dir() and bool(summary.folders(folder))


def _summary_command(base: Path, network: str, mode: Mode | None = None) -> str:
    return shlex.join(
        ["python", "summary.py", "-b", str(base), "-n", network, *(["-m", mode.name] if mode is not None else [])]
    )


def read_standalone(network_folder: Path, warn: Warn) -> tuple[Metric, float] | None:
    """Metric and value of standalone training; None where it is missing or cannot be read."""
    path = network_folder / metrics.STANDALONE_FILE
    try:
        read = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn(f"{path} does not hold one number, so there is no line for it: {error}")
        return None
    metric, value = (logged_value(read) if isinstance(read, dict) else None) or (ACCURACY, read)
    if fault := metric.fault(value):
        warn(f"{path} holds {reprlib.repr(value)} as {metric.name}, which is {fault}, so there is no line for it")
        return None
    return metric, value


# ------------------------------------------------------------------------------------------------- figures


NamedFigure = tuple[str, Mapping[Mode, Any], Callable[[Figure, Any], None]]  # file name, data, drawing function


def curve_figures(
    network: str,
    curves: Mapping[Mode, Curve],
    events: Mapping[Mode, Sequence[Event]],
    standalone: float | None,
    x_axis: XAxis = SECONDS,
    runs: Mapping[Mode, Sequence[Devices]] | None = None,
    metric: Metric = ACCURACY,
) -> list[NamedFigure]:
    """The metric over an axis on each split, marks at events of the device that evaluated, doubts about `runs`."""
    return _of_each_split(
        {mode: curve for mode, curve in curves.items() if curve},
        partial(draw_curves, standalone=standalone, events=events, x_axis=x_axis, metric=metric),
        network,
        x_axis,
        runs or {},
        metric,
    )


def _of_each_split(
    data: Mapping[Mode, Any],
    draw: Callable[..., None],
    network: str,
    x_axis: XAxis,
    runs: Mapping[Mode, Sequence[Devices]],
    metric: Metric,
) -> list[NamedFigure]:
    figures: list[NamedFigure] = []
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", metric.name)
    for name, split in ((f"{stem}-iid", IID), (f"{stem}-non-iid", NON_IID)):
        its = {mode: value for mode, value in compared(data).items() if mode.split == split}
        note = tables.short_doubts_of({mode: devices for mode, devices in runs.items() if mode in its})
        figures.append((name + x_axis.suffix, its, partial(draw, title=f"{network}, {split}", note=note)))
    return figures


def bar_figures(network: str, runs: Sequence[Run], warn: Warn) -> list[NamedFigure]:
    """Throughput, traffic and computing time of distributed training; `warn` gets what is left out."""
    devices = compared(by_mode([run.devices for run in runs]))
    numbers = {mode: its for mode, its in by_mode([run.numbers for run in runs]).items() if mode in devices}
    speeds = {mode: estimate([metrics.throughput(run.values()) for run in its]) for mode, its in devices.items()}
    loads = {mode: estimate([run.traffic for run in its]) for mode, its in numbers.items()}
    by_size = [mode for mode, its in numbers.items() if any(run.traffic_published for run in its)]
    by_aggregation = [mode for mode, its in numbers.items() if any(run.ratios_published for run in its)]
    if 0 < len(by_size) < len(devices) or 0 < len(by_aggregation) < len(devices):
        warn(
            f"numbers with {MARK} follow the published definition, the others are measured: compare them with "
            "--definitions published"
        )
    ratios = {
        mode: mean_ratios([_ratios(mode, *run, warn) for run in zip(devices[mode], its, strict=True)])
        for mode, its in numbers.items()
    }
    doubts = tables.short_doubts_of(devices)
    return [
        ("throughput", speeds, partial(draw_bars, title=network, label="data throughput (samples/s)", doubts=doubts)),
        (
            "traffic",
            _known(loads, by_size, warn),
            partial(
                draw_bars,
                title=network,
                label="traffic load (MB/s)",
                marked=by_size,
                note=published_note(TRAFFIC),
                doubts=doubts,
            ),
        ),
        (
            "computing-time",
            {mode: its for mode, its in ratios.items() if its},
            partial(
                draw_computing_ratio,
                title=network,
                marked=by_aggregation,
                note=published_note(RATIO),
                doubts=doubts,
            ),
        ),
    ]


def _known(
    loads: Mapping[Mode, float | Estimate | None], by_size: Collection[Mode], warn: Warn
) -> dict[Mode, float | Estimate]:
    for mode, load in loads.items():
        if load is None:
            lack = "do not count the bytes of every worker"
            if mode in by_size:
                lack += ", nor hold the size of the model: give it with --model-bytes"
            warn(f"{mode.title} left out of the traffic figure: its logs {lack}")
    return {mode: load for mode, load in loads.items() if load is not None}


def _ratios(mode: Mode, devices: Devices, numbers: Numbers, warn: Warn) -> Mapping[tuple[str, str], float]:
    unknown = ["/".join(key) for key in devices if key not in numbers.ratios]
    if unknown:
        warn(f"{mode.title}: no computing time of {', '.join(unknown)}; make its summary anew with summary.py")
    return numbers.ratios


def save_figures(
    figures: Sequence[NamedFigure],
    folder: Path,
    new_figure: Callable[[], Figure],
    say: Callable[[str], None],
) -> None:
    """Draws each figure that has data as PNG and PDF; `say` gets their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data, draw in figures:
        files = {folder / f"{name}.{kind}": metadata for kind, metadata in KINDS.items()}
        if not data:
            say(f"no figure {name}: the logs have no numbers for it")
            for path in files:
                path.unlink(missing_ok=True)  # drawn from other logs
            continue
        figure = new_figure()
        draw(figure, data)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # otherwise each file would compute the layout again
        for path, metadata in files.items():
            figure.savefig(path, metadata=metadata)
            say(str(path))


def _window_figure(warn: Warn) -> Callable[[], Figure] | None:
    """Makes figures that pyplot can show; None without a display."""
    from matplotlib import pyplot  # only here: saved figures need no global state

    try:
        pyplot.switch_backend(mpl.get_backend())
    except ImportError as error:
        warn(f"--show: {error}; the figures are only saved")
        return None
    if mpl.get_backend().lower() in backend_registry.list_builtin(BackendFilter.NON_INTERACTIVE):  # type: ignore[no-untyped-call]
        warn("--show: there is no display, or no toolkit for windows (such as python3-tk); the figures are only saved")
        return None
    return pyplot.figure


# -------------------------------------------------------------------------------------------- command line


def _draw(options: argparse.Namespace) -> None:
    base, network = options.base, options.network
    folders = summary.find_runs(base, network, warning)
    runs, metric = of_one_metric([_read_run(folder, options) for folder in folders], warning)
    target = tables.target_for(options.target, metric, [curve for run in runs for curve in run.curves.values()])
    if len(runs) == 1:
        (run,) = runs
        table = tables.table(run.devices, run.numbers, run.curves, target, metric)
        lines, out = tables.speed_up_lines(run.curves, target, metric), folders[0] / "figures"
    else:
        table = run_tables.table(runs, target, metric)
        lines, out = run_tables.speed_up_lines(runs, target, metric), base / "figures" / network
    _print_table(network, table, runs, folders)
    axes = [X_AXES[name] for name in options.over]
    draw_run = _figures_of_run if len(runs) == 1 else _figures_of_runs
    figures = draw_run(network, runs, axes, metric)
    figures += bar_figures(network, runs, warning)
    print(f"Speed-up over {SSGD.title}, as time to test {metric.name} {tables.target_text(target, metric)}:")
    print("\n".join(lines) or "nothing to compare", end="\n\n")
    new_figure = _window_figure(warning) if options.show else None
    with mpl.rc_context(STYLE):
        save_figures(figures, options.out or out, new_figure or Figure, print)
        if new_figure is not None:
            from matplotlib import pyplot

            pyplot.show()


def _read_run(network_folder: Path, options: argparse.Namespace) -> Run:
    devices = read_summaries(network_folder, network_folder.parent, warning)
    model_bytes = options.model_bytes or MODEL_BYTES.get(options.network)
    return Run(
        devices,
        {
            mode: definitions.numbers(its, options.definitions, model_bytes, mode.exchanges)
            for mode, its in devices.items()
        },
        {mode: evaluator(mode, its, options.eval_duration, warning) for mode, its in devices.items()},
        read_standalone(network_folder, warning),
    )


def _print_table(network: str, table: str, runs: Sequence[Run], folders: Sequence[Path]) -> None:
    print(f"{network}\n{table}")
    there = {mode for run in runs for mode in run.devices}
    absent = [
        mode.name
        for mode in MODES.values()
        if mode not in there and not any(_has_logs(folder / mode.name) for folder in folders)
    ]
    print(f"no logs of: {', '.join(absent)}\n" if absent else "")


def _figures_of_run(network: str, runs: Sequence[Run], axes: Sequence[XAxis], metric: Metric) -> list[NamedFigure]:
    figures, (run,) = [], runs
    standalone = run.standalone and run.standalone[1]
    for x_axis in axes:
        curves, events = run.drawn_over(x_axis, warning)
        figures += curve_figures(network, curves, events, standalone, x_axis, by_mode([run.devices]), metric)
    return figures


def _figures_of_runs(network: str, runs: Sequence[Run], axes: Sequence[XAxis], metric: Metric) -> list[NamedFigure]:
    figures = []
    devices = by_mode([run.devices for run in runs])
    known = [run.standalone[1] for run in runs if run.standalone is not None]
    standalone = sum(known) / len(known) if known else None
    for x_axis in axes:
        curves = by_mode([run.drawn_over(x_axis, warning)[0] for run in runs])
        draw = partial(draw_curves_of_runs, standalone=standalone, x_axis=x_axis, metric=metric)
        figures += _of_each_split(curves, draw, network, x_axis, devices, metric)
    return figures


def evaluator(mode: Mode, devices: Devices, eval_duration: int, warn: Warn) -> Device | None:
    """The device whose curve is drawn; None where none evaluated. `warn` gets what it lacks.

    Args:
        eval_duration: rounds between two evaluations, for summaries without their times.
    """
    device = metrics.evaluating_device(devices, warn)
    if device is None:
        warn(f"{mode.title} has no accuracies: no worker evaluated, or its logs are not there")
        return None
    device = device.evaluated_every(eval_duration)
    if not device.curve:
        counts = f"{len(device.accuracy_list)} {device.metric.plural} in {len(device.elapsed_time_list)} rounds"
        warn(
            f"{mode.title}: its summary does not say when it was evaluated ({counts}); make it anew with summary.py, "
            "or give the -e that it was trained with as -e"
        )
    return device


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, saves the figures and returns the exit code: 2 without summaries."""
    parser = summary.tree_parser("Draw the figures of a network's summaries, and print the numbers behind them.")
    parser.add_argument("-o", "--out", type=Path, help="folder for the figures (BASE/NETWORK/figures)")
    parser.add_argument("--target", type=finite, help=tables.TARGET_HELP)
    parser.add_argument(
        "--over",
        nargs="+",
        choices=[*X_AXES, ALL],
        default=["seconds"],
        help="horizontal axes of the metric, each in a figure of its own (%(default)s)",
    )
    parser.add_argument(
        "-e",
        "--eval-duration",
        type=at_least(1),
        default=1,
        help="rounds between two evaluations, for summaries of the published program, which lack it (%(default)s)",
    )
    parser.add_argument(
        "--definitions",
        choices=DEFINITIONS,
        default=AUTO,
        help="definitions of traffic and computing ratio: as measured here, as in the published figures, or measured "
        "where the summary allows it (%(default)s)",
    )
    parser.add_argument(
        "--model-bytes",
        type=at_least(1),
        help="size of the model, for the published traffic where a summary lacks it "
        "(known for the networks of main.py on Fashion-MNIST)",
    )
    parser.add_argument("--show", action="store_true", help="also open the figures in windows")
    options = parser.parse_args(arguments)
    options.over = [*X_AXES] if ALL in options.over else [*dict.fromkeys(options.over)]
    return summary.run_tool(lambda: _draw(options))


if __name__ == "__main__":
    start.run(main)
