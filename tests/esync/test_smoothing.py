"""Smoothed times: the lower median of the last five."""

import pytest

from esync.measure import Smoothed


@pytest.mark.parametrize(
    ("times", "told"),
    [
        ((3.0, 1.0, 2.0, 4.0), [0.0, 3.0, 1.0, 2.0, 2.0]),  # the lower of the two in the middle
        ((1.0, 1.0, 1.0, 9.0, 1.0, 1.0), [0.0, *[1.0] * 6]),  # one outlier does not show
        ((*[1.0] * 5, 2.0, 2.0, 2.0), [0.0, *[1.0] * 7, 2.0]),  # a lasting change shows after three
    ],
)
def test_what_is_told_before_the_first_time_and_after_each(times: tuple[float, ...], told: list[float]) -> None:
    smoothed = Smoothed()
    found = [smoothed.value]
    for each in times:
        smoothed.add(each)
        found.append(smoothed.value)
    assert found == told
