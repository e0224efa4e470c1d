"""Numbers that follow the samples: schedules of step sizes, and ramps."""

import math
import re

import pytest
from hypothesis import given, strategies as st

from flag_values import parse_ramp, parse_schedule
from rates import CONSTANT, Ramp, RateSchedule


def factors(text, *samples):
    return [parse_schedule(text).factor(count) for count in samples]


def test_a_warm_up_is_a_straight_line_from_zero():
    assert factors("warmup:1000", 0, 64, 500, 1000, 5000) == [0.0, 0.064, 0.5, 1.0, 1.0]


def test_steps_keep_the_sample_on_the_bound_and_multiply():
    assert factors("step:300,450x0.1", 1, 300, 301, 450, 451) == pytest.approx([1, 1, 0.1, 0.1, 0.01])
    assert factors("step:300x0.1,450x0.5", 300, 450, 451) == pytest.approx([1, 0.1, 0.05])


def test_a_cosine_begins_with_the_end_of_the_warm_up_and_ends_at_its_floor():
    assert factors("warmup:100+cosine:500", 50, 100, 200, 300, 500, 900) == pytest.approx(
        [0.5, 1.0, (1 + math.sqrt(0.5)) / 2, 0.5, 0.0, 0.0]
    )
    assert factors("cosine:6e2x0.1", 300, 600, 601) == pytest.approx([0.55, 0.1, 0.1])


def test_without_a_schedule_samples_make_no_difference():
    assert parse_schedule("constant") == CONSTANT
    assert CONSTANT.is_constant and not parse_schedule("warmup:1").is_constant
    assert factors("constant", 0, 10**9) == [1.0, 1.0]


def test_a_momentum_is_a_number_or_a_straight_line_between_two():
    assert parse_ramp("0.9") == Ramp(0.9, 0.9) and Ramp(0.9, 0.9).value(0) == 0.9
    ramp = parse_ramp("0..0.9:3000")
    assert [ramp.value(samples) for samples in (0, 1000, 3000, 9000)] == pytest.approx([0.0, 0.3, 0.9, 0.9])


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "'' is no schedule of step sizes; give constant, or warmup:SAMPLES"),
        ("linear:5", "is no schedule of step sizes"),
        ("warmup:5+warmup:6", "is no schedule of step sizes"),
        ("constant+warmup:5", "is no schedule of step sizes"),
        ("step:5x0.1+cosine:9", "has both steps and a cosine: give one of them"),
        ("warmup:0", "'0' is no number of samples above 0"),
        ("warmup:1.5", "'1.5' is no number of samples"),
        ("warmup:nan", "'nan' is no number of samples"),
        ("step:5", "'' is no factor from 0 to below 1"),
        ("step:5x2", "'2' is no factor from 0 to below 1"),
        ("step:5x0.1,4x0.1", "each number of samples must be above the one before it"),
        ("warmup:9+cosine:9", "the cosine ends before the warm-up does"),
        ("cosine:9xinf", "'inf' is no factor"),
    ],
)
def test_what_is_no_schedule_is_answered_with_what_is_one(text, complaint):
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_schedule(text)


@pytest.mark.parametrize("text", ["1", "-0.1", "nan", "", "0..0.9", "0.9:5", "0..1:5", "0..0.9:0"])
def test_what_is_no_momentum_is_answered_with_what_is_one(text):
    with pytest.raises(ValueError, match=r"is no momentum; give a number from 0|is no number of samples above 0"):
        parse_ramp(text)


counts = st.integers(min_value=1, max_value=10**9)
schedules = st.builds(
    lambda warmup, length, floor: RateSchedule(warmup, cosine=warmup + length, floor=floor),
    st.integers(0, 10**6), counts, st.floats(0, 0.99),
) | st.builds(
    lambda warmup, bounds, factor: RateSchedule(warmup, tuple((bound, factor) for bound in sorted(bounds))),
    st.integers(0, 10**6), st.sets(counts, min_size=1, max_size=5), st.floats(0, 0.99),
)  # fmt: skip


@given(schedules, st.lists(counts, min_size=2, max_size=20))
def test_a_factor_is_from_0_to_1_and_falls_behind_the_warm_up(schedule, samples):
    assert all(0 <= schedule.factor(count) <= 1 for count in samples)
    behind = [schedule.factor(count) for count in sorted(samples) if count >= schedule.warmup]
    assert behind == sorted(behind, reverse=True)


@given(schedules)
def test_a_schedule_that_is_written_down_is_read_as_the_same(schedule):
    parts = [f"warmup:{schedule.warmup}"] if schedule.warmup else []
    if schedule.drops:
        parts.append("step:" + ",".join(f"{behind}x{_plain(factor)}" for behind, factor in schedule.drops))
    if schedule.cosine:
        parts.append(f"cosine:{schedule.cosine}x{_plain(schedule.floor)}")
    read = parse_schedule("+".join(parts))
    assert (read.warmup, read.cosine) == (schedule.warmup, schedule.cosine)
    assert read.floor == pytest.approx(schedule.floor, abs=1e-12)
    assert [bound for bound, _ in read.drops] == [bound for bound, _ in schedule.drops]


def _plain(number: float) -> str:
    return f"{number:.15f}"
