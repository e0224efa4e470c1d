"""How the workers of a job without a parameter server find each other: the rule, the waiting room, the asking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from esync.protocol import Reply
from server import wire
from server.errors import BadMessage
from server.messages import Beat, Call, Join, Left, Member, Place
from server.rendezvous import membership
from server.rendezvous.membership import WAITING_S, Assignment, Group
from server.row import Device
from trainer.rendezvous.joining import Joining, Start
from trainer.simulation.in_process import InProcessServer
from trainer.simulation.virtual_clock import VirtualClock
from utils import PeerLost, SetupError

# ----------------------------------------------------------------------------------------------- the pure function


def join(number: int, num_workers: int, address: str = "10.0.0.1") -> Join:
    return Join(f"w{number}", "a", num_workers, address, 4000 + number, Device("h1", f"cpu{number}"))


def gathered(*events: Join | Left, table: Group = Group()) -> tuple[Group, list[Assignment], str]:  # noqa: B008
    """After these messages, a second apart: the table, the answers, and the last reason."""
    answers, reason = [], ""
    for now, event in enumerate(events):
        table, answer, reason = membership.decide(table, event, float(now))
        answers.append(answer)
    return table, answers, reason


def started(number: int) -> Group:
    return gathered(*(join(each, number) for each in range(number)))[0]


@settings(max_examples=25)
@given(st.permutations(range(5)))
def test_ranks_follow_addresses_and_ports_in_whatever_order_the_workers_came(order: list[int]) -> None:
    where = ["10.0.0.9", "10.0.0.9", "10.0.0.10", "10.0.0.10", "host-b"]
    table, answers, _ = gathered(*(join(each, 5, where[each]) for each in order))
    assert [one.name for one in table.members] == ["w0", "w1", "w2", "w3", "w4"]
    assert [answer.call for answer in answers] == [Call.WAIT] * 4 + [Call.START]
    for number in range(5):  # those that waited hear of it when they ask again, and again
        again = membership.decide(table, join(number, 5, where[number]), 99.0)
        assert replace(again.group, asked=table.asked, since=table.since) == table
        assert again.answer.place == Place(1, number, table.members)


def test_who_waits_is_told_who_is_there() -> None:
    _, _, reason = gathered(join(0, 3), join(1, 3))
    assert reason == (
        "1 worker(s) of job 'a' are missing; here are worker (cpu0 on host h1, 10.0.0.1:4000), "
        "worker (cpu1 on host h1, 10.0.0.1:4001)"
    )


def test_the_next_job_of_the_name_is_another_generation() -> None:
    table, answers, _ = gathered(join(5, 1), table=started(2))
    assert answers[0].place is not None and answers[0].place.generation == 2
    assert [one.name for one in table.members] == ["w5"]


def test_whoever_tells_first_of_a_loss_names_the_cause_for_all() -> None:
    table, _, reason = gathered(Left("w0", "a", lost=(2,)), table=started(4))
    assert reason == "worker 2 (cpu2 on host h1, 10.0.0.1:4002) is gone: it was killed or crashed"
    for late in (Left("w1", "a", lost=(0, 2)), Left("w3", "a", cause="worker 0 closed its connection")):
        table, _, later = gathered(late, table=table)
        assert later == reason
    assert table.left == {0, 1, 3}


def test_an_error_of_its_own_is_the_cause_too() -> None:
    _, _, reason = gathered(Left("w1", "a", cause="the disk is full"), Left("w0", "a", lost=(1,)), table=started(2))
    assert reason == "worker 1 (cpu1 on host h1, 10.0.0.1:4001) has ended: the disk is full"


def test_one_that_fails_before_the_job_begins_ends_those_that_wait_and_those_that_come_then() -> None:
    why = "worker cpu1 on host h ended before the job began: its data is damaged"
    table, _, reason = gathered(join(0, 3), Left("w1", "a", cause=why))
    assert reason == why
    for number in (0, 2):
        assert membership.decide(table, join(number, 3), WAITING_S)[1:] == (Assignment(Call.REFUSED), why)
    again = membership.decide(table, join(4, 3), WAITING_S + 2.0)
    assert again.answer.call is Call.WAIT
    for late in (Left("w1", "a", cause=why), Left("w9", "a", cause=why)):
        table = gathered(late, table=started(3))[0]
        assert len(table.members) == 3


def test_leaving_in_order_is_no_cause() -> None:
    table, _, _ = gathered(Left("w0", "a"), Left("w1", "a"), Left("nobody", "a"), table=started(2))
    assert (table.left, table.cause) == ({0, 1}, "")


@given(st.integers(1, 6), st.data())
def test_every_worker_gets_a_rank_of_its_own_whatever_happens_before(number: int, data: st.DataObject) -> None:
    """Workers ask in any order, some several times, some leave and come back."""
    numbers = st.integers(0, number - 1)
    events = data.draw(st.lists(st.tuples(numbers, st.booleans()), max_size=20))
    table = Group()
    for each, leaves in [*events, *((each, False) for each in range(number))]:
        event = Left(f"w{each}", "a") if leaves and not table.members else join(each, number)
        table = membership.decide(table, event, 0.0).group
    assert (table.generation, len(table.members), table.waiting) == (1, number, ())
    ranks = {membership.decide(table, join(each, number), 0.0).answer.place.rank for each in range(number)}  # type: ignore[union-attr]
    assert ranks == set(range(number))


# ----------------------------------------------------------------------------------------------------- on the wire

JOIN = {"msg_type": "JOIN", "sender": "w", "job": "a", "num_workers": 2, "address": "10.0.0.1", "port": 4000}


PLACE = {"generation": 2, "rank": 1, "members": [["w0", "10.0.0.1", 4000, "h", "cpu0"], ["w1", "h2", 4001, "", ""]]}
BEAT = {"msg_type": "BEAT", "sender": "w1", "job": "a", **PLACE}
MEMBERS = (Member("w0", "10.0.0.1", 4000, "h", "cpu0"), Member("w1", "h2", 4001, "", ""))
GPU = Device("h", "gpu0")
BOTH = {4000, 4001}


@pytest.mark.parametrize(
    ("message", "read"),
    [
        (JOIN | {"device": {"host": "h", "device": "gpu0"}}, Join("w", "a", 2, "10.0.0.1", 4000, GPU)),
        (
            JOIN | PLACE | {"lost": [0], "min_workers": 2, "patience": 5},
            Join("w", "a", 2, "10.0.0.1", 4000, Device(), 2, 5.0, 2, 1, MEMBERS, (0,)),
        ),
        ({"msg_type": "LEFT", "sender": "w", "job": "a", "lost": [2, 0], "cause": "y"}, Left("w", "a", (2, 0), "y")),
        (BEAT, Beat("w1", "a", 2, 1, MEMBERS)),
    ],
)
def test_the_messages_are_read(message: dict[str, object], read: Join | Left | Beat) -> None:
    assert wire.understand(message) == read


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (JOIN | {"port": 0}, "port"),
        (JOIN | {"port": None}, "port"),
        (JOIN | {"address": "a b"}, "address"),
        (JOIN | {"num_workers": 1001}, "num_workers"),
        (JOIN | {"msg_type": "LEFT", "lost": [0, 0]}, "lost"),
        (JOIN | {"msg_type": "LEFT", "lost": [1000]}, "lost"),
        (JOIN | {"msg_type": "LEFT", "lost": 1}, "lost"),
        (JOIN | {"msg_type": "LEFT", "cause": "x" * 1001}, "cause"),
        (BEAT | {"generation": 0}, "generation"),
        (BEAT | {"rank": 2}, "rank"),
        (BEAT | {"members": []}, "members"),
        (BEAT | {"members": [["w0", "10.0.0.1", 4000]]}, "members"),
        (BEAT | {"members": [["w0", "10.0.0.1", 0, "", ""]]}, "port"),
    ],
)
def test_what_is_wrong_in_a_message_is_named(message: dict[str, object], field: str) -> None:
    with pytest.raises(BadMessage) as wrong:
        wire.understand(message)
    assert wrong.value.field == field


# ------------------------------------------------------------------------------ workers and server in virtual time


class Gathering:
    """Workers that join one state server, each at a moment of its own."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.server = InProcessServer(clock)

    def joining(self, number: int, num_workers: int, job: str = "a", call: Any = None, **more: float) -> Joining:
        link = self.server.link(0.01)
        about = {"num_workers": num_workers, "address": "10.0.0.1", "port": 4000 + number, **more}
        return Joining(link, self.clock, job, {**about, "device": {"host": "h1", "device": f"cpu{number}"}}, call)

    def found(self, *workers: tuple[int, int, float, str]) -> list[Start]:
        """What each is told; of each: number, number of workers, when it comes, job."""

        def wait(number: int, num_workers: int, at_s: float, job: str) -> Start:
            self.clock.sleep(at_s)
            return self.joining(number, num_workers, job).wait(60.0)

        return self.together(*(partial(wait, *about) for about in workers))

    def together(self, *works: Callable[[], Start]) -> list[Start]:
        """What each returns, where all begin now."""
        tasks = [self.clock.start(work, "worker") for work in works]
        return [task.result() for task in tasks]


