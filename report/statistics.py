"""What may be said of a few runs: intervals, scores over several jobs, and no more digits than that allows.

Pure functions on numbers; of packages numpy alone. A time to a target that was not reached is infinite, and no mean is
taken over it. Intervals are percentile bootstrap intervals (Efron 1979), whose resamples come from a seed, so the same
runs give the same interval. With five runs they are narrower than they should be: what is sure is at most what they
say. Scores over several jobs, after rliable (Agarwal et al., "Deep reinforcement learning at the edge of the
statistical precipice", NeurIPS 2021, arXiv:2108.13264) and AlgoPerf (Dahl et al. 2023, arXiv:2306.07179).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from report.metrics import time_to_accuracy

LEVEL = 0.95
RESAMPLES = 10_000
FEWEST_RUNS = 3  # with which an interval over runs is shown
PROFILE_END = 4.0  # times the best one's time, up to which AlgoPerf integrates a performance profile


class Estimate(NamedTuple):
    """A number and the interval that holds it at LEVEL."""

    value: float
    low: float
    high: float


# ----------------------------------------------------------------------------------------------- bootstrap


def resampled(groups: Sequence[ArrayLike], resamples: int = RESAMPLES, seed: int = 0) -> list[np.ndarray]:
    """Each group (n_g,) drawn anew from itself, with replacement, so many times: arrays (resamples, n_g).

    With one group the ordinary bootstrap, with the runs of several jobs the stratified one.

    Raises:
        ValueError: a group is empty or holds something that is no number.
    """
    random = np.random.default_rng(seed)
    drawn = []
    for group in groups:
        values = _checked(group)
        drawn.append(values[random.integers(len(values), size=(resamples, len(values)))])
    return drawn


def _checked(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not array.size or np.isnan(array).any():
        raise ValueError(f"{array.tolist()} should be one or more numbers")
    return array


def interval(statistics: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """The percentiles of resampled statistics (resamples,) between which a share `level` of them lies.

    Both are among the statistics themselves: between a number and infinity nothing can be interpolated.
    """
    below = (1 - level) / 2
    low = np.quantile(statistics, below, method="lower")
    high = np.quantile(statistics, 1 - below, method="higher")
    return float(low), float(high)


def mean(values: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The mean of numbers (n,), with its interval.

    Raises:
        ValueError: one of them is not finite: take `times`, which has a median.
    """
    array = _finite(_checked(values))
    (drawn,) = resampled([array], resamples, seed)
    return Estimate(float(array.mean()), *interval(drawn.mean(axis=1)))


