"""Summaries -> a table, the speed-ups over SSGD and the five figures.

    python draw.py -b /path/to/logs -n resnet18-v1

reads what summary.py wrote and saves each figure as PNG and PDF: the metric over time (i.i.d. and non-i.i.d.) with
marks at events, data throughput, traffic load and computing time ratio. Of several runs of the same jobs,
/path/to/logs/seed-N/NETWORK, it draws the medians and their intervals. Numbers, table and figures are made in report/.
"""

from __future__ import annotations

if __name__ == "__main__":
    import sys

    sys.path.insert(0, __file__.rpartition("/")[0] or ".")  # PYTHONSAFEPATH leaves it out
    import start  # first: what it does is for the other imports too

import argparse
import json
import reprlib
import shlex
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import summary
from esync.metric import ACCURACY, Metric, logged_value
from flag_values import at_least, finite
from report import BACKEND, definitions, metrics, tables
from report.csv_curves import beside, read_beside
from report.definitions import AUTO, DEFINITIONS, MODEL_BYTES
from report.figure_set import bar_figures, curve_figures, save_figures
from report.metrics import LOCAL, SSGD, STANDALONE, Device, Devices, Mode, compared
from report.runs import X_AXES, Run, of_one_metric
from report.style import PAGE, WIDTHS, style
from summary import warning
from trainer.run_logs.rounds import Warn
from utils import SetupError, setup_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL = "all"  # of X_AXES


# ------------------------------------------------------------------------------------------------- reading


def read_summaries(network_folder: Path, base: Path, warn: Warn, names: Sequence[str] = ()) -> dict[Mode, Devices]:
    """Reads the summaries of the modes of these names, or of all that are there; where there are only logs, `warn` gets
    the command that makes one. Raises SetupError if no summary of distributed training can be read."""
    runs: dict[Mode, Devices] = {}
    for mode in metrics.modes_of(names or [path.name for path in summary.folders(network_folder)]):
        folder = network_folder / mode.name
        command = _summary_command(base, network_folder.name, "-m", mode.name)
        if not (folder / mode.file_name).exists():
            if folder.is_dir() and summary.folders(folder):
                warn(f"{mode.title} left out: {folder} has logs but no {mode.file_name}; make it with: {command}")
            continue
        try:
            devices = summary.read_summary(folder / mode.file_name, warn)
            runs[mode.told(devices)] = devices
        except SetupError as error:
            warn(f"{mode.title} left out: {error}; make it anew with: {command}")
    if not compared(runs):
        raise SetupError(
            f"nothing to draw: no summary of {', '.join(names) or 'distributed training'} can be read in "
            f"{network_folder}; where there are logs, make it with: {_summary_command(base, network_folder.name)}"
        )
    return runs


def _summary_command(base: Path, network: str, *mode: str) -> str:
    return shlex.join(["python", "summary.py", "-b", str(base), "-n", network, *mode])


def read_standalone(network_folder: Path, devices: Devices, warn: Warn) -> tuple[Metric, float] | None:
    """Metric and value of standalone training, of these devices; None where it is missing or cannot be read, or the run
    ended at its target."""
    if any(device.at_target for device in devices.values()):
        warn(f"{STANDALONE.title} ended at its target, so its last value is no final one, and there is no line for it")
        return None
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


# -------------------------------------------------------------------------------------------- command line


def _window_figure(warn: Warn) -> Callable[[], Figure] | None:
    """Makes figures that pyplot can show; None without a display."""
    import matplotlib as mpl
    from matplotlib import pyplot  # only here: saved figures need no global state
    from matplotlib.backends.registry import BackendFilter, backend_registry

    try:
        if BACKEND:
            mpl.rcParams["backend"] = BACKEND
        pyplot.switch_backend(mpl.get_backend())
    except (ImportError, ValueError) as error:
        warn(f"--show: {error}; the figures are only saved")
        return None
    if mpl.get_backend().lower() in backend_registry.list_builtin(BackendFilter.NON_INTERACTIVE):  # type: ignore[no-untyped-call]
        warn("--show: there is no display, or no toolkit for windows (such as python3-tk); the figures are only saved")
        return None
    return pyplot.figure


