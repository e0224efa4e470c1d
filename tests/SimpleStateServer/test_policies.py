"""The two rules on tables small enough to work out by hand, and what must hold for every table."""

import math
from typing import Any

import pytest
from hypothesis import given, strategies as st
from scripted_job import table_of

from config import FIELDS
from server import anchor as anchors
from server.policies import POLICIES, Policy
from server.row import SILENCE_S, Action, Row
from server.state import MaxTree, Table
from trainer import command_line

TRAIN, SYNC = Action.TRAIN, Action.SYNC
FAST, SLOW = 0, 1


def decide(policy: str, table: Table, rank: int, now: float) -> Action:
    decision = POLICIES[policy].decide(table, rank, now)
    assert decision.reason
    return decision.action


def worker(rank: int, steps: int, step_time: float | None, **more: object) -> Row:
    row = Row(rank, local_iteration=steps, step_times=() if step_time is None else (step_time,), since=100.0)
    return row._replace(**more)


def fast(steps: int = 1, **more: object) -> Row:
    """Reaches the server in 1 + 0.5 s."""
    return worker(FAST, steps, 1.0, **{"transmission_time": 0.5, **more})


def slow(steps: int = 0, **more: object) -> Row:
    """Reaches the server in 10 + 2 s; entered the round at 100, so it is due at 112."""
    return worker(SLOW, steps, 10.0, **{"transmission_time": 2.0, **more})


# ------------------------------------------------------------------------------------------ the rules


def uploading(**more: object) -> Row:
    """Has done its step at 110 and pushes for 2 s."""
    return slow(1, **{"since": 110.0, "action": SYNC, **more})


def case(policy: str, why: str, *rows: Row, told: dict[float, Action], asks: int = FAST, epsilon: float = 0.0) -> Any:
    """What a worker is told at some moments."""
    return pytest.param(policy, rows, told, asks, epsilon, id=f"{policy}: {why}")


UNKNOWN = (fast(), slow(1), worker(2, 0, None))
FAR = {"transmission_time": 20.0}  # 21 s against 12 s
WAVERING = slow(step_times=(10.0, 10.0, 2.0))