@pytest.fixture
def gathering(clock: VirtualClock) -> Gathering:
    return Gathering(clock)


def test_all_workers_are_told_the_same_and_know_what_nobody_else_does(gathering) -> None:
    found = gathering.found(*((number, 3, 7.0 * (3 - number), "a") for number in range(3)))
    assert [each.rank for each in found] == [0, 1, 2]
    assert len({(each.members, each.id) for each in found}) == 1
    assert [peer.port for peer in found[0].members] == [4000, 4001, 4002]
    assert gathering.clock.now() == pytest.approx(21.0, abs=0.2)  # soon after the last one came


def test_jobs_of_different_names_find_each_other_at_the_same_time(gathering) -> None:
    found = gathering.found(*((number, 2, 0.1 * number, "ab"[number % 2]) for number in range(4)))
    assert [peer.port for peer in found[0].members] == [4000, 4002]
    assert found[0].id != found[1].id


def test_a_state_server_that_was_restarted_hears_of_all_again(gathering) -> None:
    def restart() -> None:
        for is_away in (True, False):
            gathering.clock.sleep(5.0)
            gathering.server.is_away = is_away
        gathering.server.restart()

    gathering.clock.start(restart, "restart")
    first, second = gathering.found((0, 2, 0.0, "a"), (1, 2, 15.0, "a"))
    assert first.members == second.members


