"""What each message does to the state, on a virtual clock and without HTTP."""

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FrameType
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from scripted_job import ScriptedJob

from server.errors import BadMessage, Conflict
from server.handlers import Handlers
from server.jobs import Job, Jobs
from server.messages import (
    MAX_POINTS,
    Left,
    PublishedReset,
    Query,
    Report,
    Reset,
    Settings,
    Status,
    Total,
)
from server.policies import POLICIES
from server.row import HISTORY_ROUNDS, Action, Activity, Device, Row
from server.state import Table

TRAIN, SYNC = Action.TRAIN, Action.SYNC


def job_of(num_workers: int, policy: str = "journal", job: str = "a", **more: Any) -> Handlers:
    handlers = Handlers()
    token = more.pop("token", "")
    handlers.reset(Reset("server-0", job, Settings(num_workers, policy, 0.5, **more), token=token), now=0.0)
    return handlers


def shown(handlers: Handlers, id: str | None = None) -> Job:
    """A job, the latest where none is named."""
    job = handlers.jobs.latest if id is None else handlers.jobs.get(id)
    assert job is not None
    return job


def enter(handlers: Handlers, rank: int, round: int, now: float = 0.0) -> None:
    """Lets a worker go through all rounds before, and enter this one."""
    for entered in range(handlers.jobs.latest.table.rows[rank].round, round + 1):
        handlers.report(report(rank, entered), now)


def report(rank: int, round: int, job: str | None = "a", **more: object) -> Report:
    return Report(f"worker-{rank}", job, Status(rank, 0, round), **more)  # type: ignore[arg-type]


def query(
    rank: int, round: int | None, steps: int, seconds: float = 1.0, job: str | None = "a", **more: object
) -> Query:
    status = Status(rank, steps, round, seconds, 0.0)
    return Query(f"worker-{rank}", job, status, **more)  # type: ignore[arg-type]


def code_of(call: Callable[..., object], *arguments: object) -> str:
    """Of the Conflict that it raises."""
    with pytest.raises(Conflict) as refusal:
        call(*arguments)
    return refusal.value.code


def test_a_test_step_before_the_first_round_makes_the_time_known_and_zero_means_that_none_is() -> None:
    handlers = job_of(2)
    handlers.report(Report("worker-1", "a", Status(1, 0, 1, 0.0, 0.0)), now=0.0)
    assert shown(handlers).rows[1].step_time is None
    for rank, seconds in ((0, 1.0), (1, 4.0)):
        handlers.report(Report(f"worker-{rank}", "a", Status(rank, 0, 1, seconds, 0.0)), now=0.0)
    assert handlers.query(query(0, 1, 1), now=1.0).action is TRAIN
    assert handlers.query(query(0, 1, 2), now=3.5).action is SYNC


def test_a_repeated_query_changes_nothing_and_gets_the_same_answer() -> None:
    handlers = job_of(2)
    handlers.query(query(1, 1, 1, 4.0), now=4.0)
    for rank in (0, 1):
        handlers.report(report(rank, 2), now=10.0)
    first = handlers.query(query(0, 2, 1, 1.0), now=11.0)
    before = shown(handlers).rows[0]
    assert handlers.query(query(0, 2, 1, 1.0), now=13.9) == first
    after = shown(handlers).rows[0]
    assert (before.heard, after.heard) == (11.0, 13.9)
    assert (after.since, after.step_times, after.steps) == (before.since, before.step_times, before.steps)


def test_a_repeated_report_does_not_restart_the_stragglers_clock() -> None:
    handlers = job_of(2)
    handlers.report(report(1, 1), now=5.0)
    handlers.report(report(1, 1), now=9.0)
    assert shown(handlers).rows[1].since == 5.0


