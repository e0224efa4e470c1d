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
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import summary
from algorithms import TransportKind, owner_of
from config import AUTO, FIELDS, NO_NETWORK, Config
from flag_values import at_least, finite, several
from report import job_logs
from report.job_logs import WorkerLog
from report.measured import MUCH_SLOWER, PURPOSES, Measured, Speed, mean_of, measured, shares
from report.metrics import Reached
from report.tables import TARGET_HELP, aligned, target_for, target_text, time_text
from summary import warning
from trainer import straggler_trace
from trainer.runtime.environment import set_unless_given
from trainer.simulation.cluster_file import ClusterProfile, Worker
from trainer.simulation.virtual_job import HOST, VirtualJob
from utils import SetupError

FEW_WORKERS = 8  # up to this number each worker is left out in turn
OF_MANY = 3  # of more workers, only the slowest
WORTH_TELLING = 1.05  # gain in samples/s from which a change counts
MAX_STEPS, MIN_STEPS = 2500, 20  # of all workers in a simulation, about 2 s; of the slowest, if the job has as many
MOST_OFF = 0.1  # relative error of the simulated samples/s of the job as it was above which no change is told
MAX_CALIBRATIONS, NEAR = 3, 0.02  # relative error at which a simulated exchange counts as the measured one
SAME_BATCHES = 0.02  # relative difference allowed between the samples of a step and -b
_OF_THE_REAL_JOB = ("resume", "checkpoint", "ckpt_frequency", "straggler_trace", "evaluator", "on_worker_death")


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
    if algorithm.is_distributed and not given.logs_only:
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

# The cluster is the measured one (report/measured.py): each worker's step times with their spread and its slow periods,
# the time of an exchange as latency, evaluations. The trainers are those of the job, without gradients.


@dataclass(frozen=True)
class Change:
    """One change of a job."""

    name: str
    job: VirtualJob
    told: str  # what held the job up, should this gain most: a sentence up to the gain; empty: it does not say
    keeps_updates: bool = False  # the weights after each round stay the same


def job_of(logs: Sequence[WorkerLog], folder: Path) -> tuple[VirtualJob, Measured]:
    """The job that these logs describe, and its speed. Slow periods become files in `folder`. Raises SetupError if the
    logs do not describe enough."""
    config = _config(logs)
    its = measured(logs, config.algorithm.waits)
    for log, speed in zip(logs, its.speeds, strict=True):
        if abs(speed.samples_per_step / config.batch_size - 1) > SAME_BATCHES:
            raise SetupError(
                f"{log.name} took {speed.samples_per_step:.1f} samples a step, not the {config.batch_size} of -b: the "
                "logs do not say what its steps would take with other batches, so there is no what-if"
            )
    steps_s = sum(speed.steps for speed in its.speeds) / its.seconds
    longest_s = max(mean_of(speed.step_s, speed.spread) for speed in its.speeds)
    seconds = min(its.seconds, max(MAX_STEPS / steps_s, MIN_STEPS * longest_s))
    share = seconds / its.seconds  # of the job: each phase and slow period is shortened to the same one
    rows = []
    for rank, speed in enumerate(its.speeds):
        slow = [replace(each, start_s=share * each.start_s, duration_s=share * each.duration_s) for each in speed.slow]
        trace = straggler_trace.write(folder / f"trace-{rank}.csv", slow) if slow else None
        row = Worker(speed.step_s, trace, step_spread=speed.spread, latency_s=speed.exchange_s / 2)
        rows.append(replace(row, state_server_round_trip_s=speed.round_trip_s))
    own: dict[str, Any] = {
        **{name: FIELDS[name].default for name in _OF_THE_REAL_JOB},
        **{"job": "", "network": NO_NETWORK, "log_form": "lines", "evaluate": AUTO, "target": None, "max_rounds": 0},
        **{"max_seconds": seconds, "target_accuracy": 0.0, "query_delay": 0.0},  # a round trip includes the delay
        "train_steps": tuple(max(1, round(share * steps)) for steps in config.settings.train_steps),
    }
    if config.evaluates_beside and its.evaluations:  # not always when one was due
        own["eval_seconds"] = its.seconds / its.evaluations
    size, cluster = float(logs[0].run.get("parameter_bytes") or 0), ClusterProfile(tuple(rows))
    return VirtualJob(config.but(**own), cluster, "what-if", size, its.evaluation_s), its


def _config(logs: Sequence[WorkerLog]) -> Config:
    flags = next((log.run["config"] for log in logs if isinstance(log.run.get("config"), dict)), None)
    if flags is None:
        raise SetupError("no run.json says with which flags the job ran, as in published logs: there is no what-if")
    if (numbers := {log.run.get("num_workers", len(logs)) for log in logs}) != {len(logs)}:
        told = f"the job had {', '.join(map(str, numbers))} workers, the logs are of {len(logs)}"
        raise SetupError(f"{told}: copy those of all hosts there, and remove what other runs left")
    if flags.get("collective", "ps") != "ps":  # the name of --exchange in version 0.6.0
        flags = {**flags, "exchange": flags["collective"]}
    known: dict[str, Any] = {name: flags[name] for name in FIELDS if name in flags and name != "job"}
    return Config(**known | {name: tuple(value) for name, value in known.items() if isinstance(value, list)})


