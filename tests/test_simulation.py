"""ESync's policies in a simulated cluster: what a whole job does, on a virtual clock.

Where a property needs exact times, they are multiples of 2**-10 s: sums and differences of such floats have no rounding
error, so "below" means below.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import pytest
import state_server_process  # noqa: F401  (puts SimpleStateServer/ on the path)
from hypothesis import given, settings
from hypothesis import strategies as st
from server.handlers import Handlers
from server.messages import Action, Query, Reset, Response, Status
from server.policies import POLICIES
from simulation.clock import TimeIsUp, VirtualClock
from simulation.cluster import Algorithm, Outcome, Way, WorkerModel
from simulation.clusters import preprint_cluster, slow_link_cluster
from simulation.measures import measure
from simulation.simulate import simulate

from benchmarks import policy_simulation

TICK = 2.0**-10  # s

SSGD = Way(Algorithm.SSGD)
BLOCKING = Way(Algorithm.BLOCKING)
NON_BLOCKING = Way(Algorithm.NON_BLOCKING)
BETWEEN_PASSES = Way(Algorithm.BETWEEN_PASSES)
IN_STEP, RELEASING = Way(Algorithm.IN_STEP), Way(Algorithm.RELEASING)
PATIENT = Way(Algorithm.BETWEEN_PASSES, patience=lambda step_s, round_trip_s, steps: 2 * round_trip_s)

few = settings(max_examples=40, deadline=None)


def ticks(least: int, most: int) -> st.SearchStrategy[float]:
    return st.integers(least, most).map(lambda count: count * TICK)


steps_s = ticks(64, 2048)  # 1/16 to 2 s
transmissions_s = ticks(0, 1024)
round_trips_s = ticks(0, 256).map(lambda seconds: 2 * seconds)  # half of it is a whole number of ticks


@st.composite
def clusters_with_one_network(draw: st.DrawFn) -> list[WorkerModel]:
    """Any step times; transmission and round trip are the same for all."""
    network = draw(transmissions_s), draw(round_trips_s)
    return [WorkerModel(step_s, *network) for step_s in draw(st.lists(steps_s, min_size=1, max_size=5))]


any_cluster = st.lists(st.builds(WorkerModel, steps_s, transmissions_s, round_trips_s), min_size=1, max_size=5)


def slowest(workers: Sequence[WorkerModel]) -> WorkerModel:
    return max(workers, key=lambda worker: worker.step_s)


def spread(values: Sequence[float]) -> float:
    return max(values) - min(values)


def what_was_done(outcome: Outcome, first_round: int, last_round: int | None = None) -> list[list[tuple[float, ...]]]:
    """Of each worker and round: steps, seconds computed, given up and waited, and the round's length."""
    return [
        [
            (each.local_steps, each.computed_s, each.abandoned_s, each.waited_s, each.ended - each.began)
            for each in history[first_round - 1 : last_round]
        ]
        for history in outcome.history
    ]


