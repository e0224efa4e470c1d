"""Smoothed times: the lower median of the last five."""

from esync.smoothing import Smoothed


def smoothed(*values: float) -> list[float]:
    """What is told after each of the times."""
    times, told = Smoothed(), []
    for value in values:
        times.add(value)
        told.append(times.value)
    return told


def test_before_the_first_time_it_is_zero() -> None:
    assert Smoothed().value == 0.0


def test_it_is_the_lower_of_the_two_in_the_middle() -> None:
    assert smoothed(3.0, 1.0, 2.0, 4.0) == [3.0, 1.0, 2.0, 2.0]


def test_one_outlier_does_not_show_and_a_lasting_change_shows_after_three() -> None:
    assert smoothed(1.0, 1.0, 1.0, 9.0, 1.0, 1.0)[-3:] == [1.0, 1.0, 1.0]
    assert smoothed(*[1.0] * 5, 2.0, 2.0, 2.0)[-3:] == [1.0, 1.0, 2.0]