@pytest.mark.parametrize(
    ("policy", "rows", "told", "asks", "epsilon"),
    [
        case("journal", "trains before the first step of a round", fast(0), slow(), told={111.9: TRAIN}),
        # 110.5 + 1.5 = 112 is not later than 112.
        case("journal", "trains until the straggler is due", fast(), slow(), told={110.5: TRAIN, 110.6: SYNC}),
        # By computing times alone the fast one would have until 109; a push of 2.5 s more makes it 108.5.
        case("journal", "counts the transmission of both", fast(transmission_time=2.5), slow(),
             told={108.5: TRAIN, 108.6: SYNC}),
        case("journal", "the longest way makes the straggler, not the slowest computer", fast(**FAR), slow(1),
             told={100.0: SYNC}),
        case("journal", "and the slowest computer waits for it", fast(0, **FAR), slow(1), asks=SLOW,
             told={101.0: TRAIN}),
        case("journal", "the straggler synchronises after its step", fast(), slow(1), asks=SLOW, told={100.0: SYNC}),
        # since moves on with the straggler's query, so by the clock alone there would be 12 s more.
        *(case("journal", f"synchronises after {steps} of the straggler's steps", fast(), slow(steps, since=110.0),
               told={110.0: SYNC}) for steps in (1, 2, 7)),
        case("journal", "synchronises when the straggler was told to", fast(), slow(action=SYNC), told={100.0: SYNC}),
        case("journal", "trains until the straggler has entered the round", fast(round=5),
             slow(1, round=4, action=SYNC), told={500.0: TRAIN}),
        case("journal", "waits for no straggler that is a round ahead", fast(round=4), slow(round=5),
             told={100.0: SYNC}),
        case("journal", "trains while a step time is not known", *UNKNOWN, told={100.0: TRAIN}),
        case("journal", "so does the slowest that is known", *UNKNOWN, asks=SLOW, told={100.0: TRAIN}),
        case("journal", "until it is", fast(), slow(1), worker(2, 1, 3.0), asks=SLOW, told={103.0: SYNC}),
        case("journal", "has no tolerance", fast(), slow(), epsilon=100.0, told={110.5: TRAIN}),
        case("journal", "equal workers each do one step", worker(0, 1, 2.0), worker(1, 0, 2.0), worker(2, 0, 2.0),
             told={102.0: SYNC}),
        case("journal", "the first to ask", worker(0, 0, 2.0), worker(1, 1, 2.0), worker(2, 0, 2.0), asks=1,
             told={101.9: SYNC}),
        case("journal", "no update is waited for", fast(), uploading(), told={110.0: SYNC}),
        case("journal", "takes a smoothed step time", fast(), WAVERING, told={101.5: TRAIN}),  # due at 112
        # A step and a push take 1.5 s, and the straggler's update is there at 112.
        *(case("upload-aware", f"trains until the update is there, {why}", fast(), straggler,
               told={110.5: TRAIN, 110.6: SYNC, 500.0: SYNC}) for why, straggler in {
                   "which was told": uploading(), "whose step is done": slow(1, since=110.0),
                   "told before the step": slow(0, since=110.0, action=SYNC)}.items()),
        case("upload-aware", "counts the asker's own push", fast(transmission_time=0.75), uploading(),
             told={110.25: TRAIN, 110.3: SYNC}),
        case("upload-aware", "waits for no upload of unknown age", fast(), uploading(since=None), told={110.0: SYNC}),
        case("preprint", "trains before the first step", fast(0), slow(1, action=SYNC), told={110.0: TRAIN}),
        case("preprint", "trains until the slowest has entered the round", fast(round=2), slow(1, round=1),
             told={200.0: TRAIN}),
        case("preprint", "so does who is behind too", fast(round=1), slow(1, round=1, action=SYNC),
             worker(2, 1, 1.0, round=2), told={200.0: TRAIN}),
        case("preprint", "until it is in the newest one", fast(round=1), slow(1, round=2, action=SYNC),
             worker(2, 1, 1.0, round=2), told={200.0: SYNC}),
        case("preprint", "the slowest synchronises", fast(), slow(1), asks=SLOW, told={100.0: SYNC}),
        case("preprint", "synchronises when the slowest was told to", fast(), slow(1, action=SYNC),
             told={100.0: SYNC}),
        # At 108.5 the slowest has 10 - 8.5 = 1.5 s left; 1 + 0.5 is not above it.
        case("preprint", "compares computing time and epsilon with the rest", fast(), slow(), epsilon=0.5,
             told={108.5: TRAIN, 108.6: SYNC}),
        case("preprint", "takes the last step time", fast(), WAVERING, told={101.5: SYNC}),  # 0.5 s left
    ],
)  # fmt: skip
def test_a_rule_by_hand(
    policy: str, rows: tuple[Row, ...], told: dict[float, Action], asks: int, epsilon: float
) -> None:
    table = table_of(policy, *rows, epsilon=epsilon)
    assert {now: decide(policy, table, asks, now) for now in told} == told


def test_upload_aware_says_what_it_compares() -> None:
    table = table_of("upload-aware", fast(), uploading())
    reasons = [POLICIES["upload-aware"].decide(table, FAST, now).reason for now in (110.25, 111.0)]
    assert reasons == [
        "the update of straggler 1 is due in 1.75 s, another step takes 1.5 s",
        "another step would take 1.5 s, and the update of straggler 1 is due in 1 s",
    ]


def test_the_rules_that_a_worker_may_ask_for_are_there() -> None:
    assert {*FIELDS["policy"].arguments["choices"]} <= {*POLICIES}
    assert command_line.parse(["-m", "esync", "--policy", "upload-aware"]).rule == "upload-aware"
    assert command_line.parse(["-m", "esync"]).rule == "journal"


# ----------------------------------------------------------------------------------------------- the anchor