class RecordingHandlers(Handlers):
    """Keeps every answer to a query."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[tuple[Status, Action | None, str]] = []

    def query(self, message: Query, now: float) -> Response:
        response = super().query(message, now)
        self.answers.append((message.status, response.action, response.reason))
        return response


# ------------------------------------------------------------------------------------------------ the virtual clock


def test_the_clock_does_what_is_due_in_order_and_what_is_due_at_once_as_it_was_asked() -> None:
    clock, seen = VirtualClock(100.0), []
    clock.after(2.0, lambda: seen.append(("late", clock.now)))
    clock.after(1.0, lambda: seen.append(("first", clock.now)))
    clock.after(1.0, lambda: clock.after(0.5, lambda: seen.append(("asked later", clock.now))))
    clock.after(1.0, lambda: seen.append(("second", clock.now)))
    clock.run()
    assert seen == [("first", 101.0), ("second", 101.0), ("asked later", 101.5), ("late", 102.0)]


def test_the_clock_stops_where_there_is_more_to_do_at_the_limit() -> None:
    clock = VirtualClock()

    def again() -> None:
        clock.after(1.0, again)

    again()
    with pytest.raises(TimeIsUp, match="at 11 s, after the limit of 10 s"):
        clock.run(until=10.0)


# ------------------------------------------------------------------------------------- rounds worked out by hand


def test_ssgd_does_one_step_a_round_and_the_fast_worker_waits() -> None:
    """Steps of 1 and 3 s, 1 s each way: rounds of 5 s."""
    outcome = simulate([WorkerModel(1.0, 1.0), WorkerModel(3.0, 1.0)], 4, way=SSGD)
    measured = measure(outcome, batch_size=10)
    assert outcome.ended == 20.0
    assert (measured.round_s, measured.samples_per_s) == (5.0, 4.0)
    assert [worker.computing_ratio for worker in measured.workers] == [0.2, 0.6]
    assert [worker.possible_ratio for worker in measured.workers] == [0.6, 0.6]
    assert [worker.longest_wait_s for worker in measured.workers] == [2.0, 0.0]
    assert [worker.of_possible for worker in measured.workers] == pytest.approx([1 / 3, 1.0])


def test_esync_fills_the_stragglers_step() -> None:
    """Steps of 1 and 3 s, 1 s each way: three steps against one, nobody waits."""
    outcome = simulate([WorkerModel(1.0, 1.0), WorkerModel(3.0, 1.0)], 4)
    assert what_was_done(outcome, 1) == [[(3, 3.0, 0.0, 0.0, 5.0)] * 4, [(1, 3.0, 0.0, 0.0, 5.0)] * 4]


def test_a_blocking_worker_pays_a_round_trip_for_each_step() -> None:
    """Steps of 1 and 4 s, 1 s round trips: (4 + 1) // (1 + 1) = 2 steps; done at 5 and 6.5, heard before the report."""
    outcome = simulate([WorkerModel(1.0, 0.0, 1.0), WorkerModel(4.0, 0.0, 1.0)], 3)
    fast, slow = what_was_done(outcome, 2)
    assert fast == [(2, 2.0, 0.0, 1.0, 6.0)] * 2
    assert slow == [(1, 4.0, 0.0, 0.0, 6.0)] * 2


def test_a_non_blocking_worker_gives_up_the_step_that_runs_when_sync_arrives() -> None:
    """Steps of 1 and 4 s, half-second round trips: after step 4 both ask, and half a second later both give up."""
    outcome = simulate([WorkerModel(1.0, 1.0, 0.5), WorkerModel(4.0, 1.0, 0.5)], 3, way=NON_BLOCKING)
    fast, slow = what_was_done(outcome, 2)
    assert fast == [(4, 4.0, 0.5, 0.0, 6.5)] * 2
    assert slow == [(1, 4.0, 0.5, 0.0, 6.5)] * 2


def test_non_blocking_work_goes_on_while_the_answer_travels() -> None:
    """Steps of 1 and 4 s, round trips of 2.5 s: two more steps are complete when SYNC arrives, and they count."""
    outcome = simulate([WorkerModel(1.0, 1.0, 2.5), WorkerModel(4.0, 1.0, 2.5)], 3, way=NON_BLOCKING)
    fast, slow = what_was_done(outcome, 2)
    assert fast == [(6, 6.0, 0.5, 0.0, 8.5)] * 2
    assert slow == [(1, 4.0, 2.5, 0.0, 8.5)] * 2


def test_between_passes_a_step_is_given_up_when_the_pass_ends() -> None:
    """The forward pass of 3 s is a third: SYNC comes half a second into the next step and is seen after one second."""
    alone = [WorkerModel(3.0, 1.0, 0.5)]
    assert what_was_done(simulate(alone, 2, way=BETWEEN_PASSES), 2) == [[(1, 3.0, 1.0, 0.0, 6.0)]]
    in_backward = [WorkerModel(3.0, 1.0, 2.0)]
    assert what_was_done(simulate(in_backward, 2, way=BETWEEN_PASSES), 2) == [[(1, 3.0, 3.0, 0.0, 8.0)]]


