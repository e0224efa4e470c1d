"""Workers' speeds from a job's logs: steps and their spread, exchanges, questions, evaluations. Pure.

Where workers wait for each other in an exchange, only the log of the last one to come shows the exchange without
waiting. So all workers get the same time, the shortest of each round. It includes what the exchange computes (sums,
updates of weights).
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from esync import measure as stages
from report.job_logs import WorkerLog
from trainer.emulation import Slowdown
from trainer.run_logs.rounds import Round, seconds_in

EVALUATION_STAGES = (stages.EVALUATION, stages.SAVING)
PURPOSES = {
    "computing": stages.COMPUTING_STAGES,
    "exchange and wait": stages.AGGREGATION_STAGES,
    "questions": (stages.CHECK_READY,),
    "evaluation": EVALUATION_STAGES,
    "given up": (stages.ABANDONED,),
}
WINDOWS = 12  # equal parts of a job, in which slow periods are searched
STEPS_PER_WINDOW = 3  # on average, the fewest with which they are
MUCH_SLOWER = 1.25  # factor on the median step from which a window is a slow period
ALL_UPLOAD = 0.9  # share of rounds with an upload below which exchanges run one after the other, beside the steps


class Speed(NamedTuple):
    """One worker's speed."""

    steps: int  # number of complete steps
    samples_per_step: float  # mean
    mean_step_s: float  # of all steps
    step_s: float  # median of the steps outside slow periods, whose times are taken as lognormal
    spread: float  # standard deviation of their logarithms
    slow: tuple[Slowdown, ...]  # periods in which steps took longer, and by how much
    exchange_s: float  # pushes and pulls of a round, without waiting for others
    round_trip_s: float  # of a question to the state server


def mean_of(step_s: float, spread: float) -> float:
    """Mean of lognormal times with this median and standard deviation of the logarithms."""
    return step_s * math.exp(spread**2 / 2)


class Measured(NamedTuple):
    """A job's speed."""

    speeds: tuple[Speed, ...]  # by rank
    evaluation_s: float  # of one evaluation; 0 without any
    evaluations: int  # that this is the mean of
    seconds: float  # without the last evaluation, which delays no training
    samples_s: float


def measured(logs: Sequence[WorkerLog], waits: bool) -> Measured:
    """The speed of a job from the logs of all workers; `waits`: workers wait for each other in an exchange."""
    own_s = [_shortest(logs)] * len(logs) if waits else [_own_exchange(log) for log in logs]
    steps = [[times for one in log.rounds for times in one.steps.values()] for log in logs]
    asked = [[times[stages.CHECK_READY] for times in its if stages.CHECK_READY in times] for its in steps]
    trips_s = [statistics.median(its) if its else 0.0 for its in asked]
    if any(log.run_file.flag("query") != "blocking" for log in logs):  # else a log has no time of the answer
        trips_s = [max(trips_s)] * len(logs)
    evaluations = [
        seconds
        for log in logs
        for one in log.rounds[:-1]
        if (seconds := one.seconds(*EVALUATION_STAGES)) or one.evaluation
    ]
    seconds = max(log.elapsed_s - log.rounds[-1].seconds(*EVALUATION_STAGES) for log in logs)
    samples = sum(one.samples for log in logs for one in log.rounds)
    return Measured(
        tuple(_speed(*each) for each in zip(logs, own_s, trips_s, strict=True)),
        statistics.fmean(evaluations) if evaluations else 0.0,
        len(evaluations),
        seconds,
        samples / seconds,
    )


def shares(log: WorkerLog) -> dict[str, float]:
    """Shares of a worker's time by purpose."""
    found = {name: sum(one.seconds(*its) for one in log.rounds) for name, its in PURPOSES.items()}
    found["other"] = max(0.0, log.elapsed_s - sum(found.values()))  # log writing, checkpoints
    return {name: seconds / log.elapsed_s for name, seconds in found.items()}