def _mean_step_s(row: Worker) -> float:
    """Without slow periods."""
    return mean_of(row.step_time_s, row.step_spread)


def usual_step_s(speeds: Sequence[Speed]) -> float:
    """The median worker's mean step, over the whole job."""
    return statistics.median_low(speed.mean_step_s for speed in speeds)


def changes(job: VirtualJob, its: Measured, left_out: Sequence[Sequence[int]]) -> Iterator[Change]:
    """All changes of a job of which `its` was measured; `left_out` holds sets of ranks, each of which is left out
    once."""
    # In these algorithms a round is the same work whatever the times are, and each update has all workers' work in it.
    same = job.config.algorithm.transport is TransportKind.SUM and job.config.algorithm.rule is None
    rows, usual_s = job.cluster.workers, usual_step_s(its.speeds)

    def of(workers: Iterable[Worker]) -> VirtualJob:
        return replace(job, cluster=ClusterProfile(tuple(workers)))

    for ranks in left_out:
        if rest := [row for rank, row in enumerate(rows) if rank not in ranks]:
            plural = "s" * (len(ranks) > 1)
            steps_s = ", ".join(f"{its.speeds[rank].mean_step_s:.3g} s" for rank in ranks)
            told = (
                f"Worker{plural} {' and '.join(map(str, ranks))} held the others up: with steps of {steps_s}, where "
                f"the median worker's take {usual_s:.3g} s; without, the job would do"
            )
            yield Change(f"without worker{plural} {', '.join(map(str, ranks))}", of(rest), told)
    ideal = of(replace(row, latency_s=0.0, state_server_round_trip_s=0.0) for row in rows)
    told = (
        f"The network held the job up: an exchange takes {max(speed.exchange_s for speed in its.speeds):.3g} s, the "
        f"median worker's step {usual_s:.3g} s; an ideal one would give"
    )
    yield Change("with an ideal network", ideal, told, same)
    median = sorted(range(len(rows)), key=lambda rank: _mean_step_s(rows[rank]))[(len(rows) - 1) // 2]
    steps = [min(row, rows[median], key=_mean_step_s) for row in rows]
    network = [{"latency_s": row.latency_s, "state_server_round_trip_s": row.state_server_round_trip_s} for row in rows]
    even = of(replace(step, straggler_trace=None, **links) for step, links in zip(steps, network, strict=True))
    yield Change(f"no worker slower than the median one, worker {median}", even, "", same)
    if job.evaluation_s:
        told = f"Evaluations of {its.evaluation_s:.3g} s each held the job up: in no time, they would give"
        yield Change("evaluations in no time", replace(job, evaluation_s=0.0), told, same)


def calibrated(job: VirtualJob, its: Measured) -> tuple[VirtualJob, Measured]:
    """The job with latencies at which simulated exchanges take as long as the measured ones, and its speed. The
    algorithm determines how many latencies an exchange takes, so they are fitted."""
    outcome = simulate(job)
    for _ in range(MAX_CALIBRATIONS):
        pairs = [(a.exchange_s, b.exchange_s) for a, b in zip(its.speeds, outcome.speeds, strict=True)]
        slack_s = NEAR * min(map(_mean_step_s, job.cluster.workers))
        if all(abs(wanted - got) <= NEAR * wanted + slack_s for wanted, got in pairs):
            break
        rows = zip(job.cluster.workers, pairs, strict=True)
        workers = [replace(row, latency_s=row.latency_s * (a / b if b > 0 else 1.0)) for row, (a, b) in rows]
        job = replace(job, cluster=ClusterProfile(tuple(workers)))
        outcome = simulate(job)
    return job, outcome


def simulate(job: VirtualJob) -> Measured:
    """The speed of the job in virtual time. Raises SetupError if the flags and the cluster do not fit together."""
    # As in simulate.py: one operation at a time, on one core. MXNet reads it when it is imported.
    set_unless_given("MXNET_ENGINE_TYPE", "NaiveEngine")
    set_unless_given("OMP_NUM_THREADS", "1")
    from trainer.simulation import virtual_cluster

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, HOST)
        virtual_cluster.VirtualRun(replace(job, config=job.config.but(log_dir=str(folder)))).run()
        return measured(job_logs.read(folder.glob("cpu*"), lambda text: None), job.config.algorithm.waits)


# ---------------------------------------------------------------------------------------------------- the answer


def _what_if(given: argparse.Namespace, logs: Sequence[WorkerLog]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        job, its = job_of(logs, Path(folder))
        left_out = _left_out(given.without, its.speeds)  # checked first: a simulation takes seconds
        _progress("the job as it was")
        job, simulated = calibrated(job, its)
        gains: list[tuple[Change, float]] = []
        if abs(simulated.samples_s / its.samples_s - 1) <= MOST_OFF:
            for change in changes(job, its, left_out):
                _progress(change.name)
                gains.append((change, simulate(change.job).samples_s / simulated.samples_s))
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
    slowest_s = MUCH_SLOWER * usual_step_s(speeds)
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
            f"more than {MOST_OFF:.0%} off. Its logs do not say why, such as other work on the machine."
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
