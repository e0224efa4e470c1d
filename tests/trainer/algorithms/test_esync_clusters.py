"""What ESync's rules do with whole clusters: bounds that hold for any of them, and changes of pace, in virtual time.

The times are multiples of 2**-10 s: sums and differences of such floats have no rounding error, so that "below" means
below where nobody gives up a step (at a third of it). A round's own numbers count from round 2 on, for unequal networks
from round 3 on: a transmission is measured in round 1 and told at the beginning of round 2, where a worker with a
faster network may have asked already.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st
from timed_cluster import Outcome, Round, Worker, follow

from esync.queries import AWAY_S
from server.row import Action

TICK = 2.0**-10  # s
GIVEN_UP_LATE = 2 / 3  # of a step at most: READY may come just behind its forward pass

few = settings(max_examples=12, deadline=None)
either_way = pytest.mark.parametrize("waits", [True, False], ids=["blocking", "non-blocking"])


def ticks(least: int, most: int) -> st.SearchStrategy[float]:
    return st.integers(least, most).map(lambda count: count * TICK)


steps_s = ticks(256, 2048)  # 0.25 to 2 s
transmissions_s = ticks(0, 1024)
round_trips_s = ticks(0, 256).map(lambda seconds: 2 * seconds)  # half of it is a whole number of ticks


@st.composite
def clusters_with_one_network(draw: st.DrawFn) -> list[Worker]:
    """Any step times; transmission and round trip are the same for all."""
    network = draw(transmissions_s), draw(round_trips_s)
    return [Worker(step_s, *network) for step_s in draw(st.lists(steps_s, min_size=1, max_size=5))]


any_cluster = st.lists(st.builds(Worker, steps_s, transmissions_s, round_trips_s), min_size=1, max_size=5)


def longest(workers: Sequence[Worker]) -> float:
    return max(worker.step_s for worker in workers)


def spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def late(workers: Sequence[Worker], waits: bool) -> float:
    """Seconds by which somebody may be late who trains on and has to give a step up.

    Only who does at least two steps a round trains on, so they are at most half of the straggler's and a round trip.
    """
    return 0.0 if waits else GIVEN_UP_LATE * (longest(workers) + max(each.round_trip_s for each in workers)) / 2


def changing(workers: Sequence[Worker], rank: int, **fields: object) -> list[Worker]:
    """The same cluster, with one worker that is different."""
    return [dataclasses.replace(worker, **fields) if rank == k else worker for k, worker in enumerate(workers)]


def done(outcome: Outcome, first_round: int) -> list[list[Round]]:
    """What each worker did from that round on."""
    return [history[first_round - 1 :] for history in outcome.history]


# --------------------------------------------------------------------------------------------------- how rounds end


@few
@given(
    any_cluster,
    st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=7),
    st.sampled_from(["journal", "upload-aware", "preprint"]),
    st.booleans(),
)
def test_every_job_ends_and_each_round_within_a_time_that_the_slowest_explains(
    workers: list[Worker], factors: list[float], policy: str, waits: bool
) -> None:
    """Whatever the steps take: a round takes at most 3 of the longest step, 3 transmissions and 5 round trips.

    The journal's rule says TRAIN only until the straggler is due, so at most a longest step, a transmission and a round
    trip after its report; then a step may run, and another one that is given up. The rest is pull, report, query, push.
    For the preprint's rule this is no theorem: each of its decisions rests on a single step, and those vary here.
    """

    def pace(round_: int, step: int) -> float:
        return factors[(3 * round_ + step) % len(factors)]

    outcome = follow([dataclasses.replace(worker, pace=pace) for worker in workers], 4, policy, waits)
    at_most = (
        3 * max(factors) * longest(workers)
        + 3 * max(worker.transmission_s for worker in workers)
        + 5 * max(worker.round_trip_s for worker in workers)
    )
    for history in outcome.history:
        assert len(history) == 4
        assert max(each.length_s for each in history) <= at_most


@either_way
@few
@given(workers=clusters_with_one_network())
def test_nobody_waits_for_as_long_as_one_own_step_and_a_round_trip_and_the_straggler_never(
    waits: bool, workers: list[Worker]
) -> None:
    """Without waiting for answers, the published bound ("one iteration of a fast device"), but for steps given up.

    With waiting, the steps are n = floor((c_s + q) / (c_k + q)), q the round trip; so within one step of proportional.
    Without, they are at least as many, and at most what fits in a round trip too, floor(c_s / c_k) + floor(q / c_k).
    Fewer where it is cheaper to wait for the answer; the straggler does.
    """
    late_s = late(workers, waits)
    for worker, history in zip(workers, done(follow(workers, 4, waits=waits), 2), strict=True):
        is_straggler, round_trip_s = worker.step_s == longest(workers), worker.round_trip_s
        waiting = (longest(workers) + round_trip_s) // (worker.step_s + round_trip_s)
        most = waiting if waits else longest(workers) // worker.step_s + round_trip_s // worker.step_s
        for each in history:
            assert 0 <= each.waited_s < worker.step_s + (round_trip_s if waits else 0.0) + late_s
            assert waiting <= each.steps <= (1 if is_straggler else most)
            assert not is_straggler or each.waited_s <= late_s


@either_way
@few
@given(workers=any_cluster)
def test_unequal_networks_add_their_differences_to_the_wait(waits: bool, workers: list[Worker]) -> None:
    """The rule ends everybody's round with the straggler's step, however long its push then takes, and does not know
    that a worker with a slow network has pulled later."""
    transmissions = spread([worker.transmission_s for worker in workers])
    round_trips = spread([worker.round_trip_s for worker in workers])
    unequal_s = transmissions + 2 * round_trips + late(workers, waits)
    for worker, history in zip(workers, done(follow(workers, 5, waits=waits), 3), strict=True):
        for each in history:
            assert 0 <= each.waited_s < worker.step_s + worker.round_trip_s + unequal_s


# ----------------------------------------------------------------------------------------- how many steps are done


FOUR = [Worker(step_s, round_trip_s=0.3) for step_s in (1.0, 1.0, 1.0, 4.8)]
SLOW_NETWORK = [Worker(1.0, 1.0, 2.5), Worker(4.0, 1.0, 2.5)]
PREPRINT = [Worker(step_s, round_trip_s=0.02) for step_s in [0.03] * 4 + [3.5] * 2]


@pytest.mark.parametrize(
    ("workers", "waits", "anchor", "steps", "abandoned_s", "lengths_s"),
    [
        # REPORT, the straggler's step, and QUERY; meanwhile three steps of 1.3 s fit.
        (FOUR, True, 0, [[3] * 3] * 3 + [[1] * 3], 0.0, [5.4] * 3),
        # The straggler waits for its answer. The fourth question is answered in the forward pass of the fifth step.
        (FOUR, False, 0, [[4] * 3] * 3 + [[1] * 3], 1 / 3, [5.1] * 3),
        # The straggler waits after each of its two steps; the others fill these 10.2 s.
        (FOUR, False, 2, [[9] * 3] * 3 + [[2] * 3], 1 / 3, [10.2] * 3),
        # In round 1 a fast worker cannot know how many steps there will be, and waits for its first answer; so the one
        # that it gives up in the end takes from 3.5 to 3.53 s. READY comes in its backward pass.
        (PREPRINT, False, 0, [[116] * 3] * 4 + [[1] * 3] * 2, 0.03, [3.53, 3.52, 3.52]),
        # The fourth question, at 4 s, is answered at 6.5 s: from round 2 on two more
        # steps are complete by then. One is given up in its backward pass.
        (SLOW_NETWORK, False, 0, [[4, 6, 6], [1] * 3], 1.0, [9.5, 9.0, 9.0]),
    ],
    ids=["blocking", "non-blocking", "anchor", "the preprint's cluster", "a slow network"],
)
def test_rounds_by_hand(workers, waits, anchor, steps, abandoned_s, lengths_s) -> None:
    history = follow(workers, 3, waits=waits, anchor=anchor).history
    assert [[each.steps for each in of_worker] for of_worker in history] == steps
    for of_worker in history:
        assert [each.length_s for each in of_worker] == pytest.approx(lengths_s)
        given_up = abandoned_s if of_worker[0].steps > anchor + 1 else 0.0
        assert [each.abandoned_s for each in of_worker] == pytest.approx([given_up] * 3)


def test_while_the_state_server_is_away_all_go_on_with_the_steps_of_the_last_round() -> None:
    """For 14.6 s, since round 2, which the straggler, whose one step ends at 9.9 s, ends a second and a try later.
    Round 3 lasts as long as that step. In round 4 it decides again."""
    began_s = 3 * 4.8  # three test steps
    away = [dataclasses.replace(worker, cut=(began_s + 5.4, began_s + 20.0)) for worker in FOUR]
    for of_worker, steps in zip(follow(away, 6, waits=False).history, (4, 4, 4, 1), strict=True):
        assert [each.steps for each in of_worker] == [steps] * 6
        assert [each.length_s for each in of_worker] == pytest.approx([5.1, 4.8 + AWAY_S + 0.6, 4.8, 5.1, 5.1, 5.1])


# ------------------------------------------------------------------------------------------- changes of the pace


@few
@given(clusters_with_one_network(), st.data())
def test_one_outlier_step_makes_no_straggler(workers: list[Worker], data: st.DataObject) -> None:
    """Whoever takes 50 times as long for one step of round 3: from round 4 on all is as if it had not."""
    rank = data.draw(st.integers(0, len(workers) - 1))
    usual = follow(workers, 6)
    outlier = (3, data.draw(st.integers(1, usual.history[rank][2].steps)))
    disturbed = changing(workers, rank, pace=lambda round_, step: 50.0 if (round_, step) == outlier else 1.0)
    assert done(follow(disturbed, 6), 4) == done(usual, 4)


@few
@given(clusters_with_one_network(), st.sampled_from([0.5, 2.0, 8.0]), st.data())
def test_three_rounds_after_a_lasting_change_all_is_as_if_it_had_always_been_so(
    workers: list[Worker], factor: float, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, len(workers) - 1))
    later = changing(workers, rank, pace=lambda round_, step: factor if round_ >= 4 else 1.0)
    always = changing(workers, rank, step_s=factor * workers[rank].step_s)
    assert done(follow(later, 9), 7) == done(follow(always, 9), 7)


@either_way
def test_a_drift_of_the_straggler_costs_what_it_grows_in_three_rounds(waits: bool) -> None:
    """Its smoothed step time is that of three rounds ago."""

    def pace(round_: int, step: int) -> float:
        return 1.03**round_

    fast, slow = Worker(0.125, 0.2, 0.01), Worker(2.0, 0.2, 0.01, pace)
    history = follow([fast, slow], 20, waits=waits).history[0]
    for number, each in enumerate(history[3:], 4):
        lag_s = slow.step_s * (pace(number, 1) - pace(number - 3, 1))
        assert each.waited_s < fast.step_s + fast.round_trip_s + lag_s
        assert each.steps > 0.85 * (slow.step_s * pace(number, 1)) // (fast.step_s + fast.round_trip_s)


# ---------------------------------------------------------------------------------------------------------- silence


@few
@given(
    st.lists(st.builds(Worker, steps_s, transmissions_s, round_trips_s), min_size=2, max_size=4),
    st.integers(1, 4),
    st.booleans(),
    st.data(),
)
def test_a_worker_that_falls_silent_does_not_keep_the_others_from_being_told_to_aggregate(
    workers: list[Worker], last_round: int, waits: bool, data: st.DataObject
) -> None:
    """They are told within its silence limit since it was heard, and two steps with their round trips."""
    rank = data.draw(st.integers(0, len(workers) - 1))
    silent = changing(workers, rank, pace=lambda round_, step: math.inf if round_ == last_round else 1.0)
    job = follow(silent, 1000, waits=waits, until=200.0).state_server.handlers.jobs.latest
    assert job is not None
    heard = job.rows[rank].heard
    step_s = max(worker.step_s + worker.round_trip_s for worker in workers)
    assert heard is not None
    for row in job.rows:
        if row.rank != rank:
            assert row.action is Action.SYNC
            assert row.synced is not None
            assert row.synced <= heard + job.rows[rank].silence_limit + 2 * step_s


def test_a_straggler_that_falls_silent_in_its_step_is_not_waited_for_longer_than_it_would_have_taken() -> None:
    """Steps of 1 and 4 s, rounds of 6 s: silent in its step of round 3, where it is due 5 s after the round's begin."""
    workers = [Worker(1.0, 1.0), Worker(4.0, 1.0, pace=lambda round_, step: math.inf if round_ == 3 else 1.0)]
    outcome = follow(workers, 10, until=200.0)
    job = outcome.state_server.handlers.jobs.latest
    assert job is not None and job.rows[0].synced is not None
    assert [len(history) for history in outcome.history] == [2, 2]
    assert job.rows[0].synced - outcome.began_s == 2 * 6.0 + 4.0


@either_way
@pytest.mark.parametrize("ranks", [(0, 1, 2), (2,)], ids=["all", "the straggler"])
def test_a_worker_that_cannot_reach_the_state_server_costs_the_others_a_second_and_then_nothing(
    waits: bool, ranks: Sequence[int]
) -> None:
    """For 4 s, which are some 20 rounds. A worker that was told to aggregate just before notices it a round later."""
    cut = [(2.0, 6.0) if rank in ranks else (math.inf, math.inf) for rank in range(3)]
    workers = [Worker(step_s, 0.002, 0.002, cut=cut[rank]) for rank, step_s in enumerate((0.03, 0.06, 0.15))]
    rounds = list(zip(*follow(workers, 45, waits=waits).history, strict=True))
    *lengths, second, longest_s = sorted(of_all[0].length_s for of_all in rounds)
    assert lengths[-1] < 0.2 and longest_s < 1.2
    assert second < (1.2 if len(ranks) > 1 else 0.2)
    taken = [tuple(each.steps for each in of_all) for of_all in rounds]
    assert sum(steps not in ((4, 2, 1), (5, 2, 1)) for steps in taken) <= 3
