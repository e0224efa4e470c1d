"""What each worker is said to do, under each policy: on a virtual clock, from messages alone."""

from typing import Any

import pytest
from scripted_job import ENDED, EVALUATING, ScriptedJob

from server.messages import Report, Status, Total
from server.row import Activity

TRAINING, WAITING, EXCHANGING, SILENT = "training", "waiting", "pushing and pulling", "silent"


@pytest.mark.parametrize("policy", ["journal", "upload-aware"])
def test_each_worker_trains_waits_for_those_that_do_and_aggregates_with_them(policy: str) -> None:
    job = ScriptedJob(3, policy)
    assert job.states(1.0) == ["not seen yet"] * 3
    job.all_report(1, 1.0)
    assert job.states(1.5) == [TRAINING] * 3
    assert job.query(2, 1, 1, 10.0, 11.0) == "TRAIN"  # no other step time is known
    assert job.query(0, 1, 1, 1.0, 11.0) == "TRAIN"
    assert job.query(1, 1, 1, 1.0, 11.0) == "SYNC"
    assert job.states(11.1) == [TRAINING, WAITING, TRAINING]
    assert job.whom(1, 11.1) == "workers 2 and 0"
    assert job.query(0, 1, 2, 1.0, 12.0) == "SYNC"
    assert job.states(12.1) == [WAITING, WAITING, TRAINING]
    assert job.whom(0, 12.1) == "worker 2"
    assert job.query(2, 1, 2, 10.0, 21.0) == "SYNC"
    assert job.states(21.1) == [EXCHANGING] * 3
    job.report(1, 2, 22.0)
    assert job.states(22.1) == [EXCHANGING, TRAINING, EXCHANGING]


def two_in_step() -> ScriptedJob:
    """Worker 1 takes 1.5 s a step, worker 0 one second; both were told to aggregate."""
    job = ScriptedJob(2)
    job.all_report(1, 1.0)
    job.query(0, 1, 1, 1.0, 2.0)
    job.query(1, 1, 1, 1.5, 2.5)
    job.query(0, 1, 2, 1.0, 3.0)
    assert job.states(3.0) == [EXCHANGING] * 2
    return job


def test_an_evaluation_is_no_aggregation_and_others_wait_for_it() -> None:
    job = two_in_step()
    job.report(0, 1, 3.5, doing=EVALUATING)
    job.report(1, 2, 3.5)
    assert job.states(3.6) == ["evaluating", TRAINING]
    assert job.query(1, 2, 1, 1.5, 5.0) == "SYNC"
    assert job.states(5.1) == ["evaluating", WAITING]
    assert job.whom(1, 5.1) == "worker 0, which evaluates"
    job.report(0, 2, 6.0, accuracy=0.5)
    assert job.states(6.1) == [TRAINING, WAITING]
    assert job.whom(1, 6.1) == "worker 0"


def test_many_that_are_waited_for_are_counted_and_who_evaluates_is_named_first() -> None:
    job = ScriptedJob(8)
    job.all_report(1, 0.0)
    for rank in range(1, 8):
        assert job.query(rank, 1, 1, 0.1 * rank, 4.9) == "TRAIN"  # worker 0's step time is not known yet
    job.query(0, 1, 1, 5.0, 5.0)
    assert job.query(0, 1, 2, 5.0, 9.0) == "SYNC"
    assert job.whom(0, 9.1) == "workers 7, 6, 5 and 4 more"
    job.report(2, 1, 9.1, doing=EVALUATING)
    assert job.whom(0, 9.1) == "worker 2, which evaluates, and 6 more"


def test_a_lost_worker_is_silent_after_some_seconds_and_those_that_wait_for_it_are_not() -> None:
    job = two_in_step()
    job.report(0, 2, 4.0)
    job.report(1, 2, 4.0)
    assert job.query(0, 2, 1, 1.0, 5.0) == "SYNC"
    # Nobody is told to do without it before 30 s; who watches the page may know sooner.
    assert job.states(13.9) == [WAITING, TRAINING]  # five times the 2 s in which it reaches the server
    assert job.states(14.1) == [WAITING, SILENT]
    assert job.whom(0, 14.1) == "worker 1, which is silent"
    assert job.states(100.0) == [WAITING, SILENT]


