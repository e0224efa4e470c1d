"""A demonstration from start to end: the environment, the data, the main job on this one machine, and figures.

State server, scheduler, parameter server and three CPU workers of different (emulated) speeds train a network with
SSGD, with the fastest worker alone, with ESync and with ESync and an outer optimiser, each for the same time. Then the
logs are summarised, the figures drawn and the times to a target compared. The last line names the algorithm that was
first in this one run, and by how much, or which were not told apart. Accuracies are those of 2,000 training images that
are held out. Flags after `--` go to every worker's main.py. Ctrl-C ends it.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import dataclasses
import math
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import draw
import summary
from algorithms import OWNERS
from config import names_of
from esync.metric import ACCURACY, Metric
from flag_parser import FlagParser
from flag_values import above_zero, finite
from report import metrics, tables
from scripts import get_data
from scripts.launch import job_options, local_cluster
from scripts.launch.console import WORTH_SHOWING, console
from scripts.launch.roles import ROOT
from trainer.run_logs.earlier_runs import date_time
from utils import EXIT_FORCED, EXIT_OK

MODES = ("sync", "alone", "esync", "esync-outer")

# Chosen for lenet on two cores.
STEP_TIMES_S = "0.02,0.04,0.2"  # of the three workers: the third is ten times slower than the first
SECONDS = 55.0  # a mode, without the workers' start and the figures
# Flags of main.py: type, default and meaning here.
OF_WORKERS: dict[str, tuple[Callable[[str], float], float, str]] = {
    "batch_size": (int, 64, "samples a step"),
    "learning_rate": (float, 0.003, "learning rate of SSGD and alone"),
    "local_lr": (float, 0.003, "learning rate of ESync's local steps"),
    "eval_seconds": (above_zero, 2.0, "between two evaluations, on the fastest worker"),
    "seed": (int, 0, "of initial weights and shuffling"),
}
# All modes are evaluated in the worker, so that other work of the machine slows them alike, and on so few samples that
# training waits for a twentieth of its time.
HELD_OUT = 2000
SHOW_EVERY_S = 15.0  # an evaluation on the console


def parse(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The demo's own options, and the arguments for main.py."""
    parser = FlagParser(prog="scripts/demo.sh", description=__doc__, formatter_class=job_options.HelpFormatter)
    job_options.add_network(parser)
    parser.add_argument("--seconds", type=above_zero, default=SECONDS, help="of training with each algorithm")
    parser.add_argument("--workers", default=STEP_TIMES_S, help="step times, as in local_cluster.sh")
    parser.add_argument("--target", type=finite, help=tables.TARGET_HELP)
    for field, (kind, default, words) in OF_WORKERS.items():
        parser.add_argument(*names_of(field), type=kind, default=default, help=words)
    job_options.add_log_base(parser, ROOT / "logs" / "demo")
    parser.add_argument("--data-dir", type=Path, default=ROOT / "data", help="folder that holds fashion-mnist")
    given, for_main = job_options.parse(parser, arguments)
    given.log_base = job_options.log_base(given)
    return given, list(for_main)


def cluster_arguments(mode: str, given: argparse.Namespace, for_main: list[str]) -> list[str]:
    """The command line of scripts/local_cluster.sh for one of the jobs."""
    cluster = {
        "--mode": mode,
        "--network": given.network,
        "--workers": given.workers,
        "--log-base": given.log_base,
        "--data-dir": given.data_dir,
    }
    fields = ("batch_size", OWNERS[mode].settings.rate_field, "eval_seconds", "seed")
    worker = {names_of(field)[-1]: getattr(given, field) for field in fields}
    worker |= {"--max-seconds": given.seconds, "--evaluator": 0, "--validation": HELD_OUT}
    return [*map(str, chain(*cluster.items(), ["--"], *worker.items())), *for_main]