def test_an_answer_to_aggregate_stands_for_the_rest_of_the_round() -> None:
    handlers = job_of(2)
    for rank, seconds in ((0, 4.0), (1, 1.0)):
        handlers.report(Report(f"worker-{rank}", "a", Status(rank, 0, 1, seconds, 0.0)), now=0.0)
    assert handlers.query(query(0, 1, 1, 4.0), now=4.0).action is SYNC
    # Now the other one turns out to be far away: without the first answer there would be time for a step.
    handlers.report(Report("worker-1", "a", Status(1, 0, 1, 1.0, 100.0)), now=4.0)
    assert shown(handlers).table.slowest.rank == 1
    assert handlers.query(query(0, 1, 2, 4.0), now=8.0).action is SYNC


def test_what_comes_after_later_queries_moves_nothing_back_and_gets_the_later_answer() -> None:
    handlers = job_of(1)
    assert handlers.query(query(0, 2, 3), now=3.0).action is SYNC
    assert handlers.query(query(0, 2, 2), now=3.1).action is SYNC
    handlers.report(report(0, 2), now=3.2)
    row = shown(handlers).rows[0]
    assert (row.round, row.local_iteration, row.action) == (2, 3, SYNC)


@pytest.mark.parametrize("steps", [0, 9], ids=["report", "query"])
@pytest.mark.parametrize(("round", "code"), [(2, "stale"), (5, "round-ahead"), (10**9, "round-ahead")])
def test_a_message_of_another_round_than_this_or_the_next_is_refused_and_changes_nothing(
    steps: int, round: int, code: str
) -> None:
    handlers = job_of(1)
    enter(handlers, 0, 3, now=1.0)
    before = [*shown(handlers).rows]
    message = query(0, round, steps) if steps else report(0, round)
    with pytest.raises(Conflict, match="is in round 3") as refusal:
        handlers.handle(message, 2.0)
    assert refusal.value.code == code
    assert shown(handlers).rows == before


def test_a_repeated_reset_changes_nothing_even_from_another_sender_and_one_with_other_settings_is_refused() -> None:
    handlers = job_of(2)
    enter(handlers, 0, 7)
    answer = handlers.reset(Reset("worker-1", "a", Settings(2, "journal", 0.5)), now=2.0)
    assert answer.reason == "the job has 2 worker(s) and is in round 7"
    assert shown(handlers).table.round == 7
    with pytest.raises(Conflict, match="num_workers=2") as refusal:
        handlers.reset(Reset("server-0", "a", Settings(3, "journal", 0.5)), now=1.0)
    assert refusal.value.code == "job-settings"


def test_an_anchor_holds_after_the_straggler_is_lost_and_stands_on_the_page() -> None:
    job = ScriptedJob(3, transmission_time=1.0, anchor="auto")
    assert job.status(0.0)["anchor"] == 1  # no time is known
    told = [job.query(rank, 1, 1, seconds, 9.0) for rank, seconds in enumerate((1.0, 3.0, 9.0))]
    assert told == ["TRAIN", "TRAIN", "TRAIN"]
    assert job.status(9.0)["anchor"] == 2  # 1 / (2 * 9 + 1) is below a tenth, 1 / (9 + 1) is not
    job.handlers.reset(
        Reset("worker-0", "a", Settings(2, "journal", 0.5, anchor="auto", resumed=1, generation=2)), 20.0
    )
    told = [job.query(1, 2, step, 3.0, 20.0 + 3 * step) for step in (1, 2, 3, 4)]
    assert told == ["TRAIN", "TRAIN", "TRAIN", "SYNC"]  # 1 / (4 * 3 + 1) is below a tenth
    assert job.status(32.0)["anchor"] == 4
    assert ScriptedJob(3).status(0.0)["anchor"] is None


