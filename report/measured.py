"""What a job's logs say of its workers' speed: steps and their spread, exchanges, questions, evaluations. Pure.

From the logs alone, so some things cannot be told apart. Where workers wait for each other in an exchange, its own time
shows only on the worker that comes last: so there all workers are taken to have the same, the shortest of each round.
What the exchange does beside sending (adding up, updating weights) is in it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from report.job_logs import LaidOut, WorkerLog, laid_out
from trainer.run_logs.measure import ABANDONED, AGGREGATION_STAGES, CHECK_READY, COMPUTING_STAGES, EVALUATION, SAVING
from trainer.run_logs.round_log import seconds_in
from trainer.straggler_trace import Slowdown

EVALUATION_STAGES = (EVALUATION, SAVING)
WINDOWS = 12  # equal parts of a job, in each of which a worker's steps are looked at
STEPS_PER_WINDOW = 3  # on average at least, else a worker's steps say nothing of a part
MUCH_SLOWER = 1.25  # a part in which the median step takes so many times as long is one of a transient straggler
ALL_UPLOAD = 0.9  # of the rounds; where fewer do, exchanges run beside the steps, one after the other


@dataclass(frozen=True)
class Shares:
    """Where a worker's time went, in seconds."""

    computing_s: float
    exchange_s: float  # with the wait for others
    questions_s: float
    evaluation_s: float
    abandoned_s: float
    other_s: float  # log writing, checkpoints


@dataclass(frozen=True)
class Speed:
    """Of one worker; seconds.

    Attributes:
        steps: complete ones.
        samples_per_step: mean.
        mean_step_s: of all steps.
        step_s: of a usual step: the logarithms of step times are taken to be normal around its logarithm.
        spread: their standard deviation.
        slow: when steps took longer than usual for a while, and by how much.
        exchange_s: pushes and pulls of a round, without waiting for others.
        round_trip_s: of a question to the state server.
    """

    steps: int
    samples_per_step: float
    mean_step_s: float
    step_s: float
    spread: float
    slow: tuple[Slowdown, ...]
    exchange_s: float
    round_trip_s: float


def mean_of(step_s: float, spread: float) -> float:
    """The mean of lognormal times, from their median and the standard deviation of their logarithms."""
    return step_s * math.exp(spread**2 / 2)


@dataclass(frozen=True)
class Measured:
    """A job; workers by rank."""

    speeds: tuple[Speed, ...]
    evaluation_s: float  # of one evaluation; 0: there were none
    seconds: float
    samples_s: float


def measured(logs: Sequence[WorkerLog], waits: bool) -> Measured:
    """What the logs of all workers say.

    Args:
        waits: workers wait for each other in an exchange.
    """
    rounds = [list(laid_out(log.rounds)) for log in logs]
    exchanges = [[(one.record["num_iters"], _in(one, AGGREGATION_STAGES)) for one in each] for each in rounds]
    if waits:
        own_s = [_shortest(exchanges)] * len(logs)
    else:
        own_s = [_own_exchange(log, each) for log, each in zip(logs, exchanges, strict=True)]
    trips_s = [_question(each) for each in rounds]
    if not all(_waits_for_answers(log) for log in logs):  # who trains on meanwhile has no time of its own in the log
        trips_s = [max(trips_s)] * len(logs)
    evaluations = [
        seconds
        for each in rounds
        for one in each
        if (seconds := _in(one, EVALUATION_STAGES)) or "accuracy" in one.record
    ]
    seconds = max(log.elapsed_s for log in logs)
    samples = sum(record["num_samples"] for log in logs for record in log.rounds)
    return Measured(
        tuple(_speed(*each) for each in zip(logs, rounds, own_s, trips_s, strict=True)),
        statistics.fmean(evaluations) if evaluations else 0.0,
        seconds,
        samples / seconds,
    )


def shares(log: WorkerLog) -> Shares:
    """Where one worker's time went."""
    steps = [times for record in log.rounds for times in record["time"].values()]
    computing_s, exchange_s, questions_s, evaluation_s, abandoned_s = (
        seconds_in(steps, stages)
        for stages in (COMPUTING_STAGES, AGGREGATION_STAGES, (CHECK_READY,), EVALUATION_STAGES, (ABANDONED,))
    )
    other_s = log.elapsed_s - computing_s - exchange_s - questions_s - evaluation_s - abandoned_s
    return Shares(computing_s, exchange_s, questions_s, evaluation_s, abandoned_s, max(0.0, other_s))


# --------------------------------------------------------------------------------------------------------- steps


def _speed(log: WorkerLog, rounds: Sequence[LaidOut], exchange_s: float, round_trip_s: float) -> Speed:
    steps = list(step_times(rounds))
    if not steps:
        return Speed(0, 0.0, 0.0, 0.0, 0.0, (), exchange_s, round_trip_s)
    slow, usual = _slow_times(steps, log.elapsed_s)
    logarithms = [math.log(seconds) for seconds in usual]
    spread = statistics.pstdev(logarithms)
    step_s = statistics.fmean(usual) / mean_of(1.0, spread)  # so that the mean is the one that was measured
    samples = sum(record["num_samples"] for record in log.rounds)
    mean_s = statistics.fmean(seconds for _, seconds in steps)
    return Speed(len(steps), samples / len(steps), mean_s, step_s, spread, slow, exchange_s, round_trip_s)


def step_times(rounds: Sequence[LaidOut]) -> Iterable[tuple[float, float]]:
    """When each complete local step began, and what it took: computing, and its part of what no stage counts."""
    steps = [stages for one in rounds for stages in one.step_slices()]
    more_s = max(0.0, sum(one.unlogged_s for one in rounds)) / max(1, len(steps))
    for stages in steps:
        computing_s = sum(each.end_s - each.begin_s for each in stages if each.stage in COMPUTING_STAGES)
        if computing_s + more_s > 0:
            yield stages[0].begin_s, computing_s + more_s


def _slow_times(steps: Sequence[tuple[float, float]], elapsed_s: float) -> tuple[tuple[Slowdown, ...], list[float]]:
    """When a worker was slower than usual for a while, and the times of all other steps."""
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
    """The median over the rounds of what the last worker to come, which waits for nobody, needs for its exchange."""
    by_round: dict[int, list[float]] = {}
    for of_worker in exchanges:
        for number, seconds in of_worker:
            by_round.setdefault(number, []).append(seconds)
    common = [min(seconds) for seconds in by_round.values() if len(seconds) == len(exchanges)]
    return statistics.median(common) if common else 0.0


def _own_exchange(log: WorkerLog, exchanges: Sequence[tuple[int, float]]) -> float:
    uploads = sum(bool(record.get("bytes_pushed", 1)) for record in log.rounds)
    if uploads < ALL_UPLOAD * len(log.rounds):
        return log.elapsed_s / max(1, uploads)
    return statistics.fmean(seconds for _, seconds in exchanges)


def _question(rounds: Sequence[LaidOut]) -> float:
    asked = [each.end_s - each.begin_s for one in rounds for each in one.slices if each.stage == CHECK_READY]
    return statistics.median(asked) if asked else 0.0


def _waits_for_answers(log: WorkerLog) -> bool:
    config: Mapping[str, Any] = log.run.get("config") or {}
    return config.get("query") == "blocking"


def _in(one: LaidOut, stages: Sequence[str]) -> float:
    return sum((each.end_s - each.begin_s for each in one.slices if each.stage in stages), start=0.0)