def test_a_worker_that_waits_for_the_answer_gives_nothing_up() -> None:
    assert what_was_done(simulate([WorkerModel(3.0, 1.0, 0.5)], 2, way=PATIENT), 2) == [[(1, 3.0, 0.0, 0.0, 5.5)]]


def test_noise_depends_on_the_seed_and_on_nothing_else() -> None:
    noisy = [WorkerModel(0.1, 0.05, 0.01, noise=0.2), WorkerModel(0.3, 0.05, 0.01, noise=0.2)]
    assert simulate(noisy, 5, seed=1) == simulate(noisy, 5, seed=1)
    assert simulate(noisy, 5, seed=1) != simulate(noisy, 5, seed=2)


# -------------------------------------------------------------------------------------------------- no deadlock


@few
@given(
    any_cluster,
    st.lists(st.sampled_from([0.5, 1.0, 1.5, 2.0]), min_size=1, max_size=7),
    st.sampled_from(["journal", "preprint"]),
    st.sampled_from([SSGD, BLOCKING, NON_BLOCKING, BETWEEN_PASSES, PATIENT]),
    st.booleans(),
)
def test_every_job_ends_and_each_round_within_a_time_that_the_slowest_explains(
    workers: list[WorkerModel], factors: list[float], policy: str, way: Way, test_step: bool
) -> None:
    """Whatever the steps take: a round takes at most 3 of the longest step, 3 transmissions and 5 round trips.

    The journal's rule says TRAIN only until the straggler is due, so at most a longest step, a transmission and a round
    trip after its report; then a step may run, and between passes another one. The rest is pull, report, query, push.
    For the preprint's rule this is no theorem: each of its decisions rests on a single step, and those vary here.
    """

    def pace(round: int, step: int) -> float:
        return factors[(3 * round + step) % len(factors)]

    changing = [dataclasses.replace(worker, pace=pace) for worker in workers]
    longest_s = max(factors) * slowest(workers).step_s
    transmission_s = max(worker.transmission_s for worker in workers)
    round_trip_s = max(worker.round_trip_s for worker in workers)
    rounds = 4
    outcome = simulate(
        changing,
        rounds,
        policy,
        dataclasses.replace(way, test_step=test_step),
        until=rounds * (3 * longest_s + 3 * transmission_s + 5 * round_trip_s),
    )
    assert outcome.complete_rounds == rounds


# -------------------------------------------------------------------------------------------------- waiting times


@few
@given(clusters_with_one_network(), st.booleans())
def test_nobody_waits_for_as_long_as_one_own_step_and_a_round_trip_and_the_straggler_never(
    workers: list[WorkerModel], test_step: bool
) -> None:
    """Blocking, steady steps, one network. From round 2 on, or from the first if test steps were done."""
    outcome = simulate(workers, 4, way=Way(Algorithm.BLOCKING, test_step=test_step))
    for worker, history in zip(workers, outcome.history, strict=True):
        for each in history[0 if test_step else 1 :]:
            assert 0 <= each.waited_s < worker.step_s + worker.round_trip_s
            assert worker.step_s < slowest(workers).step_s or each.waited_s == 0


@few
@given(clusters_with_one_network(), st.booleans())
def test_with_non_blocking_queries_nobody_waits_for_as_long_as_one_own_step(
    workers: list[WorkerModel], test_step: bool
) -> None:
    """The published bound ("one iteration of a fast device"), however long the round trip is."""
    outcome = simulate(workers, 4, way=Way(Algorithm.NON_BLOCKING, test_step=test_step))
    for worker, history in zip(workers, outcome.history, strict=True):
        for each in history[0 if test_step else 1 :]:
            assert 0 <= each.waited_s < worker.step_s
            assert worker.step_s < slowest(workers).step_s or each.waited_s == 0