def test_a_job_goes_on_with_the_workers_of_another_generation_and_hears_no_more_of_those_before() -> None:
    handlers = job_of(3)
    for rank in range(3):
        enter(handlers, rank, 7)
    handlers.report(report(0, 8, accuracy=0.5), now=2.0)
    for sender in ("worker-1", "worker-0"):
        handlers.reset(Reset(sender, "a", Settings(2, "journal", 0.5, resumed=1, generation=2)), now=3.0)
    of_before = Settings(3, "journal", 0.5)
    for message in (query(2, 8, 1, settings=of_before), Reset("worker-0", "a", of_before)):
        with pytest.raises(Conflict, match="is in generation 2 of its workers, this is of generation 1") as late:
            handlers.handle(message, 4.0)
        assert late.value.code == "stale"
    for rank in range(2):  # in whatever round they are
        handlers.report(report(rank, 9 + rank, settings=Settings(2, "journal", 0.5, generation=2)), now=5.0)
    job = shown(handlers)
    assert (len(job.rows), job.table.round, job.began) == (2, 10, 0.0)
    assert [(point.round, point.value) for point in job.curve.points] == [(7, 0.5)]


def test_a_message_with_the_jobs_settings_begins_it_moves_it_on_and_may_be_of_any_round() -> None:
    handlers, settings = Handlers(), Settings(2, "journal", 0.5, resumed=1)
    handlers.query(query(1, 57, 3, settings=settings), now=5.0)
    job = shown(handlers)
    assert (len(job.rows), job.table.round, job.history_lost) == (2, 57, True)
    assert [row.counted for row in job.rows] == [False, True]
    handlers.report(report(1, 70, settings=msgspec.structs.replace(settings, resumed=0)), now=6.0)
    more = Settings(3, "journal", 0.5, generation=2)
    handlers.report(report(2, 80, settings=more), now=7.0)
    assert (len(shown(handlers).rows), shown(handlers).settings.generation) == (3, 2)
    assert code_of(handlers.report, report(1, 71, settings=settings), 8.0) == "stale"
    other = msgspec.structs.replace(more, policy="preprint")
    assert code_of(handlers.report, report(2, 81, settings=other), 8.0) == "job-settings"
    with pytest.raises(BadMessage, match="'rank' is 2; give 0 to 1"):
        report(2, 1, settings=settings)


@pytest.mark.parametrize("policy", ["journal", "upload-aware", "preprint"])
def test_a_straggler_without_which_the_others_go_on_holds_nobody_until_it_is_heard_again(policy: str) -> None:
    handlers, settings = Handlers(), Settings(3, policy, 0.5)

    def ask(rank: int, steps: int, seconds: float, now: float, **more: Any) -> Action | None:
        told = Status(rank, steps, 2, seconds, 0.0)
        return handlers.query(Query(f"worker-{rank}", "a", told, settings, **more), now).action

    for rank, seconds in enumerate((1.0, 2.0, 60.0)):
        handlers.query(query(rank, 1, 1, seconds, settings=settings), now=60.0)
    for rank in range(3):
        handlers.report(report(rank, 2, settings=settings), now=61.0)
    assert ask(0, 1, 1.0, 62.0) is TRAIN  # as worker 2 has 58 s to go
    assert ask(1, 1, 2.0, 63.0, lost=(2,)) is SYNC  # the slowest of the others
    assert ask(0, 2, 1.0, 63.1) is SYNC
    assert [row.counted for row in shown(handlers).rows] == [True, True, False]
    successor = Report("worker-2-b", "a", Status(2, 0, 3, 60.0, 0.0), settings)
    handlers.report(successor, now=65.0)  # a new process speaks for the rank
    assert shown(handlers).rows[2].counted
    for rank in (0, 1):
        handlers.report(report(rank, 3, settings=settings), now=65.0)
    told = Status(1, 1, 3, 2.0, 0.0)
    assert handlers.query(Query("worker-1", "a", told, settings), now=67.0).action is TRAIN
    assert code_of(handlers.report, report(2, 3, settings=settings), 68.0) == "other-sender"
    with pytest.raises(BadMessage, match="rank 3 is not in this job; give 0 to 2"):
        handlers.report(report(1, 3, lost=(3,)), now=69.0)


def test_a_worker_is_there_whatever_its_own_message_says_of_it() -> None:
    handlers = job_of(2)
    handlers.report(report(1, 1, lost=(1,)), now=1.0)
    assert shown(handlers).rows[1].counted


