"""Who trains where not all can exchange with all: the pure functions by hand, and jobs on random graphs of cuts."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import cut_network
import msgspec
import pytest
from cut_network import FAULT_TIMEOUT_S, SERVER, SETTLED_S, STEP_S, Change, check, drawn
from hypothesis import given, settings, strategies as st

from server.messages import Call, Join
from server.rendezvous import membership
from server.rendezvous.reach import EXACT, heaviest_group
from server.row import Device
from trainer.rendezvous import joining


def of(cuts: str) -> set[frozenset[str]]:
    return set(map(frozenset, cuts.split()))


@pytest.mark.parametrize(
    ("workers", "cuts", "left"),
    [
        ("abcd", "", "abcd"),
        ("abcd", "bc", "abd"),  # one link: the first of the two stays
        ("abcd", "ac ad bc bd", "ab"),  # two halves
        ("abcde", "ac ad ae bc bd be", "cde"),  # the greater part
        ("abcd", "ad bd cd", "abc"),
        ("abcde", "ab bc cd de", "ace"),  # a chain: the greatest set leaves out every other one
        ("abc", "ab bc ca", "a"),
        ("abcX", "bX", "abc"),  # a newcomer takes no member's place,
        ("abXYZ", "bX bY bZ", "ab"),  # nor do several,
        ("abXYZ", "bX YZ", "abY"),  # and joins where it can
        ("abX", "ab bX", "aX"),  # of equal members those stay with whom more can train
        ("ab", "ax", "ab"),  # others do not count
    ],
)
def test_the_heaviest_set_without_a_cut_trains(workers: str, cuts: str, left: str) -> None:
    weights = {each: membership.MEMBER if each.islower() else 1 for each in workers}
    assert heaviest_group(weights, of(cuts)) == set(left)


@settings(max_examples=25)
@given(st.integers(1, 6), st.data())
def test_no_set_is_heavier_and_of_many_workers_nothing_can_be_added(number: int, data: st.DataObject) -> None:
    weights = {f"w{one}": data.draw(st.sampled_from([1, 9])) for one in range(number)}
    pairs = [frozenset(pair) for pair in combinations(weights, 2)]
    cuts = data.draw(st.sets(st.sampled_from(pairs))) if pairs else set()

    def is_whole(these: frozenset[str]) -> bool:
        return not any(cut <= these for cut in cuts)

    found = heaviest_group(weights, cuts)
    sets = [frozenset(each) for size in range(number + 1) for each in combinations(weights, size)]
    assert is_whole(found)
    assert sum(map(weights.get, found)) == max(sum(map(weights.get, each)) for each in sets if is_whole(each))
    many = {f"{part}{one}": 1 for part in "ab" for one in range(EXACT)}
    halves = {frozenset((f"a{one}", f"b{other}")) for one in range(EXACT) for other in range(EXACT)}
    assert heaviest_group(many, halves) == {f"a{one}" for one in range(EXACT)}


# ------------------------------------------------------------------------------------------------- the state server


def join(name: str, reached: str | None = None, unreached: str = "", **more: object) -> Join:
    tests = {"reached": None if reached is None else tuple(reached), "unreached": dict.fromkeys(unreached, "no answer")}
    return Join(name, "a", 3, f"10.0.0.{ord(name)}", 4000, Device(), 1, 2.5, **tests, **more)  # type: ignore[arg-type]


class Talk:
    """Workers a, b and c of generation 1, who have begun to come back."""

    def __init__(self, min_workers: int = 1) -> None:
        self.now, self.group, self.min_workers = 0.0, membership.Group(), min_workers
        for name in "abc":
            self.say(join(name))
        self.last = self.group

    def say(self, message: Join) -> membership.Assignment:
        drawn = f"{self.group.generation + 1}"
        self.group, answer, self.reason = membership.decide(self.group, message, self.now, drawn=drawn)
        return answer

    def back(self, name: str, reached: str = "", unreached: str = "", heard: str = "") -> membership.Assignment:
        """Comes back from the generation in which all three were last."""
        return self.back_from(self.last, name, reached, unreached, heard)

    def back_from(
        self, last: membership.Group, name: str, reached: str = "", unreached: str = "", heard: str = ""
    ) -> membership.Assignment:
        rank = [member.name for member in last.members].index(name)
        place: dict[str, Any] = {"generation": last.generation, "rank": rank, "members": last.members, "id": last.id}
        place["heard"] = tuple(map("abc".index, heard))
        return self.say(msgspec.structs.replace(join(name, reached, unreached, **place), min_workers=self.min_workers))

    def beat(self) -> Call | None:
        """Of rank 0."""
        place = {"generation": self.group.generation, "rank": 0, "members": self.group.members, "id": self.group.id}
        beat = membership.Beat(self.group.members[0].name, "a", **place)  # type: ignore[arg-type]
        self.group, answer, _ = membership.decide(self.group, beat, self.now)
        return answer.call

    def names(self) -> str:
        return "".join(member.name for member in self.group.members)


def test_a_pair_is_cut_once_both_have_called_in_vain() -> None:
    talk = Talk()
    assert [member.name for member in talk.back("a").others] == ["b", "c"]
    talk.back("b", "c", "a"), talk.back("c", "ab")
    assert talk.reason == "the workers of generation 2 of job 'a' test whether they can exchange"
    assert talk.back("a", "c", "b").call is Call.START and talk.names() == "ac"
    assert talk.back("b", "c", "a").call is Call.WAIT
    assert talk.reason.endswith("takes this worker in once it reaches worker 0 (10.0.0.97:4000)")


def test_where_only_the_lower_rank_reaches_the_other_it_calls() -> None:
    talk = Talk()
    talk.back("a", "bc"), talk.back("b", "a")
    assert talk.back("c", "b", "a").calls == ((0, 2),) and talk.names() == "abc"


def test_one_that_all_have_called_in_vain_is_not_waited_for() -> None:
    talk = Talk()
    talk.back("a", "b", "c"), talk.back("b", "a")
    assert "waits for worker 2" in talk.reason
    assert talk.back("b", "a", "c").call is Call.START and talk.names() == "ab"


def test_two_that_hear_each_other_call_neither_and_one_that_not_all_hear_is_called_by_all() -> None:
    talk = Talk()
    assert [member.name for member in talk.back("a", heard="b").others] == ["c"]
    assert [member.name for member in talk.back("b", heard="ac").others] == ["c"]  # it is silent, for some not yet
    assert talk.back("b", unreached="c", heard="a").call is Call.WAIT
    assert talk.back("a", unreached="c", heard="b").call is Call.START and talk.names() == "ab"


def test_what_nobody_has_tested_in_time_is_cut() -> None:
    talk = Talk()
    for talk.now in (0.0, 1.0, 2.0, 2.6):
        talk.back("b", "c"), talk.back("c", "b"), talk.back("a")
    assert talk.names() == "bc"


def test_a_server_that_was_away_waits_for_all_once_more() -> None:
    talk = Talk()
    talk.back("a", "bc"), talk.back("b", "ac")
    talk.now = 90.0
    assert talk.back("a", "bc").call is Call.WAIT and "waits for worker 1" in talk.reason


def test_one_that_is_left_out_again_and_again_is_taken_in_at_growing_intervals() -> None:
    talk = Talk()
    waits_s = []
    for turn in range(5):
        talk.now += 1.0
        for name in "ab":  # c is cut off
            talk.back(name, "ab", "c")
        assert talk.names() == "ab"
        begin = talk.now
        while talk.back("c", "ab") and talk.beat() is not Call.PAUSE:
            talk.now += 0.5
        waits_s.append(talk.now - begin)
        two = talk.group
        talk.back_from(two, "a", "abc"), talk.back_from(two, "b", "abc")
        assert talk.names() == "abc", turn
        talk.last = talk.group
    assert waits_s == [0.0, 2.0, 4.0, 8.0, 16.0]
    assert {talk.group.lapsed("c", talk.now + after_s)["c"][0] for after_s in (40, 999)} == {6, 1}


def test_one_that_was_left_out_again_and_again_is_taken_in_at_once_where_the_others_are_too_few() -> None:
    talk = Talk(min_workers=3)
    lapses = {"c": (5, 0.0)}
    talk.back("a", "b", "c"), talk.back("b", "a", "c")
    assert talk.reason == "2 of at least 3 workers (--min-workers) of job 'a' are there"
    talk.group = dataclasses.replace(talk.group, lapses=lapses)
    for name in "cab":
        talk.back(name, "abc")
    assert talk.names() == "abc"


def test_those_left_out_begin_no_generation_however_long_the_members_are_silent() -> None:
    talk = Talk()
    talk.back("a", "", "c"), talk.back("b", "a", "c")
    talk.back("a", "b", "c")
    assert talk.names() == "ab" and talk.back("c", "b", "a").call is Call.WAIT
    for talk.now in map(float, range(0, 999, 2)):
        talk.back("c", "b", "a")
    assert talk.names() == "ab"
    assert talk.reason.endswith("If all have ended, start the state server with --begin-anew")


# ------------------------------------------------------------------------------------------------------- whole jobs


def both(*pairs: tuple[int, int]) -> frozenset[tuple[int, int]]:
    return frozenset(pairs) | {(other, one) for one, other in pairs}


AT_S = 5.0
LINK = ([0.0] * 4, [Change(AT_S, both((1, 2)))])
JOBS = {
    "link": LINK,
    "direction": ([0.0] * 4, [Change(AT_S, frozenset({(1, 2)}))]),
    "halves": ([0.0] * 4, [Change(AT_S, both((0, 2), (0, 3), (1, 2), (1, 3)))]),
    "a newcomer behind a firewall": ([0.0, 0.0, 10.0], [Change(AT_S, frozenset(), frozenset({2}))]),
    "a newcomer that one does not answer": ([0.0, 0.0, 10.0], [Change(AT_S, both((1, 2)))]),
    "healed": ([0.0] * 4, [LINK[1][0], Change(30.0)]),
    "cut off from the server": ([0.0] * 3, [Change(AT_S, both((2, SERVER)))]),
    "those who train are cut off from the server": (
        [0.0] * 3,
        [Change(AT_S, both((0, 1), (0, 2))), Change(30.0, both((0, 1), (0, 2), (1, SERVER), (2, SERVER)))],
    ),
}


def run(name: str) -> float:
    begin_s, changes = JOBS[name]
    return check(begin_s, changes, max(changes[-1].at_s, *begin_s) + SETTLED_S)


ONE_ROUND_S = STEP_S + cut_network.BEAT_S  # and what is noticed with a beat


@pytest.mark.parametrize("name", JOBS)
def test_the_workers_that_can_exchange_train_again_in_time(name: str) -> None:
    assert run(name) <= FAULT_TIMEOUT_S + ONE_ROUND_S


@pytest.mark.parametrize("seed", range(5))
def test_on_whatever_graph_of_cuts_one_set_trains_that_nothing_can_be_added_to(seed: int) -> None:
    assert check(*drawn(seed)) <= 1.25 * FAULT_TIMEOUT_S + ONE_ROUND_S


# ------------------------------------------------------------------- planted faults, which these jobs must find


def all_train(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "heaviest_group", lambda weights, cuts: frozenset(weights))


def pauses_for_any(patch: pytest.MonkeyPatch) -> None:
    def beat(group: membership.Group, *message: Any) -> membership.Outcome:
        outcome = rule(group, *message)
        return outcome._replace(
            answer=membership.Assignment(outcome.answer.call or (Call.PAUSE if group.waiting else None))
        )

    rule = membership._beat
    patch.setattr(membership, "_beat", beat)


def calls_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joining, "TEST_AGAIN_S", math.inf)


def begins_beside_a_silent_one(patch: pytest.MonkeyPatch) -> None:
    def come_back(group: membership.Group, event: Join, now: float, drawn: str) -> membership.Outcome:
        is_silent = group.forming is None and now - group.heard > 2.0
        return rule(dataclasses.replace(group, forming=now if is_silent else group.forming), event, now, drawn)

    rule = membership._come_back
    patch.setattr(membership, "_come_back", come_back)


@pytest.mark.parametrize(
    ("plant", "name", "found"),
    [
        (all_train, "link", "nothing trains"),
        (pauses_for_any, "a newcomer that one does not answer", "stops the others"),
        (calls_once, "healed", "could train"),
        (begins_beside_a_silent_one, "those who train are cut off from the server", "beside a newer one"),
    ],
)
def test_a_planted_fault_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        run(name)