@pytest.mark.parametrize(
    ("policy", "anchor", "straggler", "last_s"),
    [
        ("journal", 3, slow(0), 130.5),  # three steps and the upload are due at 100 + 32; another step takes 1.5 s
        ("journal", 3, slow(1, since=110.0), 130.5),
        ("journal", 3, slow(2, since=125.0), 135.5),  # its second step took 15 s: the last one ends at 135
        ("upload-aware", 3, slow(2, since=125.0), 135.5),
        ("upload-aware", 3, slow(3, since=130.0), 130.5),  # the upload alone: due at 132
        ("preprint", 3, slow(1, since=110.0), 129.0),  # the third step ends at 130; another one takes 1 s
        ("preprint", 2, slow(1, since=110.0), 119.0),
        ("journal", "auto", slow(0), 120.5),  # two steps, of which the upload is 2 / 22
        ("preprint", "auto", slow(0), 119.0),
        ("journal", "auto", slow(0, transmission_time=0.0), 108.5),  # the upload is not known yet: one step
    ],
)
def test_the_others_train_until_the_stragglers_last_step(
    policy: str, anchor: int | str, straggler: Row, last_s: float
) -> None:
    table = table_of(policy, fast(), straggler, anchor=anchor)
    assert decide(policy, table, FAST, last_s) is TRAIN
    assert decide(policy, table, FAST, last_s + 0.1) is SYNC


@pytest.mark.parametrize("policy", FIELDS["policy"].arguments["choices"])
def test_the_straggler_itself_takes_that_many_steps(policy: str) -> None:
    told = [decide(policy, table_of(policy, fast(), slow(done), anchor=3), SLOW, 130.0) for done in range(5)]
    assert told == [TRAIN, TRAIN, TRAIN, SYNC, SYNC]
    assert decide(policy, table_of(policy, fast(), slow(1, action=SYNC), anchor=3), FAST, 199.0) is SYNC


def test_an_automatic_anchor_follows_the_stragglers_times() -> None:
    table = table_of("journal", fast(), slow(2), anchor="auto")
    assert decide("journal", table, SLOW, 120.0) is SYNC
    table.put(slow(2, step_times=(4.0,), since=115.0))  # five: 2 / (5 * 4 + 2) is below a tenth, 2 / (4 * 4 + 2) is not
    assert [decide("journal", table, rank, 120.0) for rank in (SLOW, FAST)] == [TRAIN, TRAIN]
    table.put(slow(5, step_times=(4.0,)))
    assert [decide("journal", table, rank, 120.0) for rank in (SLOW, FAST)] == [SYNC, SYNC]


@pytest.mark.parametrize(
    ("step_s", "exchange_s", "found"),
    [
        (10.0, 0.0, 1),
        (10.0, 1.0, 1),
        (10.0, 2.0, 2),
        (1.0, 1.0, 10),
        (0.05, 0.106, 20),
        (0.1, 60.0, anchors.MOST),
        (0.0, 1.0, 1),
    ],
)
def test_the_automatic_anchor_is_the_least_with_an_exchange_below_a_tenth(
    step_s: float, exchange_s: float, found: int
) -> None:
    assert anchors.steps("auto", slow(step_times=(step_s,), transmission_time=exchange_s)) == found
    if step_s and found < anchors.MOST:
        assert exchange_s < anchors.SHARE * (found * step_s + exchange_s)
        assert found == 1 or exchange_s >= anchors.SHARE * ((found - 1) * step_s + exchange_s)


# ----------------------------------------------------------------------------------------------- step times


def test_one_outlier_makes_no_straggler() -> None:
    row = Row(0)
    for steps, seconds in enumerate([9.0, 1.0, 1.1, 1.2, 30.0, 1.0], start=1):
        row = row.stepping(steps, seconds, batch=1, now=float(steps))
    assert row.step_times == (1.0, 1.1, 1.2, 30.0, 1.0)
    assert row.step_time == 1.1


# -------------------------------------------------------------------------------------------------- silence


def silent(table: Table, now: float) -> list[int]:
    """The ranks on which decisions count no more from now on."""
    return [row.rank for row in table.stop_counting_on_the_silent(now)]


def test_nobody_counts_on_a_straggler_that_is_silent_for_long() -> None:
    table = table_of("journal", fast(round=2, heard=129.0), slow(1, round=1, heard=0.0))
    assert slow().silence_limit == 120.0  # ten times its own 12 s
    assert [silent(table, now) for now in (120.0, 120.1)] == [[], [SLOW]]
    assert decide("journal", table, FAST, 120.1) is SYNC
    assert not table.rows[SLOW].counted
    table.put(slow(round=2))
    assert table.slowest.rank == SLOW