def mean_band(
    values: ArrayLike, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The means of runs at each point, and the ends of their intervals, each (points,); runs are drawn whole.

    Args:
        values: finite numbers (runs, points).
    """
    array = _finite(np.asarray(values, dtype=float))
    chosen = np.random.default_rng(seed).integers(len(array), size=(resamples, len(array)))
    # How often each run is in each resample, (resamples, runs): so the means are one product.
    counts = (chosen[:, :, np.newaxis] == np.arange(len(array))).sum(axis=1)
    means = counts @ array / len(array)
    below = (1 - LEVEL) / 2
    low, high = np.quantile(means, [below, 1 - below], axis=0)
    return array.mean(axis=0), low, high


def _finite(array: np.ndarray) -> np.ndarray:
    if not np.isfinite(array).all():
        raise ValueError(f"no mean can be taken of {array.tolist()}: not all of it is finite")
    return array


def ratio_of_means(above: ArrayLike, below: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The mean of some numbers over that of others, with its interval; both are drawn anew.

    Raises:
        ValueError: one of them is not finite.
    """
    pair = [_finite(_checked(above)), _finite(_checked(below))]
    upper, lower = (drawn.mean(axis=1) for drawn in resampled(pair, resamples, seed))
    return Estimate(float(pair[0].mean() / pair[1].mean()), *interval(upper / lower))


def ratio_of_medians(above: ArrayLike, below: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The same of the medians; numbers above may be infinite, where they are times to a target.

    Raises:
        ValueError: a number below is not finite.
    """
    pair = [_checked(above), _finite(_checked(below))]
    upper, lower = (median_time(drawn) for drawn in resampled(pair, resamples, seed))
    return Estimate(float(median_time(pair[0]) / median_time(pair[1])), *interval(upper / lower))


# --------------------------------------------------------------------------------------- times to a target


@dataclass(frozen=True)
class Times:
    """Seconds to a target in several runs.

    Attributes:
        reached: how many of the `runs` reached it.
        median: infinite where half of the runs or more did not.
        mean: None where a run did not reach it.
    """

    reached: int
    runs: int
    median: Estimate
    mean: Estimate | None


def time_to_target(curve: Sequence[tuple[float, float]], target: float) -> float:
    """Seconds at the first evaluation at or above `target` of a curve (seconds, accuracy); infinite without one."""
    seconds = time_to_accuracy(curve, target)
    return math.inf if seconds is None else seconds


def times(seconds: ArrayLike, resamples: int = RESAMPLES, seed: int = 0) -> Times:
    """Sums up the times (n,) of several runs to the same target, of which some may be infinite."""
    array = _checked(seconds)
    (drawn,) = resampled([array], resamples, seed)
    median = Estimate(float(median_time(array)), *interval(median_time(drawn)))
    reached = int(np.isfinite(array).sum())
    return Times(reached, array.size, median, mean(array, resamples, seed) if reached == array.size else None)


def median_time(seconds: np.ndarray) -> np.ndarray:
    """The median over the last axis; of an even number of times the mean of the two in the middle, infinite where one
    of them is."""
    ordered = np.sort(seconds, axis=-1)
    count = ordered.shape[-1]
    return (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2


def study_score(studies: Sequence[Sequence[float]]) -> float:
    """AlgoPerf's: the median over independent studies of the time of each study's fastest trial; may be infinite.

    Raises:
        ValueError: there is no study, or one without trials.
    """
    if not studies:
        raise ValueError("no study: a score needs one")
    return float(median_time(np.array([_checked(study).min() for study in studies])))


# -------------------------------------------------------------------------------------- scores over several jobs


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean over the last axis of what is left when a quarter of the scores is dropped at each end.

    Of n scores floor(n / 4) are dropped at each end, as rliable does. Infinite where an infinite one is left.
    """
    ordered = np.sort(np.asarray(scores, dtype=float), axis=-1)
    count = ordered.shape[-1]
    return ordered[..., count // 4 : count - count // 4].mean(axis=-1)


def interquartile_estimate(groups: Sequence[ArrayLike], resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """The interquartile mean over all runs of all jobs, with its stratified bootstrap interval.

    Args:
        groups: the scores of the runs of each job.
    """
    value = interquartile_mean(np.concatenate([_checked(group) for group in groups]))
    drawn = np.concatenate(resampled(groups, resamples, seed), axis=1)
    return Estimate(float(value), *interval(interquartile_mean(drawn)))


def probability_of_improvement(
    times_a: Sequence[ArrayLike], times_b: Sequence[ArrayLike], resamples: int = 2000, seed: int = 0
) -> Estimate:
    """How probable it is that a run of `a` is faster than one of `b`: the mean over the jobs, ties count half.

    Args:
        times_a: seconds of the runs of each job; two that did not reach the target are a tie.
        times_b: the same jobs, in the same order.

    Raises:
        ValueError: the two have different numbers of jobs.
    """
    if len(times_a) != len(times_b):
        raise ValueError(f"{len(times_a)} jobs against {len(times_b)}: both must have the same ones")
    pairs = [(_checked(a)[np.newaxis], _checked(b)[np.newaxis]) for a, b in zip(times_a, times_b, strict=True)]
    drawn = zip(resampled(times_a, resamples, seed), resampled(times_b, resamples, seed + 1), strict=True)
    value = np.mean([_share_won(a, b) for a, b in pairs], axis=0)
    return Estimate(float(value[0]), *interval(np.mean([_share_won(a, b) for a, b in drawn], axis=0)))


def _share_won(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of all pairs of a run of `a`, (..., n), and one of `b`, (..., m): the share (...,) in which a's time is less."""
    left, right = a[..., :, np.newaxis], b[..., np.newaxis, :]
    return ((left < right) + 0.5 * (left == right)).mean(axis=(-2, -1))


def time_ratios(seconds: np.ndarray) -> np.ndarray:
    """Each time over the best one of its job, (..., algorithms, jobs) both; infinite without the target."""
    best = seconds.min(axis=-2, keepdims=True)
    reached = np.isfinite(seconds)
    return np.where(reached, seconds, np.inf) / np.where(np.isfinite(best), best, 1.0)


def profile(ratios: ArrayLike, at_most: float) -> float:
    """rho_a(t): the share of jobs (n,) on which a time is at most `at_most` times the best one's (Dolan and More 2002).

    A job on which nobody reached the target counts as one on which nobody is at most so slow.
    """
    return float((_checked(ratios) <= at_most).mean())


def profile_integral(ratios: np.ndarray, end: float = PROFILE_END) -> np.ndarray:
    """The integral of rho_a from 1 to `end` over that length, from 0 to 1: over the last axis of (..., jobs)."""
    return ((end - np.minimum(ratios, end)) / (end - 1)).mean(axis=-1)


# ---------------------------------------------------------------------------------------------------- numbers


def decimals(low: float, high: float) -> int:
    """To how many decimals a number may be said that is known to lie between two others; negative ones are zeros.

    Half of the distance gets one digit, or two where the first is a 1: 0.853 with 0.004 on each side, 0.8530 with
    0.0012, 230 with 20. Where there is no distance, or an infinite one, three digits of the number.
    """
    half = (high - low) / 2
    if not 0 < half < math.inf:
        known = next((abs(end) for end in (low, high) if end and math.isfinite(end)), 1.0)
        return 2 - math.floor(math.log10(known))
    exponent = math.floor(math.log10(half))
    digits = half / 10.0**exponent
    return 1 - exponent if digits < 1.95 else -exponent


def number_text(value: float, places: int) -> str:
    """`0.853`, or `230` to -1 places; `inf` where it is infinite."""
    if not math.isfinite(value):
        return "inf" if value > 0 else "-inf"
    return f"{round(value, places) + 0.0:.{max(0, places)}f}"


def estimate_text(estimate: Estimate) -> str:
    """`0.853 (0.849 to 0.857)`: with no more digits than the interval allows."""
    value, low, high = texts(estimate)
    return f"{value} ({low} to {high})"


def texts(estimate: Estimate) -> tuple[str, str, str]:
    """The same as three texts: the number and the two ends of its interval."""
    places = decimals(estimate.low, estimate.high)
    value, low, high = (number_text(each, places) for each in estimate)
    return value, low, high
