"""The clocks: both keep the same promises; the real one looks in time, and not too often, at what has to be looked at;
the virtual one runs a cluster the same way every time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout

import pytest
from hypothesis import example, given, strategies as st
from run_all import run_all

from esync import clock as clock_module
from esync.clock import RealClock
from trainer.simulation.virtual_clock import Deadlock, VirtualClock

# ------------------------------------------------------------------------------------------------ both clocks


on_both = pytest.mark.parametrize("clock", [RealClock, VirtualClock], indirect=True)


@on_both
def test_sleeping_lets_that_much_time_pass(clock) -> None:
    begin = clock.now()
    for seconds in (0.02, 0.0, -1.0):
        clock.sleep(seconds)
    assert clock.now() - begin >= 0.02 - 1e-9


@on_both
def test_work_that_was_started_goes_on_beside_its_starter(clock) -> None:
    task = clock.start(lambda: (clock.sleep(0.02), "done")[1], "beside")
    assert not task.done()
    assert task.result() == "done" and task.done()


@on_both
def test_a_result_is_waited_for_as_long_as_one_likes(clock) -> None:
    task = clock.start(lambda: clock.sleep(0.2), "slow")
    with pytest.raises(FutureTimeout):
        task.result(0.01)
    assert task.result(10.0) is None


@on_both
def test_what_the_work_raises_reaches_whoever_asks_for_its_result(clock) -> None:
    task = clock.start(lambda: 1 // 0, "wrong")
    with pytest.raises(ZeroDivisionError):
        task.result(10.0)


@on_both
def test_a_condition_is_waited_for_until_another_ones_work_makes_it_true(clock) -> None:
    seen: list[str] = []

    def other() -> None:
        clock.sleep(0.02)
        seen.append("other")
        if isinstance(clock, VirtualClock):
            clock.changed()

    task = clock.start(other, "other")
    clock.wait_until(lambda: bool(seen))
    assert seen == ["other"]
    task.result()


@on_both
def test_an_event_wakes_all_who_wait_for_it_at_that_moment(clock) -> None:
    event, late_s = clock.event(), []

    def waits() -> None:
        assert event.wait(10.0)
        late_s.append(clock.now() - happened)

    waiting = [clock.start(waits, "waits") for _ in range(2)]
    clock.sleep(0.05)
    assert not event.is_set()
    happened = clock.now()
    event.set()
    for task in waiting:
        task.result()
    assert event.is_set() and event.wait()
    assert min(late_s) < 0.005  # far less than the longest pause of who looks


@on_both
def test_an_event_that_does_not_happen_is_waited_for_as_long_as_one_likes(clock) -> None:
    event, begin = clock.event(), clock.now()
    assert not event.wait(0.02) and not event.wait(0.0)
    assert clock.now() - begin >= 0.02 - 1e-9


@on_both
def test_a_lock_lets_in_one_after_the_other(clock) -> None:
    lock, count = clock.lock(), [0]

    def add() -> None:
        for _ in range(1000):
            with lock:
                count[0] += 1

    for task in [clock.start(add, "adds") for _ in range(4)]:
        task.result()
    assert count == [4000]


# ------------------------------------------------------------------------------------------------ real time


class Time:
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
    time = Time()
    happens = time.now + wait_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_module, "time", time)
        RealClock().wait_until(lambda: time.now >= happens)
    return time.now - happens, time.pauses


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


# ------------------------------------------------------------------------------------------------ virtual time


def test_an_event_that_comes_too_late_wakes_nobody_twice(clock) -> None:
    event = clock.event()

    def waits() -> float:
        assert not event.wait(1.0)
        clock.sleep(9.0)  # the event at 5 s must not shorten it
        return clock.now()

    waiting = clock.start(waits, "waits")
    clock.sleep(5.0)
    event.set()
    assert waiting.result() == 10.0


def test_computing_takes_no_virtual_time_and_sleeping_no_real_one(clock) -> None:
    sum(range(10_000))
    assert clock.now() == 0.0
    clock.sleep(1e9)
    assert clock.now() == 1e9


@given(naps=st.lists(st.lists(st.sampled_from([0.25, 0.5, 1.0, 2.0]), max_size=6), min_size=1, max_size=5))
def test_workers_take_their_turns_in_the_order_of_time_and_of_asking(naps: list[list[float]]) -> None:
    def run() -> list[tuple[float, int]]:
        clock, moments = VirtualClock(), []

        def worker(number: int) -> Callable[[], None]:
            def work() -> None:
                for nap in naps[number]:
                    clock.sleep(nap)
                    moments.append((clock.now(), number))

            return work

        run_all(clock, [worker(number) for number in range(len(naps))])
        return moments

    moments = run()
    assert [moment for moment, _ in moments] == sorted(moment for moment, _ in moments)
    expected = {(moment, number) for number, one in enumerate(naps) for moment in itertools.accumulate(one)}
    assert set(moments) == expected
    assert run() == moments


def test_conditions_are_looked_at_after_changes_only(clock) -> None:
    looks, value = itertools.count(), []
    waits = clock.start(lambda: clock.wait_until(lambda: (next(looks), len(value) >= 2)[1]), "waits")
    for _ in range(2):
        clock.sleep(100.0)
        value.append(1)
        clock.changed()
    waits.result()
    assert next(looks) == 3


def test_whoever_was_woken_is_not_woken_again_by_an_alarm_it_had_set(clock) -> None:
    clock.start(lambda: clock.sleep(1.0), "short").result(5.0)
    clock.sleep(10.0)  # the alarm at 5 s is none any more
    assert clock.now() == 11.0


def test_workers_that_wait_for_each_other_are_named() -> None:
    clock = VirtualClock()
    with pytest.raises(Deadlock, match="worker 0, worker 1"):
        run_all(clock, [lambda: clock.wait_until(lambda: False)] * 2)


def test_an_error_of_a_worker_ends_the_run_and_the_others() -> None:
    clock, ended = VirtualClock(), []

    def other() -> None:
        try:
            clock.sleep(math.inf)
        finally:
            ended.append("other")

    with pytest.raises(ZeroDivisionError):
        run_all(clock, [other, lambda: (clock.sleep(1.0), 1 // 0)])
    assert ended == ["other"]


def test_a_run_can_end_before_its_workers() -> None:
    clock, steps = VirtualClock(), []

    def work() -> None:
        while True:
            clock.sleep(1.0)
            steps.append(clock.now())

    run_all(clock, [work], until=3.5)
    assert steps == [1.0, 2.0, 3.0]
