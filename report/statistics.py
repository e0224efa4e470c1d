"""Medians of a few runs with their intervals, and as many digits as these justify. Pure functions.

Intervals are those of order statistics (Thompson 1936): their ends are two of the runs, without an assumption on the
distribution. `coverage` is the probability that an interval covers the median. Fewer than six runs do not reach LEVEL:
their interval is from the least to the greatest. The time to a target that was not reached is infinite.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

LEVEL = 0.95  # of an interval of enough runs
FEWEST_RUNS = 3  # with which an interval over runs is shown
NOT_REACHED = "-"  # in place of an infinite time


class Estimate(NamedTuple):
    """A median and its interval."""

    value: float
    low: float
    high: float


# ------------------------------------------------------------------------------------------------ medians


def places(runs: int) -> tuple[int, float]:
    """The interval of the median of `runs` runs: the number of runs below it, and the probability that it covers.

    The k-th least and the k-th greatest of n runs cover the median with 1 - 2 P(B < k), where B is binomial (n, 1/2).
    The result is the narrowest interval that covers with LEVEL; where none does, that of all runs.
    """
    tails = itertools.accumulate(math.comb(runs, k) * 0.5**runs for k in range((runs + 1) // 2))
    covered = [1 - 2 * tail for tail in tails]
    below = max((k for k, share in enumerate(covered) if share >= LEVEL), default=0)
    return below, covered[below]


def coverage(runs: int) -> str:
    """The probability that `median`'s interval covers the median, such as `94 %` with five runs."""
    return f"{places(runs)[1]:.0%}".replace("%", " %")


def median(values: Iterable[float]) -> Estimate:
    """The median of numbers, some perhaps infinite, and its interval. Raises ValueError if there are none, or one is
    NaN."""
    ordered = sorted(map(float, values))
    if not ordered or any(map(math.isnan, ordered)):
        raise ValueError(f"{ordered} should be one or more numbers")
    return Estimate(*of_sorted(ordered))


def of_sorted(ordered: Any) -> tuple[Any, Any, Any]:
    """The median of values in order (runs,), or of arrays of such (runs, points) at each point, and its interval."""
    count = len(ordered)
    below = places(count)[0]
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2  # infinite where one of the two is
    return middle, ordered[below], ordered[count - 1 - below]


# --------------------------------------------------------------------------------------- times to a target


def times_as_fast(baseline: Sequence[float], seconds: Sequence[float]) -> Estimate | None:
    """Speed-up over a baseline: the median of the ratios, with its interval, of times (n,) to a target in paired runs,
    such as one of each seed; infinite where not reached. None where neither run of a pair reached it. Raises ValueError
    if their numbers differ."""
    pairs = list(zip(baseline, seconds, strict=True))
    if any(math.isinf(above) and math.isinf(below) for above, below in pairs):
        return None
    return median([above / below if below else math.inf for above, below in pairs])


# ---------------------------------------------------------------------------------------------------- numbers


def decimals(estimate: Estimate) -> int:
    """Number of decimals that an interval justifies; negative: zeros before the point.

    The distance from the nearer end gets one digit, or two where the first is a 1: 0.853 with 0.004, 85.3 with 1.2, 230
    with 20. The number has at most three digits, and three where the distance is 0 or infinite.
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


def estimate_text(estimate: Estimate, least: Estimate | None = None) -> str:
    """`0.853 (0.849 to 0.857)`, with the digits that the interval justifies; `12..15 (9 to 18)` where each of the
    numbers lies between two, of which `least` has the lower ones."""
    if least is None or least == estimate:
        value, low, high = texts(estimate)
        return f"{value} ({low} to {high})"
    middle = (least.value + estimate.value) / 2
    near = Estimate(middle, (middle + least.low) / 2, (middle + estimate.high) / 2)  # ends are not to be rounded away
    ends = (least.value, estimate.value, least.low, estimate.high)
    value, most, low, high = (number_text(each, decimals(near)) for each in ends)
    return f"{'..'.join(dict.fromkeys((value, most)))} ({low} to {high})"


def texts(estimate: Estimate) -> tuple[str, str, str]:
    """The number and the two ends of its interval, with the digits that the interval justifies."""
    digits = decimals(estimate)
    value, low, high = (number_text(each, digits) for each in estimate)
    return value, low, high