def test_who_evaluates_exchanges_or_has_no_known_step_time_is_silent_only_after_long() -> None:
    job = ScriptedJob(1)
    job.report(0, 1, 0.0)
    assert [job.states(now)[0] for now in (29.0, 31.0)] == [TRAINING, SILENT]
    job = two_in_step()  # a published worker evaluates here without a word
    assert [job.states(now) for now in (20.0, 34.0)] == [[EXCHANGING] * 2, [SILENT] * 2]
    job.report(0, 1, 3.5, doing=EVALUATING)
    assert [job.states(now)[0] for now in (300.0, 304.0)] == ["evaluating", SILENT]


def test_nobody_waits_for_who_has_left_and_a_job_that_has_ended_has_no_other_state() -> None:
    job = ScriptedJob(2)
    job.all_report(1, 0.0)
    job.query(0, 1, 1, 1.0, 1.0)
    job.query(1, 1, 1, 1.0, 1.0)
    job.report(1, 1, 2.0, doing=ENDED)
    assert job.query(0, 1, 2, 1.0, 2.5) == "SYNC"
    assert job.states(3.0) == [EXCHANGING, "ended"]
    job.report(0, 1, 3.5, doing=ENDED)
    assert job.states(100.0) == ["ended"] * 2


def test_after_a_restart_nobody_is_said_to_wait_for_those_that_may_wait_themselves() -> None:
    job = ScriptedJob(2, resumed=True)
    assert job.query(0, 57, 3, 1.0, 1.0) == "SYNC"
    assert job.states(1.5) == [EXCHANGING, "not seen yet"]


def test_under_wbsp_nobody_waits() -> None:
    job = ScriptedJob(3, "wbsp")
    job.all_report(1, 0.0)
    for rank, seconds in enumerate((0.1, 0.2, 2.0)):
        job.query(rank, 1, 1, seconds, 2.0)
    assert job.query(0, 1, 2, 0.1, 2.1) == "TRAIN"
    assert job.query(2, 1, 2, 2.0, 4.0) == "SYNC"
    assert job.states(4.1) == [TRAINING, TRAINING, EXCHANGING]
    job.report(2, 2, 4.5)
    assert job.states(4.6) == [TRAINING] * 3


def in_step(num_workers: int = 3) -> ScriptedJob:
    """All began a step at 0.5 and ended it at 1.0; they exchange 0.1 s."""
    job = ScriptedJob(num_workers, "sync-switch-none", transmission_time=0.1)
    job.all_report(1, 0.5)
    for rank in range(num_workers):
        assert job.query(rank, 1, 1, 0.5, 1.0, way="BSP") == "SYNC"
    return job


def test_under_bsp_equal_workers_train_and_do_not_wait() -> None:
    job = in_step()
    assert job.states(1.2) == [TRAINING] * 3
    for step in range(2, 30):
        for rank in range(3):
            job.query(rank, step, 1, 0.5, 0.4 + 0.6 * step)
            assert job.states(0.4 + 0.6 * step + 0.001).count(TRAINING) >= 1
        assert job.states(0.5 + 0.6 * step) == [TRAINING] * 3


def test_under_bsp_those_that_have_ended_their_step_wait_for_those_that_have_not() -> None:
    job = in_step()
    job.query(0, 2, 1, 0.5, 1.6)
    assert job.states(1.7) == [WAITING, TRAINING, TRAINING]
    assert job.whom(0, 1.7) == "workers 1 and 2"
    job.query(1, 2, 1, 0.9, 2.0)
    assert job.states(2.1) == [WAITING, WAITING, TRAINING]
    assert job.whom(1, 2.1) == "worker 2"
    job.query(2, 2, 1, 1.4, 2.5)
    assert job.states(2.6) == [TRAINING] * 3


def test_who_has_waited_long_under_bsp_is_not_silent_when_it_goes_on() -> None:
    job = in_step(num_workers=2)
    job.query(0, 2, 1, 0.5, 1.6)
    assert job.states(11.0)[0] == WAITING
    job.query(1, 2, 1, 10.0, 11.1)
    assert job.states(11.2) == [TRAINING] * 2
    assert job.states(17.0)[0] == SILENT  # it should have ended its step long ago


def test_an_evaluation_under_bsp_is_named() -> None:
    job = in_step()
    job.report(0, 1, 1.1, doing=EVALUATING)
    job.query(1, 2, 1, 0.5, 1.6)
    assert job.states(1.7) == ["evaluating", WAITING, TRAINING]
    assert job.whom(1, 1.7) == "worker 0, which evaluates, and 1 more"


