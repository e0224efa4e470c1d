"""Waiting for what has to be looked at: how late it is noticed and how often it is looked at, on a clock of its own."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trainer import clock as clocks


class Clock:
    """Stands in for the module `time`: it moves only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def waited_for(wait_s: float) -> tuple[float, list[float]]:
    """Waits for something that happens after so many seconds; returns how late that was noticed, and the pauses."""
    clock = Clock()
    happens = clock.now + wait_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "time", clock)
        clocks.RealClock().wait_until(lambda: clock.now >= happens)
    return clock.now - happens, clock.pauses


def test_the_condition_is_looked_at_again_after_each_pause() -> None:
    answers = iter([False, False, True, False])
    clock = Clock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clocks, "time", clock)
        clocks.RealClock().wait_until(lambda: next(answers))
    assert clock.pauses == [clocks.SHORTEST_PAUSE_S] * 2
    assert next(answers) is False


@example(0.0)
@given(st.floats(1e-6, 3.0))
def test_the_end_is_noticed_a_twentieth_late_at_most_and_nobody_looks_more_often_than_needed(wait_s: float) -> None:
    """Or a millisecond late, where that is more; never more than ten. Each pause is as long as that allows."""
    late_s, pauses = waited_for(wait_s)
    assert 0 <= late_s <= min(0.01, max(0.001, 0.05 * wait_s)) + 1e-9
    assert bool(pauses) == (wait_s > 0)
    so_far = 0.0
    for pause in pauses:
        assert pause == pytest.approx(min(0.01, max(0.001, 0.05 * so_far)))
        so_far += pause