@few
@given(clusters_with_one_network())
def test_in_the_first_round_without_known_times_nobody_waits_for_longer_than_the_longest_step_and_a_round_trip(
    workers: list[WorkerModel],
) -> None:
    """As long, where two of the slowest end their steps at one moment: the first to ask is told to do another one."""
    for way in (BLOCKING, NON_BLOCKING):
        for history in simulate(workers, 1, way=way).history:
            assert 0 <= history[0].waited_s <= slowest(workers).step_s + workers[0].round_trip_s


@few
@given(any_cluster)
def test_unequal_networks_add_their_differences_to_the_wait(workers: list[WorkerModel]) -> None:
    """Blocking: below own step + own round trip + spread of the transmissions + 2 * spread of the round trips.

    The rule ends everybody's round with the straggler's step, however long its push then takes, and does not know
    that a worker with a slow network has pulled later. From round 3 on: a push is measured in round 1 and told at the
    beginning of round 2, where a worker with a faster network may have asked already.
    """
    outcome = simulate(workers, 5)
    transmissions = spread([worker.transmission_s for worker in workers])
    round_trips = spread([worker.round_trip_s for worker in workers])
    for worker, history in zip(workers, outcome.history, strict=True):
        for each in history[2:]:
            assert 0 <= each.waited_s < worker.step_s + worker.round_trip_s + transmissions + 2 * round_trips


@few
@given(any_cluster)
def test_unequal_networks_add_their_differences_to_the_wait_with_non_blocking_queries(
    workers: list[WorkerModel],
) -> None:
    """Below own step + spread of the transmissions + spread of the round trips."""
    outcome = simulate(workers, 5, way=NON_BLOCKING)
    transmissions = spread([worker.transmission_s for worker in workers])
    round_trips = spread([worker.round_trip_s for worker in workers])
    for worker, history in zip(workers, outcome.history, strict=True):
        for each in history[2:]:
            assert 0 <= each.waited_s < worker.step_s + transmissions + round_trips


# ------------------------------------------------------------------------------------------- speeds and their changes


@few
@given(clusters_with_one_network())
def test_steps_are_the_ratio_of_the_speeds_rounded_down(workers: list[WorkerModel]) -> None:
    """Blocking: n = floor((c_s + q) / (c_k + q)), q the round trip; so within one step of proportional."""
    longest_s = slowest(workers).step_s
    for worker, history in zip(workers, simulate(workers, 3).history, strict=True):
        steps = (longest_s + worker.round_trip_s) // (worker.step_s + worker.round_trip_s)
        assert [each.local_steps for each in history[1:]] == [steps, steps]


@few
@given(clusters_with_one_network())
def test_non_blocking_steps_are_the_ratio_of_the_speeds_and_what_fits_in_a_round_trip(
    workers: list[WorkerModel],
) -> None:
    """n = floor(c_s / c_k) + floor(q / c_k); one less where a step would end at the moment in which SYNC arrives."""
    longest_s = slowest(workers).step_s
    for worker, history in zip(workers, simulate(workers, 3, way=NON_BLOCKING).history, strict=True):
        in_round_trip, left = divmod(worker.round_trip_s, worker.step_s)
        steps = longest_s // worker.step_s + in_round_trip
        at_once = left == 0 and in_round_trip > 0
        for each in history[1:]:
            assert each.local_steps == steps or (at_once and each.local_steps == steps - 1)


@few
@given(clusters_with_one_network(), st.data())
def test_one_outlier_step_makes_no_straggler(workers: list[WorkerModel], data: st.DataObject) -> None:
    """Whoever takes 50 times as long for one step of round 3: from round 4 on all is as if it had not."""
    rank = data.draw(st.integers(0, len(workers) - 1))
    usual = simulate(workers, 6)
    at_step = data.draw(st.integers(1, usual.history[rank][2].local_steps))

    def pace(round: int, step: int) -> float:
        return 50.0 if (round, step) == (3, at_step) else 1.0

    disturbed = list(workers)
    disturbed[rank] = dataclasses.replace(workers[rank], pace=pace)
    assert what_was_done(simulate(disturbed, 6), 4) == what_was_done(usual, 4)