@pytest.mark.parametrize(("heard", "called"), [(([1], [0]), set()), (([], []), BOTH), (([1], []), BOTH)])
def test_two_that_have_just_heard_each_other_begin_again_without_a_call_of_each_other(gathering, heard, called) -> None:
    """The third of three workers has ended. A link may have failed in one direction."""
    calls = set[int]()

    def call(other: Member) -> str:
        calls.add(other.port)
        gathering.clock.sleep(0.1)
        return "" if other.port == 4001 else "refused"

    all_three = [gathering.joining(number, 3, call=call, min_workers=1, patience=2.5) for number in range(3)]
    one, other, _ = gathering.together(*(partial(each.wait, 0.0) for each in all_three))
    left = zip(all_three, (one, other), heard, strict=False)
    again = gathering.together(
        *(partial(each.wait, 0.0, place, lambda: [2], lambda hears=hears: hears) for each, place, hears in left)
    )
    assert [len(each.members) for each in again] == [2, 2] and calls == called


def test_the_pairs_that_have_just_heard_each_other_connect_in_the_direction_as_before(gathering) -> None:
    """The second worker reaches the first one, but is not reached by it; the lower rank calls then."""
    both = [
        gathering.joining(n, 2, call=lambda other: "" if other.port == 4001 else "no", min_workers=2, patience=2.5)
        for n in range(2)
    ]
    place = gathering.together(*(partial(each.wait, 0.0) for each in both))
    for hears in ((list, list), *[(lambda: [1], lambda: [0])] * 2):
        place = gathering.together(*(partial(both[n].wait, 0.0, place[n], list, hears[n]) for n in range(2)))
        assert [each.calls for each in place] == [{(0, 1)}] * 2


