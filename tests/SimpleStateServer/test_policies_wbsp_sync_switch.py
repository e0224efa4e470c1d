"""WBSP's rule and Sync-Switch's three, on tables small enough to work out by hand and through messages."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.errors import BadMessage
from server.handlers import Handlers
from server.messages import Query, Report, Reset
from server.policies import POLICIES
from server.policies.sync_switch import MARGIN
from server.row import STEP_TIME_WINDOW, Row
from server.state import Table
from server.wire import parse
from server.worker import Action

TRAIN, SYNC = Action.TRAIN, Action.SYNC
SYNC_SWITCH = ("sync-switch-none", "sync-switch-greedy", "sync-switch-elastic")


def table_of(policy: str, *rows: Row) -> Table:
    table = Table(len(rows), POLICIES[policy].delay)
    for row in rows:
        table.put(row)
    return table


def answers(policy: str, *rows: Row) -> list[Action]:
    """What each worker would be told."""
    table = table_of(policy, *rows)
    decisions = [POLICIES[policy].decide(table, rank, 0.0) for rank in range(len(rows))]
    assert all(decision.reason for decision in decisions)
    return [decision.action for decision in decisions]


def reason(policy: str, rank: int, *rows: Row) -> str:
    """Why worker `rank` is told what it is."""
    return POLICIES[policy].decide(table_of(policy, *rows), rank, 0.0).reason


class Job:
    """A job behind the messages as they are on the wire."""

    def __init__(self, policy: str, num_workers: int) -> None:
        self.handlers = Handlers()
        self.send({"msg_type": "RESET", "num_workers": num_workers, "policy": policy}, 0.0)

    def send(self, message: dict[str, object], now: float) -> Action | None:
        wire = json.dumps({"sender": "worker", "receiver": "state-server", "job": "a", **message})
        parsed = parse(wire.encode(), POLICIES)
        handle = {Reset: self.handlers.reset, Report: self.handlers.report, Query: self.handlers.query}[type(parsed)]
        return handle(parsed, now).action

    def report(self, rank: int, round: int, now: float = 0.0) -> None:
        self.send({"msg_type": "REPORT", "status": {"rank": rank, "round": round}}, now)

    def query(self, rank: int, round: int, steps: int, seconds: float, now: float = 0.0, samples: int = 64) -> Action:
        status = {"rank": rank, "round": round, "local_iteration": steps, "computation_time": seconds}
        answer = self.send({"msg_type": "QUERY", "status": status, "samples": samples}, now)
        assert answer is not None
        return answer


# ---------------------------------------------------------------------------------------------------------- WBSP


def worker(
    rank: int, uploads: int, seconds: float, round: int = 1, action: Action | None = None, m: float = 0.0
) -> Row:
    return Row(rank, round=round, local_iteration=uploads, step_times=(seconds,), action=action, transmission_time=m)


def test_the_slowest_releases_and_nobody_else() -> None:
    assert answers("wbsp", worker(0, 4, 1.0), worker(1, 1, 4.0), worker(2, 2, 2.0)) == [TRAIN, SYNC, TRAIN]


def test_nobody_releases_before_an_upload() -> None:
    assert answers("wbsp", worker(0, 1, 1.0), worker(1, 0, 4.0)) == [TRAIN, TRAIN]
    assert answers("wbsp", worker(0, 1, 1.0), worker(1, 0, 4.0, action=TRAIN)) == [TRAIN, TRAIN]


def test_the_slowest_is_the_one_with_the_longest_way() -> None:
    assert answers("wbsp", worker(0, 1, 1.0, m=3.5), worker(1, 1, 4.0)) == [SYNC, TRAIN]


def test_whoever_asks_next_releases_when_the_slowest_has_uploaded_and_was_not_the_slowest_then() -> None:
    assert answers("wbsp", worker(0, 1, 1.0), worker(1, 1, 1.1, action=TRAIN)) == [SYNC, SYNC]


def test_one_release_is_not_made_twice() -> None:
    """The slowest was told to, or it has it already."""
    assert answers("wbsp", worker(0, 5, 1.0), worker(1, 1, 4.0, action=SYNC))[0] is TRAIN
    assert answers("wbsp", worker(0, 5, 1.0), worker(1, 1, 4.0, round=2, action=TRAIN))[0] is TRAIN


def test_who_has_a_release_that_the_slowest_has_not_trains() -> None:
    assert answers("wbsp", worker(0, 1, 1.0, round=3), worker(1, 1, 4.0, round=2, action=TRAIN))[0] is TRAIN


def test_a_worker_whose_step_time_is_not_known_is_waited_for() -> None:
    assert answers("wbsp", worker(0, 1, 1.0), Row(1)) == [TRAIN, TRAIN]


def test_through_messages_the_slowest_releases_after_each_of_its_uploads() -> None:
    job = Job("wbsp", 2)
    for round in (1, 2, 3):
        begin = 4.0 * round
        for rank in (0, 1):
            job.report(rank, round, begin)
        for steps in (1, 2, 3):
            assert job.query(0, round, steps, 1.0, begin + steps) is TRAIN
        assert job.query(1, round, 1, 4.0, begin + 4.0) is SYNC


def test_through_messages_workers_of_equal_speed_release_once_a_step() -> None:
    """They take turns in being the slowest by a hair."""
    job = Job("wbsp", 2)
    assert job.query(0, 1, 1, 1.00) is TRAIN  # nothing is known of worker 1
    assert job.query(1, 1, 1, 0.99) is SYNC  # it is not the slowest, but the slowest has uploaded
    for rank in (0, 1):
        job.report(rank, 2)
    assert job.query(1, 2, 1, 1.02) is TRAIN  # the lower median is still 0.99
    assert job.query(0, 2, 1, 1.00) is SYNC


def test_through_messages_a_worker_that_is_a_release_behind_trains() -> None:
    job = Job("wbsp", 2)
    job.query(0, 1, 1, 1.0, 1.0)
    assert job.query(1, 1, 1, 4.0, 4.0) is SYNC
    job.report(1, 2, 4.0)
    assert job.query(0, 1, 2, 1.0, 4.1) is TRAIN  # it takes the release now
    assert job.query(1, 2, 1, 4.0, 8.0) is SYNC
    assert job.query(0, 1, 3, 1.0, 8.5) is TRAIN  # and if it still has not, no other one is made


def test_through_messages_a_dead_slowest_worker_is_not_waited_for() -> None:
    job = Job("wbsp", 3)
    for rank, seconds in ((0, 1.0), (1, 2.0), (2, 4.0)):
        job.query(rank, 1, 1, seconds, 4.0)
        job.report(rank, 2, 4.0)
    # Worker 2 is not heard any more; it has ten times its own 4 s.
    assert job.query(1, 2, 20, 2.0, 44.0) is TRAIN
    assert job.query(0, 2, 41, 1.0, 44.1) is SYNC  # the slowest that is left has uploaded
    job.report(0, 3, 44.1)
    assert job.query(1, 2, 21, 2.0, 46.0) is SYNC  # and releases from now on
    job.report(1, 3, 46.0)
    assert job.query(0, 3, 1, 1.0, 46.1) is TRAIN
    assert job.query(1, 3, 1, 2.0, 48.0) is SYNC


# --------------------------------------------------------------------------------------------------- Sync-Switch


def computing(rank: int, *seconds: float, samples: int = 64, m: float = 0.0) -> Row:
    """Its last steps took so long; one number means all of them. `m`: its own pushes and pulls."""
    times = seconds * STEP_TIME_WINDOW if len(seconds) == 1 else seconds
    return Row(rank, step_times=times, steps=10, samples=10 * samples, transmission_time=m)


def cluster(*seconds: float) -> list[Row]:
    return [computing(rank, each) for rank, each in enumerate(seconds)]


def found(*rows: Row) -> list[int]:
    """Who is marked; and whenever anybody is, greedy leaves BSP."""
    marks = POLICIES["sync-switch-greedy"].marks(rows, 0)
    assert answers("sync-switch-greedy", *rows) == [TRAIN if marks else SYNC] * len(rows)
    return sorted(marks)


def test_one_clear_straggler_among_four_equal_workers() -> None:
    # 1280 samples/s thrice and 640 once: the mean is 1120, the standard deviation 277.
    rows = cluster(0.05, 0.05, 0.1, 0.05)
    assert answers("sync-switch-none", *rows) == [SYNC, SYNC, SYNC, SYNC]
    assert answers("sync-switch-greedy", *rows) == [TRAIN, TRAIN, TRAIN, TRAIN]
    assert answers("sync-switch-elastic", *rows) == [SYNC, SYNC, TRAIN, SYNC]


def test_a_worker_with_a_slow_link_is_a_straggler_however_fast_it_computes() -> None:
    """64 samples in 0.05 + 0.01 s thrice, and in 0.05 + 0.07 s: 1067 and 533 samples/s."""
    rows = [computing(rank, 0.05, m=0.07 if rank == 2 else 0.01) for rank in range(4)]
    assert answers("sync-switch-greedy", *rows) == [TRAIN, TRAIN, TRAIN, TRAIN]
    assert answers("sync-switch-elastic", *rows) == [SYNC, SYNC, TRAIN, SYNC]
    assert "worker 2 is a straggler: 533.3 samples/s" in reason("sync-switch-elastic", 2, *rows)


@pytest.mark.parametrize("policy", SYNC_SWITCH)
def test_equal_workers_stay_in_step(policy: str) -> None:
    assert answers(policy, *cluster(0.05, 0.05, 0.05, 0.05)) == [SYNC] * 4


def test_the_reason_names_the_straggler() -> None:
    rows = cluster(0.05, 0.05, 0.1, 0.05)
    straggler = "worker 2 is a straggler: 640 samples/s, the mean is 1120 +- 277"
    assert reason("sync-switch-greedy", 0, *rows) == straggler
    assert reason("sync-switch-elastic", 2, *rows) == straggler
    assert reason("sync-switch-elastic", 0, *rows) == (
        "worker 0 is no straggler: 1280 samples/s, the mean is 1120 +- 277"
    )


def test_where_there_is_no_straggler_the_reason_says_how_slow_the_slowest_is() -> None:
    rows = cluster(0.05, 0.05, 0.0505, 0.05)
    assert reason("sync-switch-greedy", 0, *rows) == (
        "no straggler: worker 2 is the slowest with 1267 samples/s, the mean is 1277 +- 5.49"
    )


@pytest.mark.parametrize("policy", SYNC_SWITCH[1:])
def test_the_reason_names_a_worker_that_is_not_known_yet(policy: str) -> None:
    rows = [*cluster(0.05, 0.05, 0.1), Row(3)]
    assert reason(policy, 0, *rows) == "no straggler is known: the throughput of worker 3 is not known yet"


def test_a_worker_that_does_not_say_how_many_samples_it_trains_on_is_not_known() -> None:
    rows = [*cluster(0.05, 0.05, 0.1), computing(3, 0.05, samples=0)]
    assert found(*rows) == []


def test_a_step_of_nearly_no_time_harms_nothing() -> None:
    assert found(*cluster(0.05, 0.05, 5e-324, 0.05)) == []


@pytest.mark.parametrize("place", range(4))
def test_nobody_is_a_straggler_while_a_window_is_not_full(place: int) -> None:
    rows = cluster(0.05, 0.05, 0.1, 0.05)
    assert found(*rows) == [2]
    seconds = rows[place].step_times[1:]
    rows[place] = computing(place, *seconds)
    assert found(*rows) == []
    rows[place] = Row(place)
    assert found(*rows) == []


def test_a_worker_that_is_silent_does_not_count() -> None:
    rows = cluster(0.05, 0.05, 0.1, 0.05)
    rows[3] = Row(3, counted=False)
    assert found(*rows) == [2]


def test_slight_noise_makes_no_straggler() -> None:
    """The last one is 1.6 standard deviations below the mean, which is 5 %."""
    assert found(*cluster(0.049, 0.05, 0.0505, 0.0535)) == []


def test_a_straggler_is_beyond_the_margin() -> None:
    """Three workers do 1000 samples/s; the mean moves with the fourth: x < 0.9 (3000 + x) / 4 at x < 871."""
    assert float(MARGIN) == 0.1
    assert found(*cluster(0.064, 0.064, 0.064, 0.064 / 0.875)) == []
    assert found(*cluster(0.064, 0.064, 0.064, 0.064 / 0.867)) == [3]


def test_two_of_eight_are_both_found() -> None:
    rows = cluster(0.05, 0.08, 0.05, 0.05, 0.05, 0.08, 0.05, 0.05)
    assert found(*rows) == [1, 5]
    assert answers("sync-switch-elastic", *rows) == [SYNC, TRAIN, SYNC, SYNC, SYNC, TRAIN, SYNC, SYNC]


def test_of_two_workers_neither_is_a_straggler() -> None:
    """Each is exactly one standard deviation from their mean, and not more."""
    pairs = [(0.05, 0.1), (0.05, 0.11), (0.05, 0.12), (0.01, 0.03), (0.04, 0.06)]
    assert [found(*cluster(*pair)) for pair in pairs] == [[]] * len(pairs)


def test_who_was_left_out_by_elastic_hides_nobody_else() -> None:
    rows = cluster(0.05, 0.05, 0.05, 0.1, 0.5)
    rows[4] = rows[4]._replace(action=TRAIN)  # and does not step any more
    table = table_of("sync-switch-elastic", *rows)
    assert POLICIES["sync-switch-elastic"].decide(table, 3, 0.0).action is TRAIN
    assert POLICIES["sync-switch-elastic"].decide(table, 0, 0.0).action is SYNC


def test_who_is_faster_than_the_others_is_no_straggler_and_makes_none() -> None:
    assert found(*cluster(0.05, 0.05, 0.05, 0.02)) == []


def test_throughput_counts_samples_and_not_steps() -> None:
    rows = [computing(0, 0.05), computing(1, 0.05), computing(2, 0.05), computing(3, 0.1, samples=128)]
    assert found(*rows) == []
    rows[3] = computing(3, 0.05, samples=32)
    assert found(*rows) == [3]


@given(
    st.lists(st.sampled_from([0.04, 0.05, 0.06, 0.1, 0.2]), min_size=1, max_size=8),
    st.sampled_from([0.25, 4.0, 1024.0]),
)
def test_only_the_ratio_of_the_speeds_counts_and_never_all_are_stragglers(seconds: list[float], factor: float) -> None:
    here = found(*cluster(*seconds))
    assert here == found(*cluster(*(factor * each for each in seconds)))
    assert len(here) < len(seconds)
    assert all(seconds[rank] > min(seconds) for rank in here)
    for rank in here:  # whoever is slower than a straggler is one too
        assert {other for other, each in enumerate(seconds) if each >= seconds[rank]} <= set(here)


# ----------------------------------------------------------------------------------- Sync-Switch through messages


def rounds(job: Job, numbers: range, usual: float, straggler: float) -> list[Action]:
    """Each worker does a step a round, worker 2 another one; the answers to worker 0, and worker 2's behind them."""
    told: list[Action] = []
    for round in numbers:
        told = [job.query(rank, round, 1, straggler if rank == 2 else usual, float(round)) for rank in (1, 3, 2, 0)]
    return [told[3], told[2]]