# --------------------------------------------------------------------------------------------------------- steps


def _speed(log: WorkerLog, exchange_s: float, round_trip_s: float) -> Speed:
    steps = list(step_times(log.rounds))
    if not steps:
        return Speed(0, 0.0, 0.0, 0.0, 0.0, (), exchange_s, round_trip_s)
    slow, usual = _slow_times(steps, log.elapsed_s)
    logarithms = [math.log(seconds) for seconds in usual]
    spread = statistics.pstdev(logarithms)
    step_s = statistics.fmean(usual) / mean_of(1.0, spread)  # so that the mean is the one that was measured
    samples = sum(one.samples for one in log.rounds)
    mean_s = statistics.fmean(seconds for _, seconds in steps)
    return Speed(len(steps), samples / len(steps), mean_s, step_s, spread, slow, exchange_s, round_trip_s)


def step_times(rounds: Sequence[Round]) -> Iterable[tuple[float, float]]:
    """(begin, seconds) of each complete local step: its computing and an equal part of the time outside all stages."""
    number, before_s, unlogged_s = 0, 0.0, 0.0
    for one in rounds:
        if one.number == number + 1:  # else the round before is missing
            unlogged_s += one.elapsed_s - before_s - one.stages_s
        number, before_s = one.number, one.elapsed_s
    more_s = max(0.0, unlogged_s) / max(1, sum(one.complete for one in rounds))
    for one in rounds:
        begin_s = one.elapsed_s - one.stages_s
        for times in one.steps.values():
            computing_s = seconds_in([times], stages.COMPUTING_STAGES)
            if stages.FORWARD_BACKWARD in times and computing_s + more_s > 0:
                yield begin_s, computing_s + more_s
            begin_s += sum(times.values())


def _slow_times(steps: Sequence[tuple[float, float]], elapsed_s: float) -> tuple[tuple[Slowdown, ...], list[float]]:
    """A worker's slow periods, and the times of all steps outside them."""
    everything = [seconds for _, seconds in steps]
    if len(steps) < STEPS_PER_WINDOW * WINDOWS:
        return (), everything
    length_s = elapsed_s / WINDOWS
    windows: dict[int, list[float]] = {}
    for begin_s, seconds in steps:
        windows.setdefault(min(WINDOWS - 1, int(begin_s / length_s)), []).append(seconds)
    medians = {number: statistics.median(of_it) for number, of_it in windows.items()}
    # The lower quartile: a worker may be slow for more than half of a job.
    quick = sorted(medians.values())[len(medians) // 4]
    slow = {number for number, median in medians.items() if median > MUCH_SLOWER * quick}
    usual = [seconds for number, of_it in windows.items() if number not in slow for seconds in of_it]
    mean_s = statistics.fmean(usual)
    extra = {number: statistics.fmean(windows[number]) - mean_s for number in sorted(slow)}
    return tuple(Slowdown(n * length_s, length_s, extra_s) for n, extra_s in extra.items() if extra_s > 0), usual


# ----------------------------------------------------------------------------------------------------- exchanges


def _shortest(logs: Sequence[WorkerLog]) -> float:
    """Median over the rounds of the exchange of the last worker to come, which does not wait."""
    by_round: dict[int, list[float]] = {}
    for one in (one for log in logs for one in log.rounds):
        by_round.setdefault(one.number, []).append(one.seconds(*stages.AGGREGATION_STAGES))
    common = [min(seconds) for seconds in by_round.values() if len(seconds) == len(logs)]
    return statistics.median(common) if common else 0.0


def _own_exchange(log: WorkerLog) -> float:
    uploads = sum(one.bytes_pushed != 0 for one in log.rounds)
    if uploads < ALL_UPLOAD * len(log.rounds):
        return log.elapsed_s / max(1, uploads)
    return statistics.fmean(one.seconds(*stages.AGGREGATION_STAGES) for one in log.rounds)
