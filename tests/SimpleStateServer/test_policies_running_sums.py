"""Greedy and elastic keep sums as rows come; they must decide as the published rule does, computed from all rows.

The rule here is written with fractions, from the paper: a straggler's throughput is below the mean of the workers by
more than one standard deviation, and (this project's margin) by more than a tenth of it.
"""

from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from scripted_job import ScriptedJob

from server.messages import Settings
from server.policies import POLICIES
from server.policies.sync_switch import delay
from server.row import STEP_TIME_WINDOW, Action, Row
from server.state import Table
from server.throughputs import Throughputs, throughput

TRAIN, SYNC = Action.TRAIN, Action.SYNC
GREEDY, ELASTIC = "sync-switch-greedy", "sync-switch-elastic"


def below_the_limit(values: dict[int, Fraction | None]) -> set[int]:
    """The published rule: who is a straggler, by the throughputs of all who count; None: not known yet."""
    known = {rank: value for rank, value in values.items() if value is not None}
    if len(known) < len(values) or not known:
        return set()
    mean = sum(known.values()) / len(known)
    variance = sum((value - mean) ** 2 for value in known.values()) / len(known)
    return {
        rank
        for rank, value in known.items()
        if mean > value and (mean - value) ** 2 > variance and value < mean * Fraction(9, 10)
    }


def samples_per_s(row: Row) -> Fraction | None:
    """None while the window of step times is not full."""
    seconds = delay(row)
    return Fraction(1 / seconds) if len(row.step_times) == STEP_TIME_WINDOW else None


def published(policy: str, rows: list[Row], rank: int) -> Action:
    """What the rule tells worker `rank`, from all rows."""
    counted = [row for row in rows if row.counted]
    if policy == ELASTIC:
        counted = [row for row in counted if row.action is not TRAIN or row.rank == rank]
    stragglers = below_the_limit({row.rank: samples_per_s(row) for row in counted})
    return TRAIN if (stragglers if policy == GREEDY else rank in stragglers) else SYNC


# Few values, so that ties and nearly equal workers come often; 0.05 and 0.1 s are far apart.
some_seconds = st.sampled_from([0.05, 0.05, 0.05, 0.0525, 0.06, 0.1, 0.3]) | st.floats(1e-3, 10.0)


@st.composite
def some_rows(draw: st.DrawFn, num_workers: int) -> Row:
    return Row(
        draw(st.integers(0, num_workers - 1)),
        step_times=(draw(some_seconds),) * draw(st.sampled_from([STEP_TIME_WINDOW] * 9 + [0, 4])),
        transmission_time=draw(st.sampled_from([0.0, 0.01, 0.07])),
        steps=draw(st.integers(1, 3)),
        samples=draw(st.sampled_from([32, 64, 64, 128])),
        counted=draw(st.sampled_from([True] * 5 + [False])),
        action=draw(st.sampled_from([None, None, SYNC, SYNC, TRAIN])),
    )


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, list[Row]]:
    num_workers = draw(st.integers(1, 6))
    return num_workers, draw(st.lists(some_rows(num_workers), max_size=40))


@pytest.mark.parametrize("policy", [GREEDY, ELASTIC])
@settings(max_examples=100)
@given(history=histories(), since_row=st.integers(0, 20))
def test_whatever_rows_came_the_running_sums_decide_as_the_published_rule(
    policy: str, history: tuple[int, list[Row]], since_row: int
) -> None:
    num_workers, rows = history
    table = Table(Settings(num_workers, policy), POLICIES[policy])
    everybody = [Row(rank, step_times=(0.05,) * STEP_TIME_WINDOW, steps=1, samples=64) for rank in range(num_workers)]
    for number, row in enumerate([*everybody, *rows]):
        table.put(row)
        if number < since_row:
            continue  # the sums are made of what is there by then
        for asker in table.rows:
            if asker.counted:  # who asks was just heard
                decision = POLICIES[policy].decide(table, asker.rank, 0.0)
                assert decision.action is published(policy, table.rows, asker.rank)
                assert decision.reason
    assert vars(table.throughputs) == vars(Throughputs(table._delays.delays))


