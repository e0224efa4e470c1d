"""The page's timeline: who computed, waited, evaluated and was left out, under each policy; on a virtual clock."""

import itertools
from typing import Any

from scripted_job import EVALUATING, ScriptedJob

from server.row import HISTORY_ROUNDS
from server.timeline import LANES, ROUNDS


def lanes(job: ScriptedJob, now: float) -> list[list[tuple[str, float, float]]]:
    """The stretches of each lane, (kind, begin, end) on the server's clock."""
    timeline = job.status(now)["timeline"]
    end = now - timeline["ends_s"]
    return [
        [(kind, round(end - first, 2), round(end - last, 2)) for kind, first, last, _ in lane["spans"]]
        for lane in timeline["lanes"]
    ]


def test_a_round_of_esync_is_computing_then_waiting_and_exchanging_and_then_the_worker_may_be_silent() -> None:
    job = ScriptedJob(1, began=90.0)
    job.report(0, 1, 100.0)
    job.query(0, 1, 1, 6.0, 106.0)
    job.report(0, 2, 110.0)
    round_1 = [("computing", 100.0, 106.0), ("waiting", 106.0, 110.0)]
    assert lanes(job, 112.0) == [[*round_1, ("computing", 110.0, 112.0)]]
    assert job.status(112.0)["timeline"]["seconds"] == 12.0
    assert lanes(job, 150.0) == [[*round_1, ("silent", 110.0, 150.0)]]


def test_an_evaluation_has_its_own_colour() -> None:
    job = ScriptedJob(1)
    job.report(0, 1, 1.0)
    job.query(0, 1, 1, 1.0, 2.0)
    job.report(0, 1, 2.5, doing=EVALUATING)
    expected = [("computing", 1.0, 2.0), ("waiting", 2.0, 2.5), ("evaluating", 2.5, 9.5)]
    assert lanes(job, 9.5) == [expected]
    job.report(0, 2, 9.5)
    assert lanes(job, 10.0) == [[*expected, ("computing", 9.5, 10.0)]]


def test_a_step_under_bsp_lies_before_its_question_and_the_wait_behind_it() -> None:
    job = ScriptedJob(2, "sync-switch-none", transmission_time=0.1)
    for begin in (0, 2, 4):
        for rank, seconds in enumerate((0.5, 1.9)):
            job.query(rank, 1 + begin // 2, 1, seconds, begin + seconds, way="BSP")
    assert lanes(job, 6.5) == [
        [
            ("computing", 0.0, end), ("waiting", end, 2.0), ("computing", 2.0, 2.0 + end), ("waiting", 2.0 + end, 4.0),
            ("computing", 4.0, 4.0 + end), ("waiting", 4.0 + end, 6.0), ("computing", 6.0, 6.5),
        ]
        for end in (0.5, 1.9)
    ]  # fmt: skip


def test_under_asp_every_lane_is_full_however_different_the_rounds_are() -> None:
    job = ScriptedJob(2, "sync-switch-none")
    job.all_report(1, 0.0)
    for second in range(1, 41):
        job.report(0, 1 + 20 * second, float(second), way="ASP")
        job.report(1, 1 + second, second + 0.3, way="ASP")
    shown = lanes(job, 41.0)
    for lane in shown:
        assert {kind for kind, _, _ in lane} == {"computing"}
        assert lane[0][1] <= 41.0 - (ROUNDS - 1) and lane[-1][2] == 41.0
        assert all(before[2] == after[1] for before, after in itertools.pairwise(lane))


def test_what_colours_mean_depends_on_the_policy() -> None:
    def legend(policy: str) -> dict[str, Any]:
        return dict(ScriptedJob(1, policy).status(0.0)["timeline"]["legend"])

    assert legend("journal")["waiting"] == "waiting, pushing, pulling"
    assert legend("wbsp")["waiting"] == "releasing the global model"
    assert "BSP" in legend("sync-switch-none")["waiting"]
    assert "left-out" not in legend("sync-switch-none")


def test_what_was_done_stays_readable_when_nobody_is_heard_for_hours() -> None:
    job = ScriptedJob(1)
    for round in range(1, 21):
        job.report(0, round, 10.0 * round)
        job.query(0, round, 1, 5.0, 10.0 * round + 5)
    timeline = job.status(205.0 + 7200)["timeline"]
    assert timeline["ends_s"] > 7000
    assert timeline["seconds"] < 200


def test_lanes_and_rounds_are_bounded() -> None:
    job = ScriptedJob(2 * LANES)
    for round in range(1, 3 * HISTORY_ROUNDS):
        for rank in range(2 * LANES):
            job.query(rank, round, 1, 1.0, 2.0 * round + rank / 1000)
    timeline = job.status(121.0)["timeline"]
    assert len(timeline["lanes"]) == LANES
    assert all({span[3] for span in lane["spans"]} <= set(range(47, 61)) for lane in timeline["lanes"])
