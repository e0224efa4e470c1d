"""How fast a job is, how far from its end, and how much time the readers may take; on a virtual clock."""

import itertools

import pytest
from hypothesis import given, strategies as st
from scripted_job import ENDED, ScriptedJob

from server.answers import SHARE, ResponseCache
from server.job_rates import MAX_POINTS, JobRates, rates
from server.messages import Limits, Total
from server.row import Row


def train(job: ScriptedJob, rounds: int) -> float:
    """Rounds of 2 s, of one step of a second each; returns when the last ended."""
    for round in range(1, rounds + 1):
        job.all_report(round, 2.0 * (round - 1))
        for row in job.job.rows:
            job.query(row.rank, round, 1, 1.0, 2.0 * round - 1)
    return 2.0 * rounds


@given(st.lists(st.floats(0, 50), min_size=1, max_size=2000))
def test_the_history_is_bounded_and_its_last_mark_is_all_that_was_done(pauses: list[float]) -> None:
    pace, row, now = JobRates(0.0), Row(0), 0.0
    for count, pause in enumerate(pauses, start=1):
        now += pause
        after = row._replace(heard=now, samples=64 * count, computing=0.5 * count, round=count)
        pace.note(row, after)
        row = after
    marks = pace.marks
    assert len(marks) <= MAX_POINTS + 1
    assert [mark.time for mark in marks] == sorted(mark.time for mark in marks)
    assert marks[-1].samples == 64 * len(pauses) or now == 0


def test_of_a_long_history_less_is_kept_everywhere_and_not_of_its_beginning_alone() -> None:
    pace = JobRates(0.0)
    for now in range(5 * MAX_POINTS):
        pace.note(Row(0, samples=now), Row(0, samples=now + 1, heard=float(now)))
    times = [mark.time for mark in pace.marks[:-1]]  # the last one is of now
    assert {after - before for before, after in itertools.pairwise(times)} == {8.0}


def test_the_curve_of_samples_per_second_is_what_was_trained_on_in_its_windows_and_falls_behind_them() -> None:
    job = ScriptedJob(2)
    end = train(job, 50)
    curve = job.status(end)["rates"]
    assert 8 <= len(curve) <= 50
    assert all(rate == pytest.approx(64, rel=0.3) for _, rate in curve)
    assert rates(job.job.table.rates.marks, end + 20)[-1][1] < 20


def test_what_was_done_before_a_restart_is_no_pace() -> None:
    job = ScriptedJob(1, resumed=True)
    for second in range(10):
        steps = 1_000_000 + second
        job.report(0, 500 + second, float(second), elapsed=5000.0 + second, total=Total(steps, 64 * steps, 4000.0))
    shown = job.status(9.0)
    assert shown["samples"] == 64 * 1_000_009
    assert max(rate for _, rate in shown["rates"]) < 65
    assert shown["samples_per_s"] == pytest.approx(64, rel=0.2)


def test_the_throughput_counts_samples_over_the_time_of_the_rounds_that_are_kept() -> None:
    job = ScriptedJob(1)
    for round in range(1, 41):
        job.report(0, round, 10.0 * round)
        job.query(0, round, 5, 1.0, 10.0 * round + 5)
    shown = job.status(410.0)
    assert shown["samples_per_s"] == 5 * 64 / 10
    assert shown["samples"] == 40 * 5 * 64


def test_the_share_of_time_that_each_worker_computed_and_that_of_all() -> None:
    job = ScriptedJob(2)
    for round in range(1, 31):
        job.all_report(round, 4.0 * round)
        job.query(0, round, 1, 1.0, 4.0 * round + 1)
        job.query(1, round, 1, 3.0, 4.0 * round + 3)
        job.query(0, round, 2, 1.0, 4.0 * round + 3)
    shown = job.status(124.0)
    assert [worker["computing_share"] for worker in shown["workers"]] == [0.5, 0.75]
    assert shown["computing_share"] == 0.625


def test_a_running_step_does_not_lower_the_share() -> None:
    job = ScriptedJob(1)
    job.report(0, 1, 0.0)
    job.query(0, 1, 1, 100.0, 100.0)
    job.report(0, 2, 110.0)
    before = job.status(111.0)["computing_share"]
    assert before == job.status(200.0)["computing_share"] == round(100 / 110, 3)