@pytest.mark.parametrize("policy", [GREEDY, ELASTIC])
@settings(max_examples=50)
@given(history=histories())
def test_who_is_marked_is_who_would_be_told_so(policy: str, history: tuple[int, list[Row]]) -> None:
    num_workers, rows = history
    table = Table(Settings(num_workers, policy), POLICIES[policy])
    for row in rows:
        table.put(row)
    marked = set(POLICIES[policy].marks(table.rows, table.slowest.rank))
    counted = [row for row in table.rows if row.counted]
    left_out = {row.rank for row in counted if policy == ELASTIC and row.action is TRAIN}
    others = {row.rank: samples_per_s(row) for row in counted if row.rank not in left_out}
    assert marked == left_out | below_the_limit(others)


def test_sums_are_exact_however_many_terms_come_and_go() -> None:
    """1e6 samples/s that are taken out again leave nothing behind; with floats they would."""
    sums = Throughputs([0.05, 1 / 3])
    before = vars(sums).copy()
    for _ in range(1000):
        sums.change(0.05, 1e-6)
        sums.change(1e-6, 0.05)
    assert vars(sums) == before
    assert sums.mean == pytest.approx((20 + 3) / 2)
    assert sums.deviation == pytest.approx((20 - 3) / 2)


def test_a_throughput_has_an_upper_bound() -> None:
    assert throughput(5e-324) == throughput(0.0) == 1e15
    assert throughput(0.5) == 2.0


class Job(ScriptedJob):
    """A job whose workers do a step of 64 samples each second of virtual time."""

    def __init__(self, policy: str, num_workers: int) -> None:
        super().__init__(num_workers, policy, transmission_time=0.0)
        self.round = 0

    def step(self, *seconds: float, rounds: int = 1) -> list[str]:
        """The first ranks do a step of so many seconds each, and ask; in so many rounds, of which the last counts."""
        for _ in range(rounds):
            self.round += 1
            told = [self.query(rank, self.round, 1, each, self.round) for rank, each in enumerate(seconds)]
        return told


@pytest.mark.parametrize(("policy", "told"), [(GREEDY, [TRAIN, TRAIN, TRAIN]), (ELASTIC, [SYNC, SYNC, TRAIN])])
def test_a_worker_that_never_came_does_not_hide_a_straggler_for_ever(policy: str, told: list[Action]) -> None:
    job = Job(policy, 4)
    for _ in range(30):
        assert job.step(0.05, 0.05, 0.2) == [SYNC] * 3  # worker 3 is not known
    assert job.step(0.05, 0.05, 0.2)[2] == TRAIN
    assert job.step(0.05, 0.05, 0.2) == told


@pytest.mark.parametrize("policy", [GREEDY, ELASTIC])
def test_a_fast_worker_that_fell_silent_does_not_hide_a_straggler_for_ever(policy: str) -> None:
    """It made the deviation so large that nobody was far below the mean."""
    job = Job(policy, 5)
    others = (0.05, 0.05, 0.05, 0.09)
    assert job.step(*others, 0.001, rounds=STEP_TIME_WINDOW) == [SYNC] * 5
    for _ in range(30):
        assert job.step(*others)[3] == SYNC
    job.step(*others)  # now worker 4's turn comes to be looked at
    assert job.step(*others)[3] == TRAIN
    assert job.step(*others, 0.001)[4] == SYNC
    assert job.step(*others, 0.001)[3] == SYNC


def test_a_slow_worker_that_fell_silent_does_not_keep_the_others_under_asp_for_ever() -> None:
    job = Job(GREEDY, 4)
    assert job.step(0.05, 0.05, 0.05, 0.2, rounds=STEP_TIME_WINDOW + 1) == [TRAIN] * 4
    for _ in range(30):
        assert job.step(0.05, 0.05, 0.05) == [TRAIN] * 3
    assert job.step(0.05, 0.05, 0.05) == [SYNC] * 3


def test_who_is_left_out_is_not_called_silent() -> None:
    """It waits for the end of the phase, and counts for nobody meanwhile."""
    job = Job(ELASTIC, 4)
    assert job.step(0.05, 0.05, 0.05, 0.2, rounds=STEP_TIME_WINDOW)[3] == TRAIN
    for _ in range(100):
        assert job.step(0.05, 0.05, 0.05) == [SYNC] * 3
    assert job.job.rows[3].counted