def test_a_worker_registers_again_in_the_middle_of_a_round_after_the_server_was_restarted() -> None:
    handlers = job_of(2, resumed=True)
    handlers.report(Report("worker-0", "a", Status(0, 3, 57, 1.0, 0.0), samples=64), now=0.0)
    row = shown(handlers).rows[0]
    assert (row.round, row.local_iteration, row.step_times) == (57, 3, (1.0,))
    handlers.report(report(1, 57), now=0.1)
    assert handlers.query(query(0, 57, 3), now=0.1).action is TRAIN
    assert handlers.query(query(1, 57, 1, 4.0), now=1.0).action is SYNC
    assert handlers.query(query(0, 57, 4), now=1.1).action is SYNC


def test_after_a_restart_nobody_is_asked_to_wait_for_a_worker_that_is_in_the_aggregation_already() -> None:
    handlers = job_of(3, resumed=True)
    assert handlers.query(query(0, 7, 5), now=0.0).action is SYNC  # the slowest of those that were heard
    for rank in (0, 1):
        handlers.report(report(rank, 8), now=1.0)
    handlers.query(query(1, 8, 1, 4.0), now=5.0)
    for rank in range(3):
        handlers.report(report(rank, 9), now=6.0)
    assert handlers.query(query(0, 9, 1), now=7.0).action is TRAIN  # and now all count


def test_a_straggler_that_cannot_tell_of_the_round_counts_as_having_entered_it_with_the_others() -> None:
    handlers = job_of(2)
    handlers.query(Query("worker-1", "a", Status(1, 1, 1, 1.0, 0.5)), now=1.0)
    handlers.report(report(0, 2), now=2.0)
    assert handlers.query(query(0, 2, 1, 0.5), now=2.5).action is TRAIN  # it has not entered the round
    handlers.report(report(0, 3), now=9.0)
    assert handlers.query(query(0, 3, 1, 0.5), now=9.9).action is TRAIN  # it is due at 10.5
    assert handlers.query(query(0, 3, 2, 0.5), now=10.1).action is SYNC
    for round in range(4, 40):
        handlers.report(report(0, round), now=3.0 * round)
        assert handlers.query(query(0, round, 1, 0.5), now=3.0 * round + 0.5).action is TRAIN
    assert shown(handlers).rows[1].counted  # the others' rounds go on, so it lives


def test_a_rank_speaks_for_one_sender_until_the_next_generation() -> None:
    handlers = job_of(2)
    handlers.report(report(1, 1), now=0.0)
    for round in range(1, 401):
        assert code_of(handlers.report, Report("worker-1-b", "a", Status(1, 0, round)), 1.0) == "other-sender"
    assert handlers.query(query(1, 1, 1, 4.0), now=4.0).action is TRAIN
    handlers.reset(Reset("server-0", "a", Settings(2, "journal", 0.5, generation=2)), now=5.0)
    handlers.report(Report("worker-1-b", "a", Status(1, 0, 7)), now=5.0)
    assert code_of(handlers.report, report(1, 8), 5.0) == "other-sender"


def test_a_job_that_was_begun_with_a_token_takes_no_message_without_it() -> None:
    handlers = job_of(2, token="s3cret")
    later = Reset("x", "a", Settings(2, "journal", 0.5, generation=2), token="s3cret")
    for token in ("", "s3cre", "another"):
        wrong = msgspec.structs.replace(later, token=token)
        for message in (wrong, report(1, 1, token=token), query(1, 1, 1, token=token)):
            assert code_of(handlers.handle, message, 0.0) == "token"
    handlers.reset(later, now=1.0)
    assert code_of(handlers.report, report(1, 1), 1.0) == "token"
    assert handlers.query(query(1, 1, 1, 4.0, token="s3cret"), now=5.0).action is SYNC
    handlers = job_of(2)  # of a job without one any will do
    assert handlers.query(query(1, 1, 1, 4.0, token="s3cret"), now=4.0).action is TRAIN