def _draw(options: argparse.Namespace) -> None:
    base, network = options.base, options.network
    folders = summary.find_runs(base, network, warning)
    runs, metric = of_one_metric([_read_run(folder, options) for folder in folders], warning)
    target = tables.target_for(options.target, metric, [curve for run in runs for curve in run.curves.values()])
    there = {mode for run in runs for mode in run.devices}
    others = read_beside(options.beside, there, metric)
    out = options.out or (folders[0] / "figures" if len(runs) == 1 else base / "figures" / network)
    with setup_errors(f"{out} cannot be the folder of the figures", "give another with -o"):  # before the table
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    print(f"{network}\n{tables.table(runs, target, metric)}")
    lines = tables.speed_up_lines([metrics.times_of(run.evaluators, target) for run in runs], target, metric)
    if absent := {*(options.mode)} - {mode.name for mode in there}:
        print(f"no logs of: {', '.join(sorted(absent))}")
    axes = [X_AXES[name] for name in options.over]
    figures = curve_figures(network, runs, warning, axes, metric, target, others) + bar_figures(network, runs, warning)
    print(f"\nSpeed-up over {SSGD.title}, as time to test {metric.name} {tables.target_text(target, metric)}:")
    print("\n".join(lines) or "nothing to compare", end="\n\n")
    new_figure = _window_figure(warning) if options.show else None
    with style(options.width):
        save_figures(figures, out, print, new_figure)
        if new_figure is not None:
            from matplotlib import pyplot

            pyplot.show()


def _read_run(network_folder: Path, options: argparse.Namespace) -> Run:
    devices = read_summaries(network_folder, network_folder.parent, warning, options.mode)
    wanted = options.mode or (LOCAL.name,)
    sizes = options.definitions, options.model_bytes or MODEL_BYTES.get(options.network)
    numbers = {mode: definitions.numbers(its, *sizes, mode.exchanges) for mode, its in devices.items()}
    evaluators = {mode: evaluator(mode, its, options.eval_duration, warning) for mode, its in devices.items()}
    standalone = read_standalone(network_folder, devices.get(LOCAL, {}), warning) if LOCAL.name in wanted else None
    return Run(devices, numbers, evaluators, standalone)


def evaluator(mode: Mode, devices: Devices, eval_duration: int, warn: Warn) -> Device | None:
    """The device whose curve is drawn; None where none evaluated. `warn` gets what it lacks. `eval_duration` is the
    number of rounds between two evaluations, for summaries without their times."""
    device = metrics.evaluating_device(devices, warn)
    if device is None:
        warn(f"{mode.title} has no accuracies: no worker evaluated, or its logs are not there")
        return None
    device = device.evaluated_every(eval_duration)
    if not device.curve:
        counts = f"{len(device.values)} {device.metric.plural} in {len(device.rounds)} rounds"
        lack = f"{mode.title}: its summary does not say when it was evaluated ({counts})"
        warn(f"{lack}; make it anew with summary.py, or give the -e that it was trained with as -e")
    return device


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table, saves the figures and returns the exit code: 2 without summaries."""
    parser = summary.tree_parser("Draw the figures of a network's summaries, and print the numbers behind them.")
    parser.add_argument("-o", "--out", type=Path, help="folder for the figures (BASE/NETWORK/figures)")
    add, widths = parser.add_argument, ", ".join(f"{name} ({inches:g} in)" for name, inches in WIDTHS.items())
    text = "of these modes alone, with commas; those not there are named"
    add("-m", "--mode", type=lambda text: [*map(summary.known_mode, text.split(","))], default=(), help=text)
    text = f"of the figures in print, with text of at least 7 pt: {widths} (%(default)s)"
    add("--width", choices=WIDTHS, default=PAGE, help=text)
    text = "a curve of another program, over seconds, with that name; may be repeated"
    add("--beside", type=beside, action="append", default=[], metavar="NAME=FILE.csv", help=text)
    add("--target", type=finite, help=tables.TARGET_HELP)
    text = "horizontal axes of the metric, each in a figure of its own (%(default)s)"
    add("--over", nargs="+", choices=[*X_AXES, ALL], default=["seconds"], help=text)
    text = "rounds between two evaluations, for summaries of the published program, which lack it (%(default)s)"
    add("-e", "--eval-duration", type=at_least(1), default=1, help=text)
    text = (
        "definitions of traffic and computing ratio: as measured here, as in the published figures, or measured where "
        "the summary allows it (%(default)s)"
    )
    add("--definitions", choices=DEFINITIONS, default=AUTO, help=text)
    text = (
        "size of the model, for the published traffic where a summary lacks it (known for the networks of main.py on "
        "Fashion-MNIST)"
    )
    add("--model-bytes", type=at_least(1), help=text)
    add("--show", action="store_true", help="also open the figures in windows")
    options = parser.parse_args(arguments)
    options.over = [*X_AXES] if ALL in options.over else [*dict.fromkeys(options.over)]
    return summary.run_tool(lambda: _draw(options))


if __name__ == "__main__":
    start.run(main)
