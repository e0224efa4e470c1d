"""What a worker keeps of its job for the state server, and what is told beside the training."""

from __future__ import annotations

import itertools
import json

from hypothesis import example, given, strategies as st

from esync.client import NOTICE_REST_S, Notices
from esync.metric import ACCURACY
from esync.progress import FIRST, Point, Progress, Total, spaced
from trainer.run_logs.rounds import of_log
from trainer.survival.trainer_state import resume_progress


def test_the_total_of_a_job_that_goes_on_counts_its_logs():
    stages = [{"forward and backward": 0.1, "evaluation": 9.0}, {"forward and backward": 0.5}]
    rounds = [
        {"num_iters": number, "num_samples": 96 - 32 * number, "total_time": number, "time": {"0": seconds}}
        for number, seconds in enumerate(stages, start=1)
    ]
    rounds[1]["accuracy"] = 0.5
    made = Progress()
    resume_progress(made, [of_log(json.dumps(each)) for each in rounds])
    assert made.total == Total(2, 96, 0.6)
    assert made.curve() == [(2, 2.0, 0.5)]


def test_the_mean_of_evaluations_in_a_row_is_that_of_the_newest_ones():
    its = Progress()
    its.measured(1, 0.5)
    its.measured(2, None)  # an evaluation that failed
    assert its.mean(2) is its.newest is None
    its.measured(3, 0.75)
    its.measured(4, 0.25)
    assert (its.mean(1), its.mean(2), its.mean(3), its.mean(4)) == (0.25, 0.5, 0.5, None)


@example([0.25] + [0.5] * 50, 4)  # of equals the first
@given(st.lists(st.floats(0, 1), max_size=300), st.integers(4, 40))
def test_a_curve_of_any_length_is_bounded_and_even_and_has_the_last_and_the_best(accuracies, limit):
    all_points = [Point(round_, float(round_), accuracy) for round_, accuracy in enumerate(accuracies, start=2)]
    points = spaced(all_points, ACCURACY, limit)
    assert len(points) <= limit
    assert points == sorted(points)
    assert set(points) <= set(all_points)
    if not accuracies:
        return
    best = max(accuracies)
    assert points[-1] == all_points[-1]
    assert all_points[accuracies.index(best)] in points
    stride = next(1 << power for power in range(9) if {*all_points[:: 1 << power]} <= {*points})
    assert len({*points} - {*all_points[::stride]}) <= 2
    assert stride == 1 or len(all_points[::stride]) > (limit - 2) // 2


def test_in_the_background_the_newest_task_takes_the_place_of_those_that_wait(clock) -> None:
    done: list[tuple[int, float]] = []
    background = Notices(clock, NOTICE_REST_S, clock.event())
    background.wait_until_idle(9.0)  # there is nothing to wait for
    for number in range(5):
        background.begin(lambda number=number: (clock.sleep(1.0), done.append((number, clock.now()))))
        clock.sleep(0.2)
    background.wait_until_idle(0.5)
    assert done == [(0, 1.0)]
    background.wait_until_idle(9.0)
    background.begin(lambda: done.append((5, clock.now())))
    background.wait_until_idle(9.0)
    assert done == [(0, 1.0), (4, 2.0 + NOTICE_REST_S), (5, 2.0 + 2 * NOTICE_REST_S)]


def diverges(*losses, progress=None, begin=1):
    """The round that ends the job; 0: none does."""
    progress = progress or Progress()
    return next((number for number, loss in enumerate(losses, begin) if progress.has_diverged(number, loss)), 0)


def test_a_loss_that_has_grown_a_million_times_for_twenty_rounds_has_diverged():
    grown = [2.0] * 20 + [10.0**number for number in range(26)]
    assert diverges(*grown) == 0 and diverges(*grown, *[1e25] * 9) == 20 + 7 + 20
    assert diverges(*[-value for value in grown], *[-1e25] * 9) == 47
    assert diverges(*[1e-3] * 20, *itertools.islice(itertools.cycle([1e4] * 19 + [1.0]), 90)) == 0
    assert diverges(*[1e-3] * 20, *[1e4, None] * 20) == 20 + 39  # steps that were skipped do not count


def test_a_loss_that_falls_and_rises_or_begins_at_nothing_or_is_negative_has_not_diverged():
    assert diverges(*[1.0] * 20, *[1e-12] * 30, *[1e-3] * 30) == 0
    assert diverges(*[0.0] * 20, *[0.5] * 30) == diverges(*[-number * 1e3 for number in range(90)]) == 0


def test_a_job_that_goes_on_compares_with_its_first_rounds_or_with_none():
    record = {"num_samples": 64, "total_time": 1.0, "time": {}}
    rounds = [{**record, "num_iters": number, "loss": 1.0 if number <= FIRST else 1e-12} for number in range(1, 90)]
    gone_on = Progress()
    resume_progress(gone_on, [of_log(json.dumps(each)) for each in rounds])
    assert diverges(*[1e-3] * 30, progress=gone_on, begin=90) == 0
    assert diverges(*[1e7] * 30, progress=gone_on, begin=120) == 139
    assert diverges(*[1e-12] * 30, *[1e7] * 30, begin=90) == 0  # its logs are gone, or it came later