@few
@given(clusters_with_one_network(), st.sampled_from([0.25, 0.5, 2.0, 16.0]), st.data())
def test_three_rounds_after_a_lasting_change_all_is_as_if_it_had_always_been_so(
    workers: list[WorkerModel], factor: float, data: st.DataObject
) -> None:
    rank = data.draw(st.integers(0, len(workers) - 1))
    changing, changed = list(workers), list(workers)
    changing[rank] = dataclasses.replace(workers[rank], pace=lambda round, step: factor if round >= 4 else 1.0)
    changed[rank] = dataclasses.replace(workers[rank], step_s=factor * workers[rank].step_s)
    assert what_was_done(simulate(changing, 9), 7) == what_was_done(simulate(changed, 9), 7)


@pytest.mark.parametrize("way", [BLOCKING, NON_BLOCKING], ids=lambda way: way.algorithm.value)
def test_a_drift_of_the_straggler_costs_what_it_grows_in_three_rounds(way: Way) -> None:
    """Its smoothed step time is that of three rounds ago."""

    def pace(round: int, step: int) -> float:
        return 1.03**round

    fast, slow = WorkerModel(0.05, 0.2, 0.01), WorkerModel(2.0, 0.2, 0.01, pace=pace)
    outcome = simulate([fast, slow], 30, way=way)
    for each in outcome.history[0][3:]:
        lag_s = slow.step_s * (pace(each.round, 1) - pace(each.round - 3, 1))
        assert each.waited_s < fast.step_s + fast.round_trip_s + lag_s
        assert each.local_steps > 0.85 * (slow.step_s * pace(each.round, 1)) // (fast.step_s + fast.round_trip_s)


@few
@given(any_cluster, st.integers(-(10**6), 10**6), st.sampled_from(["journal", "preprint"]), st.booleans())
def test_shifting_all_clocks_changes_nothing(
    workers: list[WorkerModel], shift_s: int, policy: str, blocking: bool
) -> None:
    """No answer and no reason."""
    answers = []
    for started in (0.0, float(shift_s)):
        handlers = RecordingHandlers()
        way = BLOCKING if blocking else NON_BLOCKING
        outcome = simulate(workers, 3, policy, way, epsilon=64 * TICK, handlers=handlers, started=started)
        answers.append((handlers.answers, what_was_done(outcome, 1)))
    assert answers[0] == answers[1]


# ----------------------------------------------------------------------------------------------------------- silence


@few
@given(
    st.lists(st.builds(WorkerModel, ticks(256, 2048), transmissions_s, round_trips_s), min_size=2, max_size=4),
    ticks(0, 12 * 1024),
    st.data(),
)
def test_a_worker_that_falls_silent_does_not_keep_the_others_from_being_told_to_aggregate(
    workers: list[WorkerModel], silent_from_s: float, data: st.DataObject
) -> None:
    """They are told within its silence limit (30 s here) since it was heard, and two steps with their round trips."""
    silent_rank = data.draw(st.integers(0, len(workers) - 1))
    workers[silent_rank] = dataclasses.replace(workers[silent_rank], falls_silent_s=silent_from_s)
    way = Way(data.draw(st.sampled_from([Algorithm.BLOCKING, Algorithm.NON_BLOCKING])))
    handlers = Handlers()
    outcome = simulate(workers, 1000, way=way, handlers=handlers, until=silent_from_s + 100.0)
    rows = handlers.snapshot(None, outcome.ended).rows
    silent = rows[silent_rank]
    step_s = max(worker.step_s + worker.round_trip_s for worker in workers)
    for row in rows:
        if row.rank != silent_rank:
            assert row.action is Action.SYNC
            assert row.synced is not None
            assert row.synced <= (silent.heard or 0.0) + silent.silence_limit + 2 * step_s