def test_the_table_keeps_what_a_status_page_shows() -> None:
    handlers = job_of(1)
    where = Device("node-7", "gpu0")
    for round in range(1, 31):
        begin = 10.0 * round
        handlers.report(report(0, round, device=where, accuracy=0.5), now=begin)
        handlers.query(query(0, round, 3, samples=64), now=begin + 6)
    row = shown(handlers).rows[0]
    assert row.device == where
    assert (row.steps, row.samples) == (90, 90 * 64)
    assert len(row.past) == HISTORY_ROUNDS
    last = row.past[-1]
    assert (last.round, last.entered, last.synced) == (29, 290.0, 296.0)


def test_accuracies_come_from_whichever_worker_evaluates_and_stay_bounded() -> None:
    handlers = job_of(2)
    assert shown(handlers).curve.points == ()
    for round in range(1, 2001):
        handlers.report(report(1, round, accuracy=0.95 if round == 6 else 0.5 + round / 5000), now=float(round))
    job = shown(handlers)
    rounds = [point.round for point in job.curve.points]
    assert (rounds[0], rounds[-1]) == (0, 1999)  # after which they were measured: a report enters the next one
    assert len(rounds) <= MAX_POINTS + 2
    assert max(after - before for before, after in itertools.pairwise(rounds)) <= 8  # evenly, not the latest alone
    assert job.curve.best is not None
    assert (job.curve.best.round, job.curve.best.value) == (5, 0.95)


def lines_run(call: Callable[[], object]) -> int:
    """How many lines of Python the call runs, in all functions."""
    lines = 0

    def trace(frame: FrameType, event: str, argument: object) -> object:
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


@pytest.mark.parametrize("policy", list(POLICIES))
def test_the_work_for_a_decision_grows_by_no_more_than_a_constant_when_the_workers_double(policy: str) -> None:
    """The worst case: the asker's step time has changed, and it becomes the slowest of all."""
    work = []
    for num_workers in (16, 4096):
        handlers = Handlers()
        handlers.reset(Reset("test", "a", Settings(num_workers, policy, epsilon=0.5)), now=0.0)
        for rank in range(num_workers):
            for round_ in range(1, 6 if policy.startswith("sync-switch") else 2):  # its window of step times is full
                status = Status(rank, 1, round_, 1.0, 0.1)
                handlers.query(Query(f"worker-{rank}", "a", status, samples=64), now=1.0)
        last = Query("worker-5", "a", Status(5, 2, round_, 9.0, 9.0), samples=64)
        work.append(lines_run(lambda handlers=handlers, last=last: handlers.query(last, now=2.0)))
    doublings = 8
    assert work[1] - work[0] <= 10 * doublings


conversations = st.lists(
    st.tuples(
        st.sampled_from([Report, Query]),
        st.builds(
            Status,
            st.integers(0, 2),  # rank
            st.integers(0, 4),  # local steps
            st.integers(1, 3),  # round
            st.integers(0, 320).map(lambda number: number / 64),  # step time
            st.just(0.25),
        ),
        st.integers(0, 2560).map(lambda number: number / 64),  # time since the message before
    ),
    max_size=40,
)
Conversation = list[tuple[type[Report | Query], Status, float]]


def talk(conversation: Conversation, begin: float, policy: str) -> Iterator[tuple[object, Job]]:
    """Each answer or refusal, and the job after it."""
    handlers, now = Handlers(), begin
    handlers.reset(Reset("server-0", "a", Settings(3, policy, 0.5)), now)
    for kind, status, pause in conversation:
        now += pause
        try:
            answer: object = handlers.handle(kind("w", "a", status), now)
        except Conflict as refusal:
            answer = refusal.code
        yield answer, shown(handlers)


def answers_to(conversation: Conversation, begin: float, policy: str) -> list[object]:
    return [answer for answer, _ in talk(conversation, begin, policy)]


