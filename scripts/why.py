"""Why was my job slow? Where each worker's time went, a trace to look at, and what would have made it faster.

    scripts/why.sh -b logs -n lenet -m esync

reads the logs of a job, real or of simulate.py, writes a trace for ui.perfetto.dev or chrome://tracing, and runs the
job again in virtual time with the times that it finds in the logs: as it was, without each worker, with an ideal
network, with no straggler, and with evaluations that take no time. docs/why.md says what the numbers mean.
Exit codes: 0 done, 2 something to put right first, 130 stopped.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import summary
from algorithms import OWNERS, Algorithm, TransportKind
from config import NO_NETWORK
from flag_values import accuracy, at_least, several
from report import job_logs, metrics, trace, why
from report.job_logs import WorkerLog
from report.measured import measured
from report.metrics import MODES
from report.tables import accuracy_text
from scripts import what_if
from scripts.what_if import NO_EVALUATION, NO_NETWORK_TIME, NO_STRAGGLER, WITHOUT, Change, Job, Virtual
from summary import warning
from trainer.simulation import cluster_file
from utils import EXIT_FORCED, SetupError

TRACE_FILE = "trace.json"
FEW_WORKERS = 8  # each of so many is left out in turn
OF_MANY = 3  # of more, the slowest
SIMULATED = "as simulated"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line; a bad value ends the process with exit code 2."""
    parser = summary.tree_parser(__doc__, prog="scripts/why.sh", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--mode", choices=[*MODES], help="the job's; may be left out where there is only one")
    parser.add_argument("--trace", type=Path, help=f"where the trace goes (BASE/NETWORK/MODE/{TRACE_FILE})")
    parser.add_argument(
        "--max-slices",
        type=at_least(1),
        default=trace.MAX_SLICES,
        help="of the trace, which is cut there (%(default)s)",
    )
    parser.add_argument(
        "--target", type=accuracy, default=0.8, help="test accuracy to compare the times to (%(default)s)"
    )
    parser.add_argument("--logs-only", action="store_true", help="simulate nothing; this needs no MXNet")
    parser.add_argument(
        "--without",
        type=several(at_least(0), "ranks; give whole numbers with commas, such as 0,3"),
        help=f"whom to leave out, each in turn (all; of more than {FEW_WORKERS} the {OF_MANY} slowest)",
    )
    parser.add_argument(
        "--cluster",
        metavar="FILE",
        help="a cluster file, or one of scripts/clusters, that says what the network is: its bandwidths, latencies and "
        "round trips count, by rank, in place of what the logs suggest",
    )
    parser.add_argument(
        "--train", action="store_true", help="simulate with gradients up to the target, for the times to it: needs data"
    )
    parser.add_argument("--data-dir", type=Path, help="where the data is (where the job had it)")
    given = parser.parse_args(arguments)
    for name in ("without", "cluster", "train"):
        if given.logs_only and getattr(given, name):
            parser.error(f"--{name} does nothing with --logs-only: leave one of them out")
    if given.data_dir and not given.train:
        parser.error("--data-dir does nothing without --train: leave it out, or give both")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Says why, and returns the exit code."""
    given = parse(arguments)
    try:
        return summary.run_tool(lambda: _why(given))
    except KeyboardInterrupt:
        return EXIT_FORCED


def _why(given: argparse.Namespace) -> None:
    folder = _folder(given)
    mode = MODES[folder.name]
    algorithm = OWNERS[mode.algorithm.name]
    logs = job_logs.read([path for host in summary.folders(folder) for path in summary.folders(host)], warning)
    title = f"{mode.title}, {given.network}"
    path = given.trace or folder / TRACE_FILE
    in_step = algorithm.transport is TransportKind.SUM
    print(f"{title}: {len(logs)} worker(s), {max(log.elapsed_s for log in logs):.1f} s\n")
    print(why.time_table(logs, measured(logs, algorithm.waits).speeds), end="\n\n")
    print(_told(path, trace.write(path, logs, title, in_step, warning, given.max_slices)), end="\n\n")
    if given.logs_only or not algorithm.is_distributed:
        return
    if importlib.util.find_spec("mxnet") is None:
        raise SetupError("there is no MXNet here to simulate with: take scripts/setup.sh's .venv, or --logs-only")
    _what_if(given, logs, algorithm)


def _folder(given: argparse.Namespace) -> Path:
    network = summary.find_network(given.base, given.network)
    there = [path.name for path in summary.folders(network) if path.name in MODES]
    if given.mode is None and len(there) != 1:
        raise SetupError(
            f"{network} holds {', '.join(there) or 'no job'}: choose one with -m"
            if there
            else f"{network} holds no mode's folder: train first, or give another -b or -n"
        )
    mode = given.mode or there[0]
    if mode not in there:
        raise SetupError(f"{network} holds no folder {mode}, but {', '.join(there) or 'nothing'}: choose with -m")
    return network / mode


def _told(path: Path, written: trace.Written) -> str:
    lines = [f"{path}: {written.slices} slices; open it in ui.perfetto.dev or chrome://tracing"]
    if written.until_s is not None:
        lines.append(f"  cut after {written.until_s:.1f} s of the job, more would be too many slices: --max-slices")
    if written.apart_s is not None:
        lines.append(
            "  each track has its worker's own clock: by these, rounds that end together end "
            f"{1e3 * written.apart_s:.1f} ms apart"
        )
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------------- what if


@dataclass(frozen=True)
class Answer:
    """What the simulations gave.

    Attributes:
        simulated_s: samples/s of the simulation of the job as it was.
        gains: of each change, over that.
    """

    job: Job
    cluster: Virtual
    simulated_s: float
    gains: Sequence[tuple[Change, float]]


def _what_if(given: argparse.Namespace, logs: Sequence[WorkerLog], algorithm: Algorithm) -> None:
    network = cluster_file.read(cluster_file.find(given.cluster)) if given.cluster else None
    job, cluster = what_if.job_of(logs, network)
    if given.train and job.config.network == NO_NETWORK:
        raise SetupError(f"--train: the job was one of -n {NO_NETWORK}, which has no accuracy: leave it out")
    answer = answer_of(job, cluster, algorithm, _left_out(given.without, job))
    times = _scaled(given.target, logs, answer)
    if given.train:
        times = {"": times.get("", "-"), **_trained(given, answer)}
    _print(answer, times, f"s to {accuracy_text(given.target)}")


def answer_of(job: Job, cluster: Virtual, algorithm: Algorithm, left_out: Sequence[Sequence[int]]) -> Answer:
    """Simulates the job as it was, and with each change."""
    _progress("the job as it was")
    cluster, baseline = what_if.calibrated(job, cluster)
    simulated_s, gains = baseline.measured.samples_s, []
    for change in what_if.changes(cluster, algorithm, left_out):
        _progress(change.name)
        gains.append((change, what_if.simulate(job, change.cluster).measured.samples_s / simulated_s))
    return Answer(job, cluster, simulated_s, gains)


def _left_out(asked: Sequence[int] | None, job: Job) -> list[tuple[int, ...]]:
    speeds = job.measured.speeds
    if asked and max(asked) >= len(speeds):
        raise SetupError(f"--without {max(asked)}: the job's ranks are 0 to {len(speeds) - 1}")
    ranks = asked or (range(len(speeds)) if len(speeds) <= FEW_WORKERS else what_if.slowest(speeds, OF_MANY))
    slow = what_if.stragglers(speeds)
    return [*((rank,) for rank in ranks), *([slow] if len(slow) > 1 and not asked else [])]


def _scaled(target: float, logs: Sequence[WorkerLog], answer: Answer) -> dict[str, str]:
    """The time to the target, by the names of the changes: where rounds stay what they were, the accuracy after each
    does too, and its time follows the samples/s. The job's own has no name."""
    curve = job_logs.curve_of(logs)
    seconds = metrics.time_to_accuracy(curve, target)
    if seconds is None:
        return {"": _at_least(curve)} if curve else {}
    same = {change.name: f"{seconds / gain:.1f}" for change, gain in answer.gains if change.keeps_updates}
    return {"": f"{seconds:.1f}", **same}


def _trained(given: argparse.Namespace, answer: Answer) -> dict[str, str]:
    """The times to the target of simulations with gradients, SIMULATED among them."""
    config = answer.job.config
    flags = {"network": config.network, "target_accuracy": given.target}
    flags["data_dir"] = str(given.data_dir or config.data_dir)
    times = {}
    for name, cluster in {SIMULATED: answer.cluster, **{each.name: each.cluster for each, _ in answer.gains}}.items():
        _progress(f"{name}, with gradients")
        curve = what_if.simulate(answer.job, cluster, **flags).curve
        seconds = metrics.time_to_accuracy(curve, given.target)
        times[name] = f"{seconds:.1f}" if seconds is not None else _at_least(curve)
    return times


def _at_least(curve: metrics.Curve) -> str:
    return f"> {curve[-1][0]:.1f}" if curve else "-"


def _print(answer: Answer, times: dict[str, str], column: str) -> None:
    its = answer.job.measured
    rows = [
        why.Row("as measured", its.samples_s, None, times.get("", "-")),
        why.Row(SIMULATED, answer.simulated_s, answer.simulated_s / its.samples_s, times.get(SIMULATED, "-")),
    ]
    rows += [
        why.Row(change.name, gain * its.samples_s, gain, times.get(change.name, "-")) for change, gain in answer.gains
    ]
    print(why.what_if_table(rows, column))
    of_kind = {change.kind: gain for change, gain in answer.gains}
    without = {change.removes: gain for change, gain in answer.gains if change.kind == WITHOUT}
    found = why.Gains(without, of_kind[NO_NETWORK_TIME], of_kind[NO_STRAGGLER], of_kind.get(NO_EVALUATION))
    print("\n" + why.verdict(found, its.speeds, what_if.median_rank(answer.cluster), its.evaluation_s))


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\rsimulating: {what}\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