def digest(say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """Makes what shows a launcher's lines: those of its jobs, errors, each warning once, an evaluation now and then."""
    next_s: dict[str, float] = {}  # by a line without its numbers: when such a one is shown again

    def show(line: str) -> None:
        _, is_of_process, text = line.partition(" | ")
        kind, now = re.sub(r"[\d.]+", "", text), clock()
        if is_of_process and not kind.startswith("error"):
            if not WORTH_SHOWING.search(text) or now < next_s.get(kind, now):
                return
            next_s[kind] = math.inf if "warning" in kind else now + SHOW_EVERY_S
        say(line)

    return show


def main(arguments: Sequence[str]) -> int:
    """The command: trains, compares, returns the exit code."""
    given, for_main = parse(arguments)
    begin, began, say = time.monotonic(), date_time(), digest(console)
    get_data.get(given.data_dir / "fashion-mnist", get_data.CHECKSUMS, get_data.SOURCES, console)
    for number, mode in enumerate(MODES, start=1):
        command = cluster_arguments(mode, given, for_main)
        console(f"\n== {number} of {len(MODES)}: {mode} for {given.seconds:g} s, by")
        console(f"scripts/local_cluster.sh {shlex.join(command)}")
        # All modes of a demo replace one earlier run.
        outcome = local_cluster.run(dataclasses.replace(local_cluster.parse(command), began=began), say=say)
        if outcome.exit_code != EXIT_OK or outcome.was_stopped:
            console(f"the demo ends here; the logs so far are in {given.log_base}")
            return outcome.exit_code or EXIT_FORCED
    console("\n== summary and figures")
    target = [] if given.target is None else [f"--target={given.target}"]
    where = ["-b", str(given.log_base.resolve()), "-n", given.network]
    if code := summary.main(where) or draw.main([*where, *target]):
        return code
    console(f"the demo took {time.monotonic() - begin:.0f} s; its logs and figures are in {given.log_base}")
    modes = [metrics.MODES[name] for name in MODES]
    files = {mode: given.log_base / given.network / mode.name / mode.file_name for mode in modes}
    runs = {mode: summary.read_summary(path, console) for mode, path in files.items()}
    for line in last_lines(runs, given.target):
        console(line)
    return EXIT_OK


ONE_RUN = "this is one run of one seed: another day may order them otherwise"


def first_line(times: Mapping[metrics.Mode, metrics.Reached], target: float, metric: Metric = ACCURACY) -> str:
    """The algorithm that reached the target first in one run of each, and its speed-up over the others. Where others
    are not told apart from the soonest, none is the first."""
    goal = f"test {metric.name} {tables.target_text(target, metric)}"
    reached = {mode: its for mode, its in times.items() if 0 < its.by_s < math.inf}
    if not reached:
        return f"no algorithm reached {goal}"
    best, first = min(reached.items(), key=lambda pair: pair[1].by_s)
    beaten, equal = [], []
    for mode, its in sorted(times.items(), key=lambda pair: pair[1].by_s):
        gain = metrics.speed_up(its, first)
        if mode == best:
            continue
        if gain is None or its.best is None:
            beaten.append(f"{mode.title} {'was never evaluated' if gain else 'was there after 0 s, in whole seconds'}")
        elif first.is_apart(its):
            time = f"{tables.time_text(its)} s" if its.is_at_target else f"not within {its.after_s:.1f} s"
            beaten.append(f"{tables.factor_text(gain)} as fast as {mode.title} ({time})")
        else:
            equal.append(tables.not_apart(tables.side_of(best.title, first), tables.side_of(mode.title, its)))
    if equal:
        others = [f"{best.title}: {', '.join(beaten)}"] if beaten else []
        return "; ".join([f"no algorithm is told to be first at {goal}: {equal[0]}", *equal[1:], *others, ONE_RUN])
    return f"{best.title} was first: {', '.join([f'{goal} after {tables.time_text(first)} s', *beaten])}; {ONE_RUN}"


def last_lines(runs: Mapping[metrics.Mode, metrics.Devices], target: float | None) -> list[str]:
    """Doubts, then the algorithm that was first."""
    found = {mode: metrics.evaluating_device(devices, console) for mode, devices in runs.items()}
    metric = next((device.metric for device in found.values() if device), ACCURACY)
    curves = [device.curve for device in found.values() if device]
    doubts = tables.doubt_lines({mode: metrics.doubts_of([devices]) for mode, devices in runs.items()})
    target = tables.target_for(target, metric, curves)
    first = first_line(metrics.times_of(found, target), target, metric)
    return [*doubts, f"{first}; the lines above make the times doubtful" if doubts else first]


if __name__ == "__main__":
    start.run(lambda: main(sys.argv[1:]))