@pytest.mark.parametrize("policy", ["journal", "preprint"])
@given(conversation=conversations, shift=st.integers(-4096, 4096).map(float))
def test_a_conversation_depends_neither_on_where_the_clock_starts_nor_on_messages_that_come_twice(
    policy: str, conversation: Conversation, shift: float
) -> None:
    once = answers_to(conversation, 0.0, policy)
    assert answers_to(conversation, shift, policy) == once
    twice = answers_to([each for one in conversation for each in (one, (*one[:2], 0.0))], 0.0, policy)
    assert twice[::2] == twice[1::2] == once


@given(conversation=conversations)
def test_rounds_and_steps_never_go_back(conversation: Conversation) -> None:
    seen = [(1, 0)] * 3
    for _, job in talk(conversation, 0.0, "journal"):
        now = [(row.round, row.local_iteration) for row in job.rows]
        assert all(after >= before for before, after in zip(seen, now, strict=True))
        seen = now


# ------------------------------------------------------------------------------------------------- several jobs


def ids(handlers: Handlers) -> list[str]:
    return [*handlers.jobs]


def test_a_second_job_begins_beside_the_first_and_neither_hears_of_the_other() -> None:
    handlers = job_of(2, job="a")
    handlers.report(report(0, 1, "a"), now=0.0)
    handlers.reset(Reset("server-0", "b", Settings(1, "preprint", 0.5)), now=1.0)
    assert handlers.query(query(0, 1, 1, job="b"), now=2.0).action is SYNC
    assert handlers.query(query(0, 1, 1, job="a"), now=2.0).action is TRAIN
    assert ids(handlers) == ["a", "b"]
    rules = [shown(handlers, job).settings.policy for job in ("a", "b", None)]
    assert rules == ["journal", "preprint", "preprint"]


def test_an_init_takes_the_place_of_the_init_before_it_and_of_no_other_job() -> None:
    handlers = job_of(1, job="a")
    for number in (1, 2):
        handlers.reset(PublishedReset("published", f"init-{number}", Settings(1, "preprint", 0.5)), now=float(number))
    assert handlers.query(query(0, None, 1, job=handlers.jobs.published.id), now=3.0).job == "init-2"
    assert handlers.query(query(0, 1, 1, job="a"), now=3.0).job == "a"
    ended = {job.id: job.ended for job in handlers.jobs.values()}
    assert ended == {"a": None, "init-1": 2.0, "init-2": None}


def begin(handlers: Handlers, job: str, now: float = 0.0, at_work: bool = True) -> None:
    """Begins a job of one worker, which is heard where it is at work."""
    handlers.reset(Reset("w", job, Settings(1, "journal", 0.5)), now)
    if at_work:
        handlers.report(report(0, 1, job), now)


def test_the_job_that_ended_first_makes_room_for_the_next() -> None:
    handlers = Handlers(Jobs(max_jobs=3))
    for job in ("a", "b", "c"):
        begin(handlers, job)
    for now, job in ((1.0, "c"), (2.0, "b")):
        handlers.report(report(0, 1, job, doing=Activity.ENDED), now=now)
    begin(handlers, "d", now=3.0)
    assert ids(handlers) == ["a", "b", "d"]


def test_a_job_that_is_at_work_never_makes_room_but_one_that_nobody_works_on_does() -> None:
    handlers = Handlers(Jobs(max_jobs=2))
    begin(handlers, "stray", at_work=False)
    begin(handlers, "a")
    begin(handlers, "b", now=1.0)
    assert ids(handlers) == ["a", "b"]
    assert code_of(begin, handlers, "c", 2.0) == "too-many-jobs"
    begin(handlers, "c", now=30.5)  # a was not heard for 30 s
    assert ids(handlers) == ["b", "c"]


def test_the_workers_of_all_jobs_are_bounded() -> None:
    handlers = Handlers(Jobs(max_rows=10))
    for job in ("a", "b", "c"):
        handlers.reset(Reset("w", job, Settings(4, "journal", 0.5)), now=0.0)
    assert ids(handlers) == ["b", "c"]


