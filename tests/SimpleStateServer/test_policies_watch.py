"""What each rule means to someone who watches: its name, what SYNC is, and which workers are marked."""

from collections.abc import Mapping

import pytest
from scripted_job import table_of

from server.policies import POLICIES, Sync
from server.row import STEP_TIME_WINDOW, Action, Row

TRAIN, SYNC = Action.TRAIN, Action.SYNC


def worker(rank: int, seconds: float, **more: object) -> Row:
    """Its window is full of steps of 64 samples that took so long."""
    times, of_samples = (seconds,) * STEP_TIME_WINDOW, (seconds / 64,) * STEP_TIME_WINDOW
    row = Row(rank, step_times=times, sample_times=of_samples, steps=10, samples=640)
    return row._replace(**more)


def marked(policy: str, *rows: Row) -> Mapping[int, str]:
    table = table_of(policy, *rows)
    return POLICIES[policy].marks(table.rows, table.slowest.rank)


ONE_OF_FOUR = [worker(rank, 0.1 if rank == 2 else 0.05) for rank in range(4)]


@pytest.mark.parametrize(
    ("policy", "title", "sync", "leaves_out", "marks"),
    [
        ("journal", "ESync", Sync.AGGREGATES, False, {2: "straggler"}),
        ("upload-aware", "ESync", Sync.AGGREGATES, False, {2: "straggler"}),
        ("preprint", "ESync", Sync.AGGREGATES, False, {2: "straggler"}),
        ("wbsp", "WBSP", Sync.RELEASES, False, {2: "slowest"}),
        ("quorum", "Quorum merge", Sync.RELEASES, False, {}),
        ("sync-switch-none", "Sync-Switch", Sync.STAYS_IN_STEP, False, {}),
        ("sync-switch-greedy", "Sync-Switch", Sync.STAYS_IN_STEP, False, {2: "straggler"}),
        ("sync-switch-elastic", "Sync-Switch", Sync.STAYS_IN_STEP, True, {2: "straggler"}),
        ("lb-bsp", "LB-BSP", Sync.STAYS_IN_STEP, False, {2: "slowest"}),
    ],
)
def test_what_a_watcher_is_told(policy: str, title: str, sync: Sync, leaves_out: bool, marks: dict[int, str]) -> None:
    watch = POLICIES[policy]
    assert (watch.title, watch.sync, watch.leaves_out) == (title, sync, leaves_out)
    assert marked(policy, *ONE_OF_FOUR) == marks


def test_captions_tell_the_rules_of_an_algorithm_apart() -> None:
    shown = [(policy.title, policy.caption) for policy in POLICIES.values()]
    assert len(set(shown)) == len(POLICIES)
    assert "computing" in POLICIES["preprint"].caption


@pytest.mark.parametrize("policy", POLICIES)
def test_nobody_is_marked_while_no_step_time_is_known_nor_where_all_are_silent(policy: str) -> None:
    assert marked(policy, Row(0), Row(1)) == {}
    assert marked(policy, *(row._replace(counted=False) for row in ONE_OF_FOUR)) == {}


def test_elastic_marks_who_is_left_out_and_who_would_be() -> None:
    """Worker 4 hides worker 3 only while it counts."""
    rows = [worker(rank, 0.05) for rank in range(3)] + [worker(3, 0.1), worker(4, 0.5, action=TRAIN)]
    assert marked("sync-switch-elastic", *rows) == {3: "straggler", 4: "straggler"}
    assert marked("sync-switch-greedy", *rows) == {4: "straggler"}