@pytest.mark.parametrize(
    ("policy", "while_it_lasts"),
    [
        ("sync-switch-none", [SYNC, SYNC]),
        ("sync-switch-greedy", [TRAIN, TRAIN]),
        ("sync-switch-elastic", [SYNC, TRAIN]),
    ],
)
def test_a_transient_straggler_shows_after_three_steps_and_clears_after_three(
    policy: str, while_it_lasts: list[Action]
) -> None:
    job = Job(policy, 4)
    in_step = [SYNC, SYNC]
    assert rounds(job, range(1, 7), 0.05, 0.05) == in_step
    assert rounds(job, range(7, 9), 0.05, 0.2) == in_step  # two steps of the last five
    assert rounds(job, range(9, 10), 0.05, 0.2) == while_it_lasts
    assert rounds(job, range(10, 14), 0.05, 0.2) == while_it_lasts
    assert rounds(job, range(14, 16), 0.05, 0.05) == while_it_lasts
    assert rounds(job, range(16, 17), 0.05, 0.05) == in_step


@pytest.mark.parametrize("policy", SYNC_SWITCH)
def test_one_outlier_makes_no_straggler(policy: str) -> None:
    job = Job(policy, 4)
    rounds(job, range(1, 7), 0.05, 0.05)
    assert rounds(job, range(7, 8), 0.05, 9.0) == [SYNC, SYNC]
    assert rounds(job, range(8, 9), 0.05, 0.05) == [SYNC, SYNC]


@pytest.mark.parametrize("policy", SYNC_SWITCH)
def test_in_the_first_steps_of_a_job_all_stay_in_step(policy: str) -> None:
    job = Job(policy, 4)
    assert rounds(job, range(1, STEP_TIME_WINDOW), 0.05, 0.5) == [SYNC, SYNC]


def test_a_rule_that_nobody_has_written_is_refused() -> None:
    with pytest.raises(BadMessage, match="sync-switch-elastic"):
        Job("sync-switch", 4)