def test_jobs_of_very_many_workers_cannot_begin_as_fast_as_somebody_likes() -> None:
    """Each takes the loop some milliseconds; the workers of a real job ask again."""
    handlers = Handlers(Jobs(rows_per_s=1000))
    for number in range(2):
        handlers.reset(Reset("w", f"job-{number}", Settings(400, "journal", 0.5)), now=1.0)
    for number in range(2, 100):
        more = Reset("w", f"job-{number}", Settings(400, "journal", 0.5))
        assert code_of(handlers.reset, more, 1.0) == "too-many-jobs"
    handlers.reset(Reset("w", "later", Settings(400, "journal", 0.5)), now=2.0)
    # A long rest is no leave to begin very many at once.
    assert code_of(handlers.reset, Reset("w", "many", Settings(1001, "journal", 0.5)), 1000.0) == "too-many-jobs"


# ------------------------------------------------------------------------------------------- what workers tell


def test_a_job_ends_when_all_its_workers_have_left_and_goes_on_when_one_speaks_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "server")
    handlers = job_of(2)
    for rank in (0, 1):
        handlers.report(report(rank, 1), now=1.0)
    handlers.report(report(0, 1, doing=Activity.ENDED), now=2.0)
    assert shown(handlers).ended is None
    handlers.report(report(1, 1, doing=Activity.ENDED), now=3.0)
    handlers.report(report(1, 1, doing=Activity.EVALUATING), now=3.1)  # was told in the background
    assert shown(handlers).ended == 3.0
    assert [line for line in caplog.messages if "has ended" in line] == [
        "job a has ended: all 2 worker(s) have left | round 1 | 3.0 s"
    ]
    handlers.query(query(1, 1, 1), now=4.0)
    assert (shown(handlers).ended, shown(handlers).is_at_work(4.0)) == (None, True)
    handlers.report(report(1, 1, doing=Activity.ENDED), now=5.0)
    assert shown(handlers).ended == 5.0


@pytest.mark.parametrize("policy", [name for name in POLICIES if name.startswith(("sync-switch", "wbsp"))])
def test_rounds_of_batches_or_releases_may_skip(policy: str) -> None:
    handlers = job_of(1, policy)
    handlers.report(report(0, 1), now=0.0)
    handlers.query(query(0, 40, 1), now=1.0)
    assert shown(handlers).table.round == 40


def test_what_a_worker_has_done_is_by_its_own_count_where_it_tells_it() -> None:
    handlers = job_of(1)
    for steps, total in ((1, Total(7, 448, 3.5)), (2, Total(6, 384, 3.0))):  # the second one is overtaken
        handlers.query(query(0, 1, steps, total=total), now=0.0)
        row = shown(handlers).rows[0]
        assert (row.steps, row.samples, row.computing) == (7, 448, 3.5)


def test_an_evaluation_lasts_until_the_worker_speaks_again() -> None:
    handlers = job_of(1)
    handlers.report(report(0, 1), now=0.0)
    handlers.report(report(0, 1, doing=Activity.EVALUATING), now=5.0)
    row = shown(handlers).rows[0]
    assert (row.doing, row.evaluating) == (Activity.EVALUATING, 5.0)
    assert row.silence_limit > 60  # ResNet-50 on a slow CPU
    handlers.report(report(0, 2), now=8.0)
    row = shown(handlers).rows[0]
    assert (row.doing, row.evaluating, row.past[-1].evaluating) == (Activity.TRAINING, None, 5.0)


