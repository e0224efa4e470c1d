"""report/statistics.py: small cases worked by hand, and what holds for any numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, strategies as st

from report import statistics
from report.statistics import Estimate

INF = math.inf
numbers = st.floats(0, 1000, allow_nan=False)
some_infinite = st.lists(st.one_of(numbers, st.just(INF)), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("runs", "below", "covered"),
    # By the binomial distribution: of five runs all lie on one side of the median with 2 / 32.
    [(1, 0, 0.0), (2, 0, 0.5), (3, 0, 0.75), (5, 0, 0.9375), (6, 0, 0.96875), (8, 0, 0.9921875), (9, 1, 0.9609375)],
)
def test_an_interval_is_the_narrowest_that_covers_the_median_often_enough(runs, below, covered):
    assert statistics.places(runs) == (below, pytest.approx(covered))


def test_how_often_an_interval_covers_the_median_is_what_is_said():
    random = np.random.default_rng(0)
    for runs, said in ((3, "75 %"), (5, "94 %"), (9, "96 %")):
        assert statistics.coverage(runs) == said
        _, low, high = statistics.of_sorted(np.sort(random.normal(size=(runs, 20_000)), axis=0))
        assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(statistics.places(runs)[1], abs=0.01)


@pytest.mark.parametrize(
    ("values", "estimate"),
    [
        ([3, 1, 2], Estimate(2, 1, 3)),
        ([1, 2, 3, 10], Estimate(2.5, 1, 10)),
        (range(9), Estimate(4, 1, 7)),
        # Times to a target, where runs never came there.
        ([3.0, INF, 1.0, 2.0, 4.0], Estimate(3.0, 1.0, INF)),
        ([3.0, INF, INF], Estimate(INF, 3.0, INF)),
        ([3.0, INF], Estimate(INF, 3.0, INF)),  # the mean of the two in the middle
        ([INF, INF], Estimate(INF, INF, INF)),
    ],
)
def test_a_median_by_hand(values, estimate):
    assert statistics.median(values) == estimate


@given(some_infinite)
def test_an_interval_lies_within_the_runs_and_holds_their_median(values):
    value, low, high = statistics.median(values)
    assert min(values) <= low <= value <= high <= max(values)
    assert (value == INF) == (sum(map(math.isfinite, values)) <= len(values) // 2)


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_what_is_no_list_of_numbers_is_refused(values):
    with pytest.raises(ValueError, match="one or more numbers"):
        statistics.median(values)


def test_times_as_fast_are_those_of_pairs():
    # 20/10, 30/20 and 10/40.
    assert statistics.times_as_fast([20, 30, 10], [10, 20, 40]) == Estimate(1.5, 0.25, 2)
    assert statistics.times_as_fast([INF, 30, 10], [10, 20, 40]) == Estimate(1.5, 0.25, INF)
    assert statistics.times_as_fast([20, 30, 10], [INF, 20, 40]) == Estimate(0.25, 0, 1.5)
    assert statistics.times_as_fast([INF, 30], [INF, 20]) is None
    with pytest.raises(ValueError):
        statistics.times_as_fast([1, 2], [1])


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.85312, 0.8492, 0.8571), "0.853 (0.849 to 0.857)"),
        (Estimate(85.312, 84.16, 86.47), "85.3 (84.2 to 86.5)"),  # 1.15 each way: two digits
        (Estimate(1.2062, 0.9174, 1.2072), "1.21 (0.92 to 1.21)"),  # three digits at most
        (Estimate(234.4, 212.0, 255.0), "230 (210 to 260)"),
        (Estimate(14.4, 13.2, 58.8), "14.4 (13.2 to 58.8)"),  # the nearer end decides
        (Estimate(23.44, 23.44, 23.44), "23.4 (23.4 to 23.4)"),
        (Estimate(31.26, 29.04, INF), "31 (29 to -)"),
        (Estimate(INF, INF, INF), "- (- to -)"),
        (Estimate(0.0, 0.0, 0.0), "0.00 (0.00 to 0.00)"),
        (Estimate(0.5, 0.0, 1.0), "0.5 (0.0 to 1.0)"),
    ],
)
def test_a_number_has_no_more_digits_than_its_interval_allows(estimate, text):
    assert statistics.estimate_text(estimate) == text


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_last_digit_is_from_a_twentieth_to_a_half_of_the_distance_from_the_nearer_end(low, below, above):
    estimate = Estimate(low + below, low, low + below + above)
    nearer = min(estimate.value - low, estimate.high - estimate.value)
    last = 10.0 ** -statistics.decimals(estimate)
    if nearer > 0:
        assert last / nearer > 0.05
        assert last / nearer < 0.52 or last * 1000 > estimate.value  # or three digits are enough
