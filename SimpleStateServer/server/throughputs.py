"""Running mean and standard deviation of the workers' throughputs: O(1) a change, O(1) a comparison.

Sums of floats would drift as terms come and go. So a throughput is a whole number of 2**-64 samples/s; count, sum and
sum of squares are Python's integers, which never round, so they do not depend on earlier workers. Every float from
2**-11 samples/s on is such a whole number.
"""

import math
from collections.abc import Iterable
from fractions import Fraction

_ONE = 2**64  # 1 sample/s
_LARGEST = 1e15  # samples/s; for step times close to 0


def throughput(delay: float) -> float:
    """Samples/s of a worker that takes `delay` seconds a sample."""
    return min(1 / delay, _LARGEST) if delay > 0 else _LARGEST


class Throughputs:
    """Throughputs of some workers, each given as its delay: seconds a sample. It is infinite where a worker counts but
    its throughput is not known; negative where it does not count."""

    def __init__(self, delays: Iterable[float] = ()) -> None:
        self._known = 0
        self._unknown = 0
        self._sum = 0
        self._sum_of_squares = 0
        for delay in delays:
            self._count(delay, 1)

    def change(self, before: float, after: float) -> None:
        """Replaces the delay `before` of one worker by `after`."""
        if before != after:
            self._count(before, -1)
            self._count(after, 1)

    @property
    def are_known(self) -> bool:
        """Whether there is a counted worker, and the throughput of each is known."""
        return self._known > 0 and not self._unknown

    def mean_is_far_above(self, delay: float, margin: Fraction) -> bool:
        """Whether the throughput of a worker with this delay is below the mean by more than one standard deviation, and
        by more than the share `margin` of it; not while a throughput is not known.

        With n throughputs v, S their sum and Q that of their squares: n^2 times the variance is n Q - S^2, so that
        S - n v > sqrt(n Q - S^2) needs no division and no root.
        """
        if not self.are_known:
            return False
        below = self._sum - self._known * in_units(throughput(delay))  # n times the distance to the mean
        return below * margin.denominator > margin.numerator * self._sum and below * below > self._spread

    @property
    def mean(self) -> float:
        """Samples/s; 0 where none is known."""
        return self._sum / (self._known * _ONE) if self._known else 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation in samples/s; 0 where none is known."""
        return math.isqrt(self._spread) / (self._known * _ONE) if self._known else 0.0

    @property
    def _spread(self) -> int:
        """n^2 times the variance."""
        return self._known * self._sum_of_squares - self._sum * self._sum

    def _count(self, delay: float, times: int) -> None:
        if delay < 0:
            return
        if delay == math.inf:
            self._unknown += times
            return
        value = in_units(throughput(delay))
        self._known += times
        self._sum += times * value
        self._sum_of_squares += times * value * value


def in_units(samples_per_s: float) -> int:
    """A throughput in units of 2**-64 samples/s."""
    return int(samples_per_s * _ONE)
