"""Summaries -> a table, the speed-ups over SSGD and the five figures.

    python draw.py -b /path/to/logs -n resnet18-v1

reads what summary.py wrote and saves each figure as PNG and PDF: test accuracy over time (i.i.d. and non-i.i.d.), data
throughput, traffic load and computing time ratio. The numbers themselves are worked out in metrics.py.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.registry import BackendFilter, backend_registry
from matplotlib.figure import Figure
from matplotlib.patches import Patch

import config
import metrics
import summary
from metrics import IID, LOCAL, MODES, NON_IID, SSGD, Curve, Devices, Mode, Warn, distributed
from summary import natural_order, warning
from utils import SetupError

MINUTES_FROM_S = 600.0  # longer time axes are in minutes
KINDS: dict[str, dict[str, Any]] = {"png": {}, "pdf": {"CreationDate": None}}  # no date: same data, same file
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
    """Reads the summaries that are there; where there are only logs, `warn` gets the command that makes one.

    Raises:
        SetupError: not one summary of distributed training can be read.
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
    if not distributed(runs):
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


def read_standalone(network_folder: Path, warn: Warn) -> float | None:
    """The test accuracy of standalone training; None where it is not there or cannot be read."""
    path = network_folder / metrics.STANDALONE_FILE
    try:
        accuracy = float(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warn(f"{path} does not hold one number, so there is no line for it: {error}")
        return None
    if not 0 <= accuracy <= 1:
        warn(f"{path} holds {accuracy}, which is no accuracy from 0 to 1, so there is no line for it")
        return None
    return accuracy


# ------------------------------------------------------------------------------------------------- figures


def draw_accuracy(figure: Figure, curves: Mapping[Mode, Curve], title: str, standalone: float | None) -> None:
    """Test accuracy over time, one curve a mode, and a dotted line at the accuracy of standalone training."""
    figure.set_size_inches(7.0, 4.4)
    axes = figure.add_subplot()
    longest_s = max(curve[-1][0] for curve in curves.values())
    unit, unit_s = ("min", 60.0) if longest_s > MINUTES_FROM_S else ("s", 1.0)
    for number, (mode, curve) in enumerate(curves.items()):
        look = mode.algorithm
        every = max(1, len(curve) // 12)  # markers that touch hide the line's dashes
        axes.plot(
            [elapsed_s / unit_s for elapsed_s, _ in curve],
            [accuracy for _, accuracy in curve],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            markersize=5,
            markevery=(number * every // len(curves), every),
            label=look.title,
        )
    if standalone is not None:
        look = LOCAL.algorithm
        axes.axhline(standalone, color=look.colour, linestyle=look.line, label=f"{look.title} ({standalone:.3f})")
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time ({unit})")
    axes.set_ylabel("test accuracy")
    figure.legend(loc="outside upper center", ncols=min(5, len(axes.lines)), columnspacing=1.5)


def draw_bars(figure: Figure, values: Mapping[Mode, float], title: str, label: str) -> None:
    """One bar a mode; an algorithm's runs on both splits stand side by side."""
    algorithms = list(dict.fromkeys(mode.algorithm for mode in values))
    figure.set_size_inches(1.8 + 1.2 * len(algorithms), 4.0)
    axes = figure.add_subplot()
    splits = _splits(values)
    width = 0.8 / len(splits)
    for mode, value in values.items():
        x = algorithms.index(mode.algorithm) + (splits.index(mode.split) - (len(splits) - 1) / 2) * width
        hatch = _SPLIT_HATCHES[mode.split] if len(splits) > 1 else ""
        bar = axes.bar(x, value, 0.92 * width, color=mode.algorithm.colour, hatch=hatch, edgecolor="white")
        axes.bar_label(bar, fmt=_short_number, padding=2)
    axes.set_title(title, loc="left", fontsize="medium")
    axes.set_xticks(range(len(algorithms)), [algorithm.title for algorithm in algorithms])
    axes.set_xlim(-0.6, len(algorithms) - 0.4)
    axes.margins(y=0.1)  # room for the numbers
    axes.grid(axis="x", visible=False)
    axes.set_ylabel(label)
    if len(splits) > 1:
        keys = [
            Patch(facecolor="grey", edgecolor="white", hatch=_SPLIT_HATCHES[split], label=split) for split in splits
        ]
        figure.legend(handles=keys, loc="outside upper center", ncols=len(keys))


_SPLIT_HATCHES = {IID: "", NON_IID: "///"}


def _splits(modes: Collection[Mode]) -> list[str]:
    return list(dict.fromkeys(mode.split for mode in modes))


def _short_number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def draw_computing_ratio(figure: Figure, runs: Mapping[Mode, Mapping[tuple[str, str], float]], title: str) -> None:
    """Computing time ratio: a group of bars for each device, a bar for each mode, a row of axes for each split."""
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
            look = mode.algorithm
            handles[look.title] = axes.bar(
                [keys.index(key) + (number - (len(modes) - 1) / 2) * width for key in runs[mode]],
                list(runs[mode].values()),
                width,
                color=look.colour,
                hatch=look.hatch,
                edgecolor="white",
                linewidth=0.5,
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
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=min(5, len(handles)))


def device_labels(keys: Sequence[tuple[str, str]]) -> list[str]:
    """`host/device`; only the device where there is one host, and a host's domain only where it tells hosts apart."""
    hosts = dict.fromkeys(host for host, _ in keys)
    if len(hosts) == 1:
        return [device for _, device in keys]
    short = {host: host.split(".")[0] for host in hosts}
    if len(set(short.values())) < len(hosts) or any(name.isdigit() for name in short.values()):
        short = {host: host for host in hosts}  # IP addresses, or the same name in two domains
    return [f"{short[host]}/{device}" for host, device in keys]


def save_figures(
    figures: Sequence[tuple[str, Mapping[Mode, Any], Callable[[Figure, Any], None]]],
    folder: Path,
    new_figure: Callable[[], Figure],
    say: Callable[[str], None],
) -> None:
    """Draws each (file name, data, drawing function) that has data as PNG and PDF, and says where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data, draw in figures:
        files = {folder / f"{name}.{kind}": metadata for kind, metadata in KINDS.items()}
        if not data:
            say(f"no figure {name}: the logs have no numbers for it")
            for path in files:
                path.unlink(missing_ok=True)  # it was drawn from other logs
            continue
        figure = new_figure()
        draw(figure, data)
        for path, metadata in files.items():
            figure.savefig(path, metadata=metadata)
            say(str(path))


def _window_figure(warn: Warn) -> Callable[[], Figure] | None:
    """Makes figures that pyplot can show; None where there is no display."""
    from matplotlib import pyplot  # only here: the other figures need no state outside themselves

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


def _draw(base: Path, network: str, out: Path | None, target: float, show: bool) -> None:
    network_folder = summary.find_network(base, network)
    runs = read_summaries(network_folder, base, warning)
    curves = {mode: _curve(mode, devices, warning) for mode, devices in runs.items()}
    print(f"{network}\n{metrics.table(runs, curves, target)}")
    absent = [mode.name for mode in MODES.values() if mode not in runs and not _has_logs(network_folder / mode.name)]
    print(f"no logs of: {', '.join(absent)}\n" if absent else "")
    print(f"Speed-up over {SSGD.title}, as time to test accuracy {metrics.accuracy_text(target)}:")
    print("\n".join(metrics.speed_up_lines(curves, target)) or "nothing to compare", end="\n\n")

    trained = distributed(runs)
    standalone = read_standalone(network_folder, warning)
    figures: list[tuple[str, Mapping[Mode, Any], Callable[[Figure, Any], None]]] = [
        (
            name,
            {mode: curve for mode, curve in distributed(curves).items() if curve and mode.split == split},
            partial(draw_accuracy, title=f"{network}, {split}", standalone=standalone),
        )
        for name, split in (("accuracy-iid", IID), ("accuracy-non-iid", NON_IID))
    ]
    figures += [
        (
            "throughput",
            {mode: metrics.throughput(devices.values()) for mode, devices in trained.items()},
            partial(draw_bars, title=network, label="data throughput (samples/s)"),
        ),
        (
            "traffic",
            _known({mode: metrics.traffic(devices.values()) for mode, devices in trained.items()}, warning),
            partial(draw_bars, title=network, label="traffic load (MB/s)"),
        ),
        (
            "computing-time",
            {mode: ratios for mode, devices in trained.items() if (ratios := _ratios(mode, devices, warning))},
            partial(draw_computing_ratio, title=network),
        ),
    ]
    new_figure = _window_figure(warning) if show else None
    with mpl.rc_context(STYLE):
        save_figures(figures, out or network_folder / "figures", new_figure or Figure, print)
        if new_figure is not None:
            from matplotlib import pyplot

            pyplot.show()


def _curve(mode: Mode, devices: Devices, warn: Warn) -> Curve:
    device = metrics.evaluating_device(devices, warn)
    if device is None:
        warn(f"{mode.title} has no accuracies: rank 0 evaluated nothing, or its logs are not there")
        return []
    if not device.curve:
        warn(f"{mode.title}: its summary does not say when it was evaluated; make it anew with summary.py")
    return device.curve


def _known(loads: Mapping[Mode, float | None], warn: Warn) -> dict[Mode, float]:
    for mode, load in loads.items():
        if load is None:
            warn(f"{mode.title} left out of the traffic figure: its logs do not count the bytes of every worker")
    return {mode: load for mode, load in loads.items() if load is not None}


def _ratios(mode: Mode, devices: Devices, warn: Warn) -> dict[tuple[str, str], float]:
    ratios = {key: metrics.computing_ratio(device) for key, device in devices.items()}
    unknown = ["/".join(key) for key, ratio in ratios.items() if ratio is None]
    if unknown:
        warn(f"{mode.title}: no computing time of {', '.join(unknown)}; make its summary anew with summary.py")
    return {key: ratio for key, ratio in ratios.items() if ratio is not None}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, saves the figures and returns the exit code: 2 where there is nothing to draw."""
    parser = summary.tree_parser("Draw the figures of a network's summaries, and print the numbers behind them.")
    parser.add_argument("-o", "--out", type=Path, help="folder for the figures (BASE/NETWORK/figures)")
    parser.add_argument(
        "--target", type=config.accuracy, default=0.8, help="test accuracy to compare the times to (%(default)s)"
    )
    parser.add_argument("--show", action="store_true", help="also open the figures in windows")
    options = parser.parse_args(arguments)
    return summary.run_tool(lambda: _draw(options.base, options.network, options.out, options.target, options.show))


if __name__ == "__main__":
    sys.exit(main())