def test_a_worker_that_never_came_is_waited_for_half_a_minute_at_most() -> None:
    table = table_of("journal", fast(heard=29.0), Row(1), Row(2))
    for now, gone, told in ((SILENCE_S, [], TRAIN), (30.1, [1, 2], SYNC)):
        assert silent(table, now) == gone
        assert decide("journal", table, FAST, now) is told


def test_who_is_not_the_slowest_is_looked_at_in_turn() -> None:
    """A silent worker that is fast has its part in a mean, too."""
    workers = [worker(0, 1, 1.0, heard=0.0), *(worker(rank, 1, 1.0 + rank, heard=130.0) for rank in (1, 2, 3))]
    table = table_of("journal", *workers)
    assert [silent(table, 130.0) for _ in workers] == [[], [], [], [0]]
    assert [row.counted for row in table.rows] == [False, True, True, True]


def test_who_waits_for_the_slowest_is_not_silent_before_it_would_be() -> None:
    table = table_of("journal", worker(0, 1, 1.0, heard=0.0), worker(1, 1, 20.0, heard=150.0))
    assert [row.silence_limit for row in table.rows] == [30.0, 200.0]
    assert [silent(table, 200.0) for _ in range(2)] == [[], []]
    assert sorted(silent(table, 200.1) for _ in range(2)) == [[], [0]]


# ------------------------------------------------------------------------------------- what holds everywhere

delays = st.one_of(st.integers(0, 5).map(float), st.just(math.inf), st.just(-1.0))


@given(st.lists(delays, min_size=1, max_size=40), st.lists(st.tuples(st.integers(0, 39), delays), max_size=60))
def test_the_index_finds_what_a_look_at_all_workers_finds(start: list[float], changes: list[tuple[int, float]]) -> None:
    current = list(start)
    index = MaxTree(len(start), start[0])
    for rank, delay in enumerate(start):
        index.change(rank, delay)
    for rank, delay in [(0, current[0]), *changes]:
        rank %= len(current)
        current[rank] = delay
        index.change(rank, delay)
        assert index.slowest == max(range(len(current)), key=lambda k: (current[k], -k))
    assert index.delays == current


# Multiples of 1/64 s in a small range: sums and differences are exact, so that no rounding blurs a comparison.
exact_seconds = st.integers(0, 2000).map(lambda number: number / 64)


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[Row], float]:
    rows = []
    for rank in range(draw(st.integers(1, 6))):
        steps = draw(st.integers(0, 3))
        known = steps > 0 or draw(st.booleans())
        rows.append(
            Row(
                rank,
                round=draw(st.integers(1, 3)),
                local_iteration=steps,
                step_times=tuple(draw(st.lists(exact_seconds, min_size=1, max_size=5))) if known else (),
                transmission_time=draw(exact_seconds),
                since=draw(exact_seconds) if known or draw(st.booleans()) else None,
                action=draw(st.sampled_from([None, TRAIN, SYNC])) if steps else None,
            )
        )
    return rows, draw(exact_seconds) + max((row.since or 0.0) for row in rows)


every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)


@every_policy
@given(
    case=tables(),
    shift=st.integers(-1000, 1000).map(float),
    epsilon=exact_seconds,
    anchor=st.sampled_from([0, 3, "auto"]),
)
def test_shifting_all_clocks_changes_nothing(
    policy: Policy, case: tuple[list[Row], float], shift: float, epsilon: float, anchor: int | str
) -> None:
    rows, now = case
    here = table_of(policy.name, *rows, epsilon=epsilon, anchor=anchor)
    shifted = [row if row.since is None else row._replace(since=row.since + shift) for row in rows]
    there = table_of(policy.name, *shifted, epsilon=epsilon, anchor=anchor)
    for rank in range(len(rows)):
        assert policy.decide(here, rank, now) == policy.decide(there, rank, now + shift)


@every_policy
@given(case=tables())
def test_deciding_changes_nothing(policy: Policy, case: tuple[list[Row], float]) -> None:
    rows, now = case
    table = table_of(policy.name, *rows)
    for rank in range(len(rows)):
        assert policy.decide(table, rank, now) == policy.decide(table, rank, now)
    assert table.rows == rows
