"""report/statistics.py: small cases worked by hand, and what holds for any numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from report import statistics
from report.statistics import Estimate

INF = math.inf
FEW = 500  # resamples: enough for what must hold of any
numbers = st.floats(0, 1000, allow_nan=False)
runs = st.lists(numbers, min_size=1, max_size=8)
some_infinite = st.lists(st.one_of(numbers, st.just(INF)), min_size=1, max_size=8)


# ----------------------------------------------------------------------------------------------- bootstrap


def test_the_interval_of_a_mean_is_that_of_all_resamples_of_two_runs():
    # Of (0, 1) the resamples have means 0, 0.5, 0.5, 1: a quarter of them lies at each end.
    estimate = statistics.mean([0, 1])
    assert estimate == Estimate(0.5, 0.0, 1.0)


def test_the_interval_of_a_mean_narrows_as_the_runs_do():
    # 95 % of the means of 400 draws of 0 or 1 lie within 1.96 * 0.5 / 20 = 0.049 of the middle.
    estimate = statistics.mean([0, 1] * 200)
    assert estimate.low == pytest.approx(0.451, abs=0.005)
    assert estimate.high == pytest.approx(0.549, abs=0.005)


@given(runs, st.integers(0, 3))
def test_an_interval_lies_within_the_runs_and_comes_from_its_seed_alone(values, seed):
    estimate = statistics.mean(values, FEW, seed)
    assert min(values) - 1e-9 <= estimate.low <= estimate.high <= max(values) + 1e-9
    assert statistics.mean(values, FEW, seed) == estimate


@given(runs)
def test_equal_runs_leave_no_doubt(values):
    same = [values[0]] * 5
    assert statistics.mean(same, FEW) == pytest.approx((values[0],) * 3)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=6))
def test_a_band_is_the_interval_of_the_mean_at_each_point(values):
    means, low, high = statistics.mean_band(values, FEW)
    for point, column in enumerate(np.transpose(values)):
        one = statistics.mean(column, FEW)
        assert means[point] == pytest.approx(one.value)
        # There between two resamples, here at one of them: never wider.
        assert one.low - 1e-9 <= low[point] <= high[point] <= one.high + 1e-9


@pytest.mark.parametrize("values", [[1, INF], [INF], [[1.0, INF]]])
def test_no_mean_is_taken_of_what_is_infinite(values):
    with pytest.raises(ValueError, match="not all of it is finite"):
        (statistics.mean if np.ndim(values) == 1 else statistics.mean_band)(values)


@pytest.mark.parametrize("values", [[], [math.nan], [[1.0]]])
def test_what_is_no_list_of_numbers_is_refused(values):
    with pytest.raises(ValueError, match="one or more numbers"):
        statistics.times(values)


# --------------------------------------------------------------------------------------- times to a target


def test_the_time_to_a_target_is_that_of_an_evaluation_or_infinite():
    curve = [(1.0, 0.5), (2.0, 0.8), (3.0, 0.7)]
    assert [statistics.time_to_target(curve, target) for target in (0.5, 0.7, 0.9)] == [1.0, 2.0, INF]


def test_times_that_are_all_there_have_a_mean_and_a_median():
    times = statistics.times([3.0, 1.0, 8.0])
    assert (times.reached, times.runs, times.median.value, times.mean.value) == (3, 3, 3.0, 4.0)
    assert (times.median.low, times.median.high) == (1.0, 8.0)


def test_one_run_that_never_came_there_takes_the_mean_and_leaves_the_median():
    times = statistics.times([3.0, INF, 1.0, 2.0, 4.0])
    assert (times.reached, times.runs, times.mean) == (4, 5, None)
    assert times.median.value == 3.0
    assert times.median.high == INF  # one in 17 resamples has a majority of the one that did not


def test_where_most_runs_never_came_there_the_median_is_infinite():
    assert statistics.times([3.0, INF, INF]).median.value == INF
    assert statistics.times([3.0, INF]).median.value == INF  # the mean of the two in the middle
    assert statistics.times([INF, INF]).median == Estimate(INF, INF, INF)


@given(some_infinite)
def test_a_median_and_its_interval_are_never_nan_and_in_order(seconds):
    times = statistics.times(seconds, FEW)
    low, high = times.median.low, times.median.high
    assert min(seconds) <= low <= high <= max(seconds)
    assert (times.median.value == INF) == (times.reached <= len(seconds) // 2)
    assert (times.mean is None) == (times.reached < len(seconds))


def test_a_score_is_the_median_over_studies_of_the_fastest_trial():
    assert statistics.study_score([[9, 5, INF], [7, INF, 8], [INF, INF, INF]]) == 7.0
    assert statistics.study_score([[9, 5], [INF], [INF]]) == INF


@pytest.mark.parametrize("studies", [[], [[1.0], []]])
def test_a_score_of_nothing_is_refused(studies):
    with pytest.raises(ValueError):
        statistics.study_score(studies)


# -------------------------------------------------------------------------------------- scores over several jobs


def test_the_interquartile_mean_drops_a_quarter_at_each_end():
    assert statistics.interquartile_mean(np.array([100, 1, 2, 3])) == 2.5
    assert statistics.interquartile_mean(np.array([1, 2, 3])) == 2.0  # a quarter of three is none
    assert statistics.interquartile_mean(np.array([0, 2, 4, 6, 8, 10, 1000, 3])) == pytest.approx((3 + 4 + 6 + 8) / 4)


def test_runs_are_drawn_anew_within_their_own_job():
    (first, second) = statistics.resampled([[1.0, 2.0], [10.0]], 50)
    assert first.shape == (50, 2) and set(first.flat) == {1.0, 2.0}
    assert second.shape == (50, 1) and set(second.flat) == {10.0}


def test_the_interval_over_jobs_knows_only_the_doubt_within_them():
    # Two jobs whose runs agree: however different the jobs are, there is no doubt.
    assert statistics.interquartile_estimate([[1.0] * 4, [3.0] * 4], FEW) == Estimate(2.0, 2.0, 2.0)


def test_the_probability_of_improvement_counts_pairs_and_half_of_ties():
    # Job 1: 1 < 2, 1 < 2, 3 > 2, 3 > 2: a half. Job 2: both infinite: a half. Job 3: always.
    estimate = statistics.probability_of_improvement([[1, 3], [INF], [1]], [[2, 2], [INF], [INF]])
    assert estimate.value == pytest.approx((0.5 + 0.5 + 1) / 3)
    with pytest.raises(ValueError, match="2 jobs against 1"):
        statistics.probability_of_improvement([[1], [1]], [[1]])


@given(st.lists(some_infinite, min_size=1, max_size=3), st.lists(some_infinite, min_size=3, max_size=3))
def test_what_one_wins_the_other_loses(one, other):
    there = statistics.probability_of_improvement(one, other[: len(one)], FEW)
    back = statistics.probability_of_improvement(other[: len(one)], one, FEW)
    assert there.value + back.value == pytest.approx(1)
    assert 0 <= there.low <= there.high <= 1


def test_a_profile_by_hand():
    # Jobs in columns: 10 and 20 s, 30 s and never, neither.
    ratios = statistics.time_ratios(np.array([[10.0, 30.0, INF], [20.0, INF, INF]]))
    assert ratios.tolist() == [[1.0, 1.0, INF], [2.0, INF, INF]]
    assert [statistics.profile(ratios[1], t) for t in (1, 1.9, 2, 4)] == pytest.approx([0, 0, 1 / 3, 1 / 3])
    # 1 from 1 to 4 on two of three jobs; from 2 to 4 on one of three.
    assert statistics.profile_integral(ratios).tolist() == pytest.approx([2 / 3, 2 / 3 / 3])


@given(st.lists(st.floats(1, 10), min_size=1, max_size=6))
def test_the_integral_is_that_of_the_profile(ratios):
    steps = np.linspace(1, 4, 3001)
    sampled = np.mean([statistics.profile(ratios, t) for t in steps])
    assert statistics.profile_integral(np.array(ratios)) == pytest.approx(sampled, abs=0.002)


# ---------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.85312, 0.8492, 0.8571), "0.853 (0.849 to 0.857)"),
        (Estimate(0.85312, 0.8520, 0.8543), "0.8531 (0.8520 to 0.8543)"),  # 0.00115 each way: two digits
        (Estimate(234.4, 212.0, 251.0), "230 (210 to 250)"),
        (Estimate(23.44, 23.44, 23.44), "23.4 (23.4 to 23.4)"),
        (Estimate(31.26, 29.04, INF), "31.3 (29.0 to inf)"),
        (Estimate(INF, INF, INF), "inf (inf to inf)"),
        (Estimate(0.0, 0.0, 0.0), "0.00 (0.00 to 0.00)"),
        (Estimate(0.5, 0.0, 1.0), "0.5 (0.0 to 1.0)"),
    ],
)
def test_a_number_has_no_more_digits_than_its_interval_allows(estimate, text):
    assert statistics.estimate_text(estimate) == text


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_the_last_digit_is_from_a_twentieth_to_a_half_of_the_doubt_on_each_side(low, width):
    high = low + width
    if high > low:
        last = 10.0 ** -statistics.decimals(low, high)
        assert 0.05 < last / ((high - low) / 2) < 0.52
