"""Why was my job slow? Where each worker's time went, and what would have made it faster.

    scripts/why.sh -b logs -n lenet -m esync

reads the logs of a job, real or of simulate.py, and runs the job again in virtual time with the times from the logs: as
it was, without each worker, with an ideal network, with no straggler, and with evaluations that take no time.
docs/why.md explains the numbers; scripts/advise.sh says which machines and algorithm reach a target first.
Exit codes: 0 done, 2 something to put right first, 130 stopped.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import summary
from algorithms import owner_of
from flag_values import at_least, finite, several
from report import job_logs
from report.job_logs import WorkerLog
from report.measured import MUCH_SLOWER, PURPOSES, Speed, measured, shares
from report.metrics import Reached
from report.tables import TARGET_HELP, aligned, target_for, target_text, time_text
from scripts import what_if
from scripts.what_if import Change
from summary import warning
from utils import SetupError

FEW_WORKERS = 8  # up to this number each worker is left out in turn
OF_MANY = 3  # of more workers, only the slowest
WORTH_TELLING = 1.05  # gain in samples/s from which a change counts


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parses the command line; a bad value ends the process with exit code 2."""
    parser = summary.tree_parser(__doc__, prog="scripts/why.sh", formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "-m", "--mode", type=summary.known_mode, help="the job's; may be left out where there is only one"
    )
    parser.add_argument("--target", type=finite, help=TARGET_HELP)
    parser.add_argument("--logs-only", action="store_true", help="simulate nothing; this needs msgspec alone")
    parser.add_argument(
        "--without",
        type=several(at_least(0), "ranks; give whole numbers with commas, such as 0,3"),
        help=f"workers to leave out, each in turn (all; of more than {FEW_WORKERS} the {OF_MANY} slowest)",
    )
    given = parser.parse_args(arguments)
    if given.logs_only and given.without:
        parser.error("--without does nothing with --logs-only: leave one of them out")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Says why, and returns the exit code."""
    given = parse(arguments)
    return summary.run_tool(lambda: _why(given))


def _why(given: argparse.Namespace) -> None:
    network = summary.find_network(given.base, given.network)
    mode, *others = summary.modes_in(network, given.mode or "all")
    if others:
        raise SetupError(f"{network} holds {', '.join(each.name for each in (mode, *others))}: choose one with -m")
    algorithm = owner_of(mode.algorithm.name)
    hosts = summary.folders(network / mode.name)
    logs = job_logs.read([path for host in hosts for path in summary.folders(host)], warning)
    print(f"{mode.title}, {given.network}: {len(logs)} worker(s), {max(log.elapsed_s for log in logs):.1f} s\n")
    print(_time_table(logs, measured(logs, algorithm.waits).speeds), end="\n\n")
    if given.logs_only or not algorithm.is_distributed:
        return
    _what_if(given, logs)


# ------------------------------------------------------------------------------------------------- from the logs


def _time_table(logs: Sequence[WorkerLog], speeds: Sequence[Speed]) -> str:
    """A row a worker: shares of its time, milliseconds of a step, spread of its step times."""
    rows = [["worker", "samples/s", "steps", "ms a step", "spread", *PURPOSES, "other"]]
    slow = []
    for rank, (log, speed) in enumerate(zip(logs, speeds, strict=True)):
        samples = sum(one.samples for one in log.rounds)
        rows.append(
            [
                f"{rank} {log.name}",
                f"{samples / log.elapsed_s:.1f}",
                str(speed.steps),
                f"{1e3 * speed.mean_step_s:.1f}",
                f"{speed.spread:.0%}",
                *(f"{share:.1%}" for share in shares(log).values()),
            ]
        )
        if speed.slow:
            periods = ((1e3 * one.extra_s, one.start_s, one.start_s + one.duration_s) for one in speed.slow)
            told = ", ".join(f"{ms:.0f} ms a step more from {start:.0f} s to {end:.0f} s" for ms, start, end in periods)
            slow.append(f"worker {rank} was slower for a while: {told}")
    return "\n".join([*aligned(rows), *slow])


# ------------------------------------------------------------------------------------------------------- what if


def _what_if(given: argparse.Namespace, logs: Sequence[WorkerLog]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job, its = what_if.job_of(logs, Path(folder))
        left_out = _left_out(given.without, its.speeds)
        _progress("the job as it was")
        job, simulated = what_if.calibrated(job, its)
        gains: list[tuple[Change, float]] = []
        if abs(simulated.samples_s / its.samples_s - 1) <= what_if.MOST_OFF:
            for change in what_if.changes(job, its, left_out):
                _progress(change.name)
                gains.append((change, what_if.simulate(change.job).samples_s / simulated.samples_s))
    device = job_logs.evaluating(logs)
    target = target_for(given.target, device.metric, [device.curve])
    reached = device.reached(target)
    goal = f"s to {'' if device.metric.is_accuracy else f'{device.metric.name} '}{target_text(target, device.metric)}"
    times = simulated.samples_s / its.samples_s
    rows = [
        ["", "samples/s", "times", goal],
        ["as measured", f"{its.samples_s:.1f}", "", time_text(reached)],
        ["as simulated", f"{simulated.samples_s:.1f}", f"{times:.2f}", "-"],
        *(
            [change.name, f"{gain * its.samples_s:.1f}", f"{gain:.2f}", _time_with(change, gain, reached)]
            for change, gain in gains
        ),
    ]
    print("\n".join(aligned(rows)), verdict(times, gains), sep="\n\n")


def _left_out(asked: Sequence[int] | None, speeds: Sequence[Speed]) -> list[tuple[int, ...]]:
    if asked and max(asked) >= len(speeds):
        raise SetupError(f"--without {max(asked)}: the job's ranks are 0 to {len(speeds) - 1}")
    ranks = sorted(range(len(speeds)), key=lambda rank: speeds[rank].mean_step_s + speeds[rank].exchange_s)
    chosen = asked or sorted(ranks if len(speeds) <= FEW_WORKERS else ranks[-OF_MANY:])
    slowest_s = MUCH_SLOWER * what_if.usual_step_s(speeds)
    slow = tuple(rank for rank, speed in enumerate(speeds) if speed.mean_step_s > slowest_s)
    return [*((rank,) for rank in chosen), *([slow] if len(slow) > 1 and not asked else [])]


def _time_with(change: Change, gain: float, reached: Reached) -> str:
    """The time to the target, where the weights after each round stay the same: then the metric after a round does too,
    and its time is inversely proportional to the samples/s."""
    if not (change.keeps_updates and reached.is_at_target):
        return "-"
    return time_text(reached._replace(low_s=reached.low_s / gain, by_s=reached.by_s / gain))


def verdict(simulated: float, gains: Sequence[tuple[Change, float]]) -> str:
    """One sentence: what held the job up, or why that is not told. `simulated` times the job's speed is that of its
    simulation."""
    if not gains:
        return (
            f"No what-if is told: simulated as it was, the job does {simulated:.2f} times the measured samples/s, "
            f"more than {what_if.MOST_OFF:.0%} off. Its logs do not say why, such as other work on the machine."
        )
    change, gain = max((pair for pair in gains if pair[0].told), key=lambda pair: pair[1])
    (even,) = (gain for change, gain in gains if not change.told)
    if gain < WORTH_TELLING <= even:
        return (
            "Nothing held the job up, but there are slow workers: if none were slower than the median one, "
            f"it would do {even:.2f} times the samples/s."
        )
    if gain < WORTH_TELLING:
        return f"Nothing held the job up: no change would give {WORTH_TELLING - 1:.0%} more samples/s."
    return f"{change.told} {gain:.2f} times the samples/s."


def _progress(what: str) -> None:
    if sys.stderr.isatty():
        print(f"\rsimulating: {what}\033[K", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    start.run(main)