def test_under_asp_all_train_whatever_others_do() -> None:
    job = in_step()
    for rank, round in enumerate((40, 30, 9)):
        total = Total(round, 64 * round, 0.4 * round)
        job.report(rank, round, 5.0 + 0.1 * rank, way="ASP", total=total)
    assert job.states(5.4) == [TRAINING] * 3
    job.report(0, 50, 10.0, way="ASP")
    assert job.states(10.5) == [TRAINING, SILENT, SILENT]


def one_slow(policy: str) -> ScriptedJob:
    """Worker 3 takes 5 s a step and the three others 0.5 s; at 36 s all have done six, and the rule has seen it."""
    job = ScriptedJob(4, policy, transmission_time=0.1)
    job.all_report(1, 0.0)
    assert job.step_in_turn(range(1, 7), 0.5, 0.5, 0.5, 5.0, first=6.0, every=6.0, way="BSP")[3] == "TRAIN"
    return job


def test_what_greedy_takes_for_asp_is_training() -> None:
    assert one_slow("sync-switch-greedy").states(37.0)[3] == TRAINING


def test_whom_elastic_leaves_out_is_left_out_and_neither_awaited_nor_silent() -> None:
    job = one_slow("sync-switch-elastic")
    job.step_in_turn(range(7, 200), 0.5, 0.5, 0.5, first=36.6, every=0.6, way="BSP")
    now = 36.0 + 0.6 * 193 + 0.1
    assert job.states(now) == [TRAINING, TRAINING, TRAINING, "left out"]
    timeline = job.status(now)["timeline"]
    assert [kind for kind, *_ in timeline["lanes"][3]["spans"]] == ["left-out"]
    assert dict(timeline["legend"])["left-out"] == "left out"
    job.query(0, 200, 1, 0.5, now + 0.5)
    assert job.whom(0, now + 0.51) == "workers 1 and 2"


def tell(job: ScriptedJob, rank: int, round: int, now: float, computed: float, **more: Any) -> None:
    total = Total(steps=round, samples=64 * round, computing=computed)
    status = Status(rank, 1, round, 2.0 if rank else 1.0)
    job.handlers.report(Report(f"worker-{rank}", job.id, status, total=total, elapsed=now, **more), now)


def test_who_waits_without_a_rule_says_so_and_the_times_are_those_that_were_told() -> None:
    job = ScriptedJob(2, "watched")
    for round in range(1, 5):  # rounds of 2 s, of which worker 0 computes half
        tell(job, 0, round, 2.0 * round - 1, round, doing=Activity.WAITING, loss=1 / round)
        tell(job, 1, round, 2.0 * round, 2.0 * round, doing=Activity.WAITING, loss=3 / round)
        assert job.states(2.0 * round) == [EXCHANGING] * 2
    tell(job, 1, 5, 8.1, 8.0)
    assert job.states(9.0) == [WAITING, TRAINING]
    assert job.whom(0, 9.0) == "worker 1"
    shown = job.status(9.0)
    about = [(each["computing_share"], each["mark"]) for each in shown["workers"]]
    assert about == [(0.571, ""), (0.988, "slowest")]
    assert shown["workers"][0]["transmission_time_s"] is None
    kinds = [kind for kind, *_ in shown["timeline"]["lanes"][0]["spans"]]
    assert kinds == ["computing", "waiting"] * 4
    losses = [(round, value) for _, value, round in shown["losses"]]
    assert losses == [(1, 1.0), (2, 1.75), (3, pytest.approx(11 / 12)), (4, 0.625)]
    assert job.states(200.0) == [WAITING, SILENT]


def test_an_event_that_several_workers_tell_is_one_and_one_that_comes_again_is_another() -> None:
    job = ScriptedJob(2, "sync-switch-greedy")
    for begin in (1.0, 50.0):
        for rank in range(2):
            events = ((3, begin, "greedy", "back to BSP"), (4, begin + rank, "switch", f"phase {begin}"))
            tell(job, rank, round(begin) + 3, begin + rank + 1, 1.0, events=events)
    assert [event[:2] for event in job.status(60.0)["events"]] == [
        [1.0, "greedy"], [1.0, "switch"], [50.0, "greedy"], [50.0, "switch"],
    ]  # fmt: skip


def test_whoever_has_not_left_a_job_that_was_cut_off_is_lost() -> None:
    job = ScriptedJob(3, "watched")
    tell(job, 0, 1, 1.0, 1.0, doing=ENDED)
    tell(job, 1, 1, 1.0, 1.0)
    job.handlers.jobs.cut_off(5.0)
    assert job.states(5.0) == ["ended", "lost", "lost"]
    assert job.status(5.0)["state"] == "ended"