def test_what_a_restart_has_lost_comes_back_from_the_workers() -> None:
    """The job began 100 s before this server; the curve comes from the worker that evaluates."""
    handlers = job_of(2, resumed=True)
    handlers.report(report(1, 57, elapsed=100.0, total=Total(300, 19200, 90.0)), now=5.0)
    job = shown(handlers)
    assert (job.began, job.history_lost, job.rows[1].samples) == (-95.0, True, 19200)
    handlers.report(report(0, 57, elapsed=100.0, accuracies=((10, 20.0, 0.5), (40, 80.0, 0.8))), now=5.0)
    handlers.report(report(0, 58, accuracy=0.7), now=10.0)
    job = shown(handlers)
    points = [(point.round, point.time - job.began, point.value) for point in job.curve.points]
    assert points == [(10, 20.0, 0.5), (40, 80.0, 0.8), (57, 105.0, 0.7)]
    assert not job.history_lost
    assert job.curve.best is not None and job.curve.best.value == 0.8


def test_before_the_first_evaluation_a_restart_loses_no_accuracy() -> None:
    handlers = job_of(2, resumed=True)
    for rank, more in ((1, {}), (0, {"accuracies": ()})):
        handlers.report(report(rank, 57, elapsed=100.0, **more), now=5.0 + rank)
        assert shown(handlers).history_lost is (rank == 1)


def test_a_question_that_is_the_first_of_its_round_comes_after_a_step_of_it() -> None:
    handlers = job_of(1)
    handlers.report(report(0, 1), now=0.0)
    handlers.query(query(0, 1, 1, 1.0), now=1.0)
    handlers.query(query(0, 2, 1, 1.0), now=3.0)
    row = shown(handlers).rows[0]
    assert (row.entered, row.since) == (2.0, 3.0)


# ---------------------------------------------------------------------------------------------- all messages


def test_each_message_has_its_handler_and_is_counted() -> None:
    handlers = Handlers()
    handlers.handle(Reset("server-0", "a", Settings(1, "journal", 0.5)), 1.0)
    handlers.handle(report(0, 1), 1.0)
    assert handlers.handle(query(0, 2, 1), 1.0).action is SYNC
    assert shown(handlers).table.round == 2
    assert handlers.handle(Left("worker-0", "b"), 1.0).reason == "no worker waits for this one"
    assert handlers.counts == {"RESET": 1, "REPORT": 1, "QUERY": 1, "SYNC": 1, "LEFT": 1}


def test_a_job_of_many_workers_begins_without_making_them() -> None:
    asked: list[Row] = []

    def delay(row: Row) -> float:
        asked.append(row)
        return 1.0

    def table(num_workers: int, **more: int) -> Table:
        return Table(Settings(num_workers, "journal", **more), replace(POLICIES["journal"], delay=delay))

    one, other = table(1000), table(500)
    assert all(mine is others for mine, others in zip(one.rows, other.rows, strict=False))
    assert len(asked) == 2  # not of each worker: whoever begins job after job would keep the loop busy
    one.put(one.rows[3]._replace(round=2, heard=1.0))
    assert (other.rows[3].round, table(1000).rows[3].round) == (1, 1)
    assert (one.slowest.rank, table(7, resumed=1).slowest.counted) == (0, False)


def test_a_job_for_which_there_is_no_room_ends_and_forgets_none() -> None:
    handlers = Handlers(Jobs(max_rows=20))
    handlers.reset(PublishedReset("published", "init-1", Settings(4, "journal", 0.5)), 0.0)
    handlers.report(Report("worker-0", "init-1", Status(0, round=1)), 0.5)
    handlers.reset(Reset("worker-0", "a", Settings(10, "journal", 0.5)), 1.0)
    handlers.report(report(0, 1), 1.0)
    handlers.reset(Reset("worker-0", "idle", Settings(2, "journal", 0.5)), 1.0)
    too_many = PublishedReset("published", "init-2", Settings(11, "journal", 0.5))
    for message in (too_many, Reset("w", "b", Settings(7, "wbsp", 0.5))):
        assert code_of(handlers.reset, message, 2.0) == "too-many-jobs"
    assert ids(handlers) == ["init-1", "a", "idle"]
    assert handlers.query(query(0, 1, 1, job="init-1"), 3.0).job == "init-1"
    assert handlers.jobs.published is not None and handlers.jobs.published.ended is None