def test_a_worker_does_not_wait_for_ever_and_the_others_do_not_count_on_it(gathering) -> None:
    with pytest.raises(PeerLost, match=r"not complete after 5 s \(--start-timeout\): 1 worker\(s\) of job 'a'"):
        gathering.joining(0, 2).wait(5.0)
    found, _ = gathering.found((1, 2, 0.0, "a"), (2, 2, 0.0, "a"))
    assert [peer.port for peer in found.members] == [4001, 4002]


def test_a_worker_of_another_number_is_refused_with_both_numbers(gathering) -> None:
    first = gathering.clock.start(lambda: gathering.found((0, 2, 0.0, "a"), (1, 2, 2.0, "a")), "others")
    gathering.clock.sleep(1.0)
    why = r"cpu0.* wait\(s\) for a job 'a' of 2 workers, and .*cpu2.* for one of 3: give all the same DMLC_NUM_WORKER"
    with pytest.raises(SetupError, match=why):
        gathering.joining(2, 3).wait(60.0)
    assert len(first.result()) == 2


def test_who_leaves_for_a_loss_hears_who_was_the_first(gathering) -> None:
    joinings = [gathering.joining(number, 3) for number in range(3)]
    for task in [gathering.clock.start(lambda each=each: each.wait(60.0), "wait") for each in joinings]:
        task.result()
    words = [joinings[0].leave(lost=[2]), joinings[1].leave(lost=[0, 2])]
    gathering.server.is_away = True
    words.append(joinings[1].leave())
    assert words == ["worker 2 (cpu2 on host h1, 10.0.0.1:4002) is gone: it was killed or crashed"] * 2 + [""]


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 429, 200])
def test_a_state_server_that_refuses_a_beat_ends_no_worker_and_only_a_busy_one_is_joined_later(
    gathering, status, caplog
) -> None:
    """The last one is no state server."""
    joining = gathering.joining(0, 1)
    refused = Reply(status, {"error": "by the test"} | ({"code": "token"} if status == 409 else {}), "by the test")
    answers = [refused, refused, None, refused]
    place = joining.wait(0.0)
    answer = gathering.server.answer
    gathering.server.answer = lambda message: answers.pop(0) or answer(message)
    assert [joining.beat(place) for _ in range(4)] == [""] * 4
    answers.extend([refused] * 99)
    with pytest.raises(PeerLost if status == 429 else SetupError, match="by the test"):
        joining.wait(1.0)
    lines = [record.getMessage() for record in caplog.records if "training goes on" in record.getMessage()]
    assert len(lines) == (0 if status == 429 else 2)


def test_there_is_room_for_a_bounded_number_of_jobs_and_the_one_that_was_silent_for_longest_goes(gathering) -> None:
    for number in range(64):
        gathering.joining(number, 1, f"job-{number}").wait(60.0)
    with pytest.raises(PeerLost, match="find each other here now, and there is no room"):
        gathering.joining(64, 1, "one-more").wait(1.0)
    gathering.clock.sleep(WAITING_S + 1.0)
    assert gathering.joining(65, 1, "one-more").wait(1.0).rank == 0
