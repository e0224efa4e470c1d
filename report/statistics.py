"""What a few runs allow to be said: medians, their intervals, and no more digits than that allows. Pure functions.

An interval is one of order statistics (Thompson 1936): its ends are two of the runs, and it needs no assumption about
their distribution. It covers the median with the probability that `coverage` gives, which is below LEVEL for fewer than
six runs: then its ends are the least and the greatest run. A time to a target that was not reached is infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from report.metrics import time_to_accuracy

LEVEL = 0.95  # of an interval, where there are enough runs for it
FEWEST_RUNS = 3  # with which an interval over runs is shown
NOT_REACHED = "-"  # in place of an infinite time


class Estimate(NamedTuple):
    """A median and the interval that holds it."""

    value: float
    low: float
    high: float


# ------------------------------------------------------------------------------------------------ medians


def places(runs: int) -> tuple[int, float]:
    """The interval of the median of so many runs: how many of them lie below it, and the probability of covering it.

    The k-th least and the k-th greatest of n runs cover the median with 1 - 2 P(B < k), where B is binomial (n, 1/2).
    The narrowest interval that covers it with LEVEL is taken; where there is none, that of all runs.
    """
    below, covered = 0, 1 - 2 * 0.5**runs
    tail = 0.5**runs
    for k in range(1, (runs + 1) // 2):
        tail += math.comb(runs, k) * 0.5**runs
        if 1 - 2 * tail < LEVEL:
            break
        below, covered = k, 1 - 2 * tail
    return below, covered


def coverage(runs: int) -> str:
    """`94 %` of five runs: how often an interval as `median` gives it holds the median."""
    return f"{places(runs)[1]:.0%}".replace("%", " %")


def median(values: ArrayLike) -> Estimate:
    """The median of numbers (n,), of which some may be infinite, and its interval.

    Raises:
        ValueError: there are none, or one is no number.
    """
    value, low, high = medians(_checked(values)[:, np.newaxis])
    return Estimate(float(value[0]), float(low[0]), float(high[0]))


def medians(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The medians of runs at each point, and the ends of their intervals, each (points,); values are (runs, points)."""
    ordered = np.sort(values, axis=0)
    below = places(len(ordered))[0]
    return _middle(ordered), ordered[below], ordered[len(ordered) - 1 - below]


def _middle(ordered: np.ndarray) -> np.ndarray:
    """Of an even number the mean of the two in the middle: infinite where one of them is."""
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2


def _checked(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or not array.size or np.isnan(array).any():
        raise ValueError(f"{array.tolist()} should be one or more numbers")
    return array


# --------------------------------------------------------------------------------------- times to a target


@dataclass(frozen=True)
class Times:
    """Seconds to a target in several runs.

    Attributes:
        reached: how many of the `runs` reached it.
        median: infinite where half of the runs or more did not.
    """

    reached: int
    runs: int
    median: Estimate


def time_to_target(curve: Sequence[tuple[float, float]], target: float) -> float:
    """Seconds at the first evaluation at or above `target` of a curve (seconds, accuracy); infinite without one."""
    seconds = time_to_accuracy(curve, target)
    return math.inf if seconds is None else seconds


def times(seconds: ArrayLike) -> Times:
    """Sums up the times (n,) of several runs to the same target, of which some may be infinite."""
    array = _checked(seconds)
    return Times(int(np.isfinite(array).sum()), array.size, median(array))


def times_as_fast(baseline: Sequence[float], seconds: Sequence[float]) -> Estimate | None:
    """How many times as soon at a target as a baseline: the median of the pairs' ratios, with its interval.

    Args:
        baseline, seconds: times (n,) of the same runs of both, such as one of each seed; infinite where a run did not
            reach the target.

    Returns:
        None where a run of both of a pair did not reach it: their ratio is not known.

    Raises:
        ValueError: there are not as many of one as of the other.
    """
    pairs = list(zip(_checked(baseline), _checked(seconds), strict=True))
    if any(math.isinf(above) and math.isinf(below) for above, below in pairs):
        return None
    return median([above / below for above, below in pairs])


def study_score(studies: Sequence[Sequence[float]]) -> float:
    """AlgoPerf's: the median over independent studies of the time of each study's fastest trial; may be infinite.

    Raises:
        ValueError: there is no study, or one without trials.
    """
    if not studies:
        raise ValueError("no study: a score needs one")
    return median([_checked(study).min() for study in studies]).value


# ---------------------------------------------------------------------------------------------------- numbers


def decimals(estimate: Estimate) -> int:
    """To how many decimals a number may be said whose interval is known; negative ones are zeros.

    Its distance from the nearer end gets one digit, or two where the first is a 1: 0.853 with 0.004, 85.3 with 1.2,
    230 with 20. Where there is no distance, or an infinite one, and at most, three digits of the number.
    """
    value, low, high = estimate
    known = next((abs(each) for each in estimate if each and math.isfinite(each)), 1.0)
    most = 2 - math.floor(math.log10(known))
    doubts = [each for each in (value - low, high - value) if 0 < each < math.inf]
    if not doubts:
        return most
    exponent = math.floor(math.log10(min(doubts)))
    digits = min(doubts) / 10.0**exponent
    return min(most, 1 - exponent if digits < 1.95 else -exponent)


def number_text(value: float, digits: int) -> str:
    """`0.853`, or `230` to -1 decimals; NOT_REACHED where it is infinite."""
    return f"{round(value, digits) + 0.0:.{max(0, digits)}f}" if math.isfinite(value) else NOT_REACHED


def estimate_text(estimate: Estimate) -> str:
    """`0.853 (0.849 to 0.857)`: with no more digits than the interval allows."""
    value, low, high = texts(estimate)
    return f"{value} ({low} to {high})"


def texts(estimate: Estimate) -> tuple[str, str, str]:
    """The same as three texts: the number and the two ends of its interval."""
    digits = decimals(estimate)
    value, low, high = (number_text(each, digits) for each in estimate)
    return value, low, high