def test_the_time_that_is_left_follows_the_pace_of_rounds() -> None:
    job = ScriptedJob(2, limits=Limits(rounds=100))
    end = train(job, 40)
    shown = job.status(end)["end"]
    assert shown["rounds"] == [39, 100]
    assert shown["share"] == 0.39
    assert shown["left_s"] == pytest.approx(61 * 2.0, rel=0.1)
    assert job.status(end + 20)["end"]["left_s"] > 1.3 * shown["left_s"]  # it stands still


def test_the_limit_that_comes_first_counts_and_a_target_is_no_estimate() -> None:
    job = ScriptedJob(1, limits=Limits(rounds=100, seconds=100.0, accuracy=0.9))
    end = train(job, 25)
    shown = job.status(end)["end"]
    assert (shown["share"], shown["left_s"], shown["accuracy"]) == (0.5, 50.0, 0.9)
    only_target = ScriptedJob(1, limits=Limits(accuracy=0.9)).status(1.0)["end"]
    assert (only_target["share"], only_target["left_s"]) == (None, None)


def test_the_clock_stops_when_the_job_has_ended_and_when_nobody_is_heard() -> None:
    job = ScriptedJob(1, limits=Limits(rounds=10))
    end = train(job, 10)
    quiet = job.status(end + 500)
    assert (quiet["state"], quiet["elapsed_s"]) == ("quiet", end - 1)
    assert (quiet["end"]["rounds"], quiet["end"]["left_s"]) == ([9, 10], None)  # nobody has said that it ended
    job.report(0, 10, end, doing=ENDED)
    ended = job.status(end + 500)
    assert (ended["state"], ended["elapsed_s"], ended["states"]) == ("ended", end, {"ended": 1})
    assert (ended["end"]["share"], ended["end"]["left_s"], ended["end"]["rounds"]) == (1.0, None, [10, 10])
    assert ended["samples_per_s"] > 0


def test_after_a_restart_the_clock_is_the_workers_and_what_is_lost_is_said() -> None:
    job = ScriptedJob(1, resumed=True, began=1000.0)
    assert not job.status(1000.5)["beginning_known"]
    job.report(0, 57, 1001.0, elapsed=601.0)
    shown = job.status(1002.0)
    assert (shown["elapsed_s"], shown["beginning_known"], shown["resumed_s"]) == (602.0, True, 2.0)
    assert shown["history_lost"]
    job.report(0, 57, 1003.0, elapsed=603.0, accuracies=((1, 10.0, 0.3), (30, 300.0, 0.8), (50, 500.0, 0.7)))
    shown = job.status(1004.0)
    assert not shown["history_lost"]
    assert shown["best"] == [300.0, 0.8]
    assert [point[0] for point in shown["accuracies"]] == [10.0, 300.0, 500.0]


def test_the_rows_of_a_job_that_was_left_alone_are_not_gone_through_again_until_a_worker_is_heard() -> None:
    job = ScriptedJob(3)
    train(job, 3)
    rows = job.job.table.rows
    assert not job.job.is_at_work(1000.0)
    job.job.table.rows = None  # type: ignore[assignment]
    assert not job.job.is_at_work(1001.0)
    job.job.table.rows = rows
    job.report(0, 4, 1002.0)
    assert job.job.is_at_work(1003.0)


class Costly:
    """Takes so long on its clock, and counts how often."""

    now = 100.0

    def __init__(self, seconds: float) -> None:
        self.seconds, self.times = seconds, 0

    def __call__(self) -> bytes:
        self.times += 1
        Costly.now += self.seconds
        return b""


def cache() -> ResponseCache:
    return ResponseCache(lambda: Costly.now)


def test_what_was_cheap_is_made_twice_a_second_at_most() -> None:
    kept, make = cache(), Costly(0.001)
    for _ in range(1000):
        kept.get("a", make)
        Costly.now += 0.01
    assert make.times == pytest.approx(20, abs=1)


def test_readers_together_do_not_take_more_than_their_share_of_the_time() -> None:
    kept, makes = cache(), [Costly(0.05) for _ in range(40)]
    for key, make in enumerate(makes):
        kept.get(key, make)  # everybody gets an answer once
    begin = Costly.now
    while Costly.now < begin + 500:
        for key, make in enumerate(makes):
            kept.get(key, make)
        Costly.now += 0.01
    assert sum(make.times - 1 for make in makes) * 0.05 <= SHARE * 520


def test_a_failure_is_not_kept() -> None:
    kept = cache()
    with pytest.raises(ZeroDivisionError):
        kept.get("a", lambda: bytes(1 // 0))
    assert kept.get("a", lambda: b"1") == b"1"
