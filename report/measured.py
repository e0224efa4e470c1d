"""Workers' speeds from a job's logs: steps and their spread, exchanges, questions, evaluations. Pure.

Where workers wait for each other in an exchange, only the log of the last one to come shows the exchange without
waiting. So all workers get the same time, the shortest of each round. It includes what the exchange computes (sums,
updates of weights).
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from report.job_logs import TimedRound, WorkerLog, timed_rounds
from trainer.emulation import Slowdown
from trainer.run_logs.measure import ABANDONED, AGGREGATION_STAGES, CHECK_READY, COMPUTING_STAGES, EVALUATION, SAVING

EVALUATION_STAGES = (EVALUATION, SAVING)
WINDOWS = 12  # equal parts of a job, in which slow periods are searched
STEPS_PER_WINDOW = 3  # on average, the fewest with which they are
MUCH_SLOWER = 1.25  # factor on the median step from which a window is a slow period
ALL_UPLOAD = 0.9  # share of rounds with an upload below which exchanges run one after the other, beside the steps


@dataclass(frozen=True)
class TimeShares:
    """Seconds of a worker's time by purpose."""

    computing_s: float
    exchange_s: float  # with waiting for others
    questions_s: float
    evaluation_s: float
    abandoned_s: float
    other_s: float  # log writing, checkpoints


@dataclass(frozen=True)
class Speed:
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


@dataclass(frozen=True)
class Measured:
    """A job's speed."""

    speeds: tuple[Speed, ...]  # by rank
    evaluation_s: float  # of one evaluation; 0 without any
    evaluations: int  # that this is the mean of
    seconds: float  # without the last evaluation, which delays no training
    samples_s: float


def measured(logs: Sequence[WorkerLog], waits: bool) -> Measured:
    """The speed of a job from the logs of all workers; `waits`: workers wait for each other in an exchange."""
    rounds = [list(timed_rounds(log.rounds)) for log in logs]
    exchanges = [[(one.logged.number, one.logged.seconds(*AGGREGATION_STAGES)) for one in each] for each in rounds]
    if waits:
        own_s = [_shortest(exchanges)] * len(logs)
    else:
        own_s = [_own_exchange(log, each) for log, each in zip(logs, exchanges, strict=True)]
    trips_s = [_question(each) for each in rounds]
    if not all(_waits_for_answers(log) for log in logs):  # a log of non-blocking questions has no time of the answer
        trips_s = [max(trips_s)] * len(logs)
    evaluations = [
        seconds
        for each in rounds
        for one in each[:-1]
        if (seconds := one.logged.seconds(*EVALUATION_STAGES)) or one.logged.evaluation
    ]
    seconds = max(log.elapsed_s - log.rounds[-1].seconds(*EVALUATION_STAGES) for log in logs)
    samples = sum(one.samples for log in logs for one in log.rounds)
    return Measured(
        tuple(_speed(*each) for each in zip(logs, rounds, own_s, trips_s, strict=True)),
        statistics.fmean(evaluations) if evaluations else 0.0,
        len(evaluations),
        seconds,
        samples / seconds,
    )


def shares(log: WorkerLog) -> TimeShares:
    """A worker's time by purpose."""
    computing_s, exchange_s, questions_s, evaluation_s, abandoned_s = (
        sum(one.seconds(*stages) for one in log.rounds)
        for stages in (COMPUTING_STAGES, AGGREGATION_STAGES, (CHECK_READY,), EVALUATION_STAGES, (ABANDONED,))
    )
    other_s = log.elapsed_s - computing_s - exchange_s - questions_s - evaluation_s - abandoned_s
    return TimeShares(computing_s, exchange_s, questions_s, evaluation_s, abandoned_s, max(0.0, other_s))


# --------------------------------------------------------------------------------------------------------- steps


def _speed(log: WorkerLog, rounds: Sequence[TimedRound], exchange_s: float, round_trip_s: float) -> Speed:
    steps = list(step_times(rounds))
    if not steps:
        return Speed(0, 0.0, 0.0, 0.0, 0.0, (), exchange_s, round_trip_s)
    slow, usual = _slow_times(steps, log.elapsed_s)
    logarithms = [math.log(seconds) for seconds in usual]
    spread = statistics.pstdev(logarithms)
    step_s = statistics.fmean(usual) / mean_of(1.0, spread)  # so that the mean is the one that was measured
    samples = sum(one.samples for one in log.rounds)
    mean_s = statistics.fmean(seconds for _, seconds in steps)
    return Speed(len(steps), samples / len(steps), mean_s, step_s, spread, slow, exchange_s, round_trip_s)


def step_times(rounds: Sequence[TimedRound]) -> Iterable[tuple[float, float]]:
    """(begin, seconds) of each complete local step: its computing and an equal part of the time outside all stages."""
    steps = [stages for one in rounds for stages in one.step_slices()]
    more_s = max(0.0, sum(one.unlogged_s for one in rounds)) / max(1, len(steps))
    for stages in steps:
        computing_s = sum(each.end_s - each.begin_s for each in stages if each.stage in COMPUTING_STAGES)
        if computing_s + more_s > 0:
            yield stages[0].begin_s, computing_s + more_s


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


# --------------------------------------------------------------------------------------- exchanges and questions


def _shortest(exchanges: Sequence[Sequence[tuple[int, float]]]) -> float:
    """Median over the rounds of the exchange of the last worker to come, which does not wait."""
    by_round: dict[int, list[float]] = {}
    for of_worker in exchanges:
        for number, seconds in of_worker:
            by_round.setdefault(number, []).append(seconds)
    common = [min(seconds) for seconds in by_round.values() if len(seconds) == len(exchanges)]
    return statistics.median(common) if common else 0.0


def _own_exchange(log: WorkerLog, exchanges: Sequence[tuple[int, float]]) -> float:
    uploads = sum(one.bytes_pushed != 0 for one in log.rounds)
    if uploads < ALL_UPLOAD * len(log.rounds):
        return log.elapsed_s / max(1, uploads)
    return statistics.fmean(seconds for _, seconds in exchanges)


def _question(rounds: Sequence[TimedRound]) -> float:
    asked = [each.end_s - each.begin_s for one in rounds for each in one.slices if each.stage == CHECK_READY]
    return statistics.median(asked) if asked else 0.0


def _waits_for_answers(log: WorkerLog) -> bool:
    return bool(log.run_file.flag("query") == "blocking")
