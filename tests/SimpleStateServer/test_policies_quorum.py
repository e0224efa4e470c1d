"""The quorum merge's rule on tables small enough to work out by hand: three or four workers in round 5."""

import pytest
from scripted_job import table_of

from server.policies.quorum import merging
from server.row import Action, Row

TRAIN, SYNC = Action.TRAIN, Action.SYNC


def is_in(rank: int, since_s: float, *, again: bool = False) -> Row:
    """A worker that has uploaded in this round; `again`: and has got an answer before."""
    return Row(rank, round=5, local_iteration=1 + again, entered=since_s, action=TRAIN if again else None)


def out(rank: int, **more: object) -> Row:
    """A worker whose last upload was in the round before."""
    return Row(rank, round=4, local_iteration=1, entered=0.0, action=TRAIN)._replace(**more)


def answer(quorum: int, grace_s: float | None, now: float, *rows: Row) -> Action:
    """What the last of the workers that are in is told."""
    asker = max((row for row in rows if row.round == 5), key=lambda row: row.rank)
    decision = merging(quorum, grace_s).decide(table_of("quorum", *rows), asker.rank, now)
    assert decision.reason
    return decision.action


@pytest.mark.parametrize("grace_s", [None, 0.0, 9.0])
def test_nothing_is_merged_below_the_quorum_and_at_once_when_all_are_in(grace_s: float | None) -> None:
    assert answer(2, grace_s, 99.0, out(0), is_in(1, 1.0, again=True), out(2)) is TRAIN
    assert answer(2, grace_s, 1.0, is_in(0, 1.0), is_in(1, 1.0), is_in(2, 1.0)) is SYNC


@pytest.mark.parametrize(("num_workers", "more_than_half"), [(1, 1), (2, 2), (3, 2), (4, 3)])
def test_without_a_number_the_quorum_is_more_than_half(num_workers: int, more_than_half: int) -> None:
    for count in range(1, num_workers):
        rows = [is_in(rank, 0.0) if rank < count else out(rank) for rank in range(num_workers)]
        assert answer(0, 0.0, 0.0, *rows) is (SYNC if count >= more_than_half else TRAIN)


def test_the_grace_in_seconds_begins_with_the_upload_that_reaches_the_quorum() -> None:
    """Worker 1's at 3 s, whatever worker 2 uploaded later."""
    rows = out(0), is_in(1, 3.0), is_in(2, 1.0, again=True), out(3)
    assert [answer(2, 4.0, now, *rows) for now in (6.9, 7.0)] == [TRAIN, SYNC]
    assert answer(2, 0.0, 3.0, *rows) is SYNC


def test_the_automatic_grace_ends_when_a_worker_uploads_again_that_was_in() -> None:
    assert answer(2, None, 99.0, out(0), is_in(1, 3.0, again=True), is_in(2, 4.0)) is TRAIN
    assert answer(2, None, 4.0, out(0), is_in(1, 3.0), is_in(2, 4.0, again=True)) is SYNC


@pytest.mark.parametrize("grace_s", [None, 9.0])
def test_the_lost_and_the_silent_are_not_waited_for(grace_s: float | None) -> None:
    gone = [out(rank, counted=False) for rank in (0, 1)]
    assert answer(4, grace_s, 4.0, *gone, is_in(2, 4.0), is_in(3, 4.0)) is SYNC
    assert answer(4, grace_s, 4.0, gone[0], out(1), is_in(2, 4.0), is_in(3, 4.0, again=True)) is TRAIN
    assert answer(2, None, 4.0, gone[0], out(1), is_in(2, 4.0), is_in(3, 4.0, again=True)) is SYNC


def test_what_was_uploaded_before_the_job_was_taken_over_does_not_count() -> None:
    assert answer(2, 0.0, 9.0, Row(0), Row(1), is_in(2, 1.0)) is TRAIN