def test_a_straggler_that_falls_silent_in_its_step_is_not_waited_for_longer_than_it_would_have_taken() -> None:
    """Steps of 1 and 4 s, rounds of 6 s: silent at 13.5 s in its step of round 3, where it is due at 17 s."""
    handlers = Handlers()
    workers = [WorkerModel(1.0, 1.0), WorkerModel(4.0, 1.0, falls_silent_s=13.5)]
    outcome = simulate(workers, 10, handlers=handlers)
    assert [len(history) for history in outcome.history] == [2, 2]
    assert handlers.snapshot(None, outcome.ended).rows[0].synced == 16.0


# ------------------------------------------------------------------------------------------------------- large jobs


def test_a_thousand_workers_run() -> None:
    workers = [WorkerModel((512 + rank) * TICK, 64 * TICK, 8 * TICK) for rank in range(1000)]
    outcome = simulate(workers, 2, way=NON_BLOCKING)
    for worker, history in zip(workers, outcome.history, strict=True):
        assert history[1].waited_s < worker.step_s


def lines_run(call: Callable[[], Any]) -> int:
    """How many lines of Python the call runs, in all functions."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


@pytest.mark.parametrize("policy", ["journal", "preprint"])
def test_the_work_for_a_decision_grows_by_no_more_than_a_constant_when_the_workers_double(policy: str) -> None:
    """The worst case: the asker's step time has changed, and it becomes the slowest of all."""
    work = []
    for num_workers in (16, 4096):
        handlers = Handlers()
        handlers.reset(Reset("test", "a", num_workers=num_workers, policy=policy, epsilon=0.5), now=0.0)
        for rank in range(num_workers):
            handlers.query(Query(f"worker-{rank}", "a", Status(rank, 1, 1, 1.0, 0.1)), now=1.0)
        message = Query("worker-5", "a", Status(5, 2, 1, 9.0, 9.0))
        work.append(lines_run(lambda handlers=handlers, message=message: handlers.query(message, now=2.0)))
    doublings = 8
    assert work[1] - work[0] <= 10 * doublings


# ------------------------------------------------------------------------------------------------ the papers' clusters


@pytest.mark.parametrize("way", [NON_BLOCKING, policy_simulation.TRAINER], ids=lambda way: way.algorithm.value)
@pytest.mark.parametrize("round_trip_s", [0.001, 0.02])
def test_every_worker_of_the_preprints_cluster_computes_for_095_of_what_its_transmission_leaves(
    way: Way, round_trip_s: float
) -> None:
    """From the first round on; the fast ones do 116 steps, 3.5 / 0.03 rounded down."""
    outcome = simulate(preprint_cluster(round_trip_s), 15, way=way)
    measured = measure(outcome, batch_size=64)
    assert min(worker.of_possible for worker in measured.workers) >= 0.95
    assert {each.local_steps for history in outcome.history[:4] for each in history[1:]} == {116}


def test_blocking_queries_cost_the_fast_workers_their_round_trips() -> None:
    shares = [
        min(worker.of_possible for worker in measure(simulate(preprint_cluster(q), 3), 64, first_round=2).workers)
        for q in (0.001, 0.02)
    ]
    assert shares == pytest.approx([0.030 / 0.031, 0.030 / 0.050], abs=0.01)


def test_the_published_programs_come_out_as_published() -> None:
    """The preprint's rule, and a blocking query that costs about one GPU step. Figures were read off, so 5 %."""
    outcome = simulate(preprint_cluster(round_trip_s=0.03), 10, "preprint")
    measured = measure(outcome, 64, first_round=2)
    fast, slow = measured.workers[0], measured.workers[-1]
    assert measured.samples_per_s == pytest.approx(1555, rel=0.05)
    assert fast.computing_ratio + fast.steps_per_round * 0.03 / measured.round_s == pytest.approx(0.37, rel=0.06)
    assert slow.computing_ratio == pytest.approx(0.40, rel=0.05)
    assert measure(simulate(preprint_cluster(), 3, way=SSGD), 64).samples_per_s == pytest.approx(45)


# ---------------------------------------------------------------------------------------------------- the benchmark


def test_behind_a_slow_link_the_others_train_on_during_the_upload() -> None:
    """Three equal workers and one on 10 Mbit/s: its 0.22 s each way are time for two more steps of 0.1 s."""
    rules = ("journal", "upload-aware")
    outcomes = [simulate(slow_link_cluster(), 20, policy) for policy in rules]
    before, after = (measure(outcome, 64, first_round=2) for outcome in outcomes)
    assert [each.steps_per_round for each in before.workers] == [4, 4, 4, 1]
    assert [each.steps_per_round for each in after.workers] == [6, 6, 6, 1]
    assert after.round_s == pytest.approx(before.round_s)  # nobody waits for the others' longer rounds
    assert after.workers[3].longest_wait_s == 0.0
    assert (before.workers[0].computing_ratio, after.workers[0].computing_ratio) == pytest.approx(
        (0.62, 0.93), abs=0.01
    )
    assert after.samples_per_s / before.samples_per_s == pytest.approx(1.46, abs=0.01)


@few
@given(workers=any_cluster, way=st.sampled_from([BLOCKING, NON_BLOCKING, PATIENT]))
def test_training_on_during_the_upload_ends_in_every_cluster(workers: list[WorkerModel], way: Way) -> None:
    assert simulate(workers, 6, "upload-aware", way).complete_rounds == 6


def test_where_steps_are_longer_than_the_upload_both_rules_do_the_same() -> None:
    histories = [simulate(slow_link_cluster(0.5), 6, policy).history for policy in ("journal", "upload-aware")]
    assert histories[0] == histories[1]


def test_workers_that_ask_in_step_do_one_step_a_round_whatever_they_are_told() -> None:
    handlers = RecordingHandlers()
    outcome = simulate(
        [WorkerModel(1.0), WorkerModel(1.0), WorkerModel(4.0)], 8, "sync-switch-greedy", IN_STEP, handlers=handlers
    )
    assert {each.local_steps for history in outcome.history for each in history} == {1}
    assert outcome.ended == 32.0
    assert handlers.answers[-1][1] is Action.TRAIN
    assert "worker 2 is a straggler: 16 samples/s" in handlers.answers[-1][2]


def test_releasing_workers_wait_for_nobody_and_follow_the_slowest() -> None:
    """Steps of 1 and 4 s: a release every 4 s, after about four questions of the fast one."""
    handlers = RecordingHandlers()
    simulate([WorkerModel(1.0), WorkerModel(4.0)], 5, "wbsp", RELEASING, handlers=handlers)
    released = [status for status, action, _ in handlers.answers if action is Action.SYNC]
    assert [(status.rank, status.round) for status in released if status.rank == 1] == [(1, n) for n in range(1, 6)]
    assert len([status for status, _, _ in handlers.answers if status.rank == 0]) in range(16, 22)


def test_the_benchmark_prints_its_tables(capsys: pytest.CaptureFixture[str]) -> None:
    policy_simulation.main(["--rounds", "2", "--round-trips", "1", "20", "--workers", "2", "8", "--queries", "40"])
    out = capsys.readouterr().out
    assert "m = 2.52 s each way" in out
    assert "1504 samples/s (published 1555)" in out
    assert "heterogeneity 300" in out
    assert "the three compute 0.618 -> 0.927 of the time, all do +46% samples/s" in out
    for policy in POLICIES:
        assert re.search(rf"^{policy} +4 times the workers take", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["speed"], "unknown table 'speed'; choose from preprint, journal, link, cost"),
        (["--rounds", "1"], "'1'; give a whole number from 2 on"),
        (["--noise", "nan"], "'nan'; give a number from 0 on"),
        (["--workers", "0"], "'0'; give a whole number from 1 on"),
    ],
)
def test_the_benchmark_refuses_what_it_cannot_simulate(
    arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        policy_simulation.main(arguments)
    assert error in capsys.readouterr().err
