"""Sums on the hub: the server part alone, worked by hand, and the trainers of each mode in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import StateServer, Trained, Worker, batch, normalised, train

from algorithms import TransportKind
from config import HUB, KVSTORE, Config
from trainer.context import Context
from trainer.hub.server_part import ENDED, STATE, WANTS_STOP, Answer, Answers, Served, serve
from trainer.hub.sums import AGAIN, GIVES, NUMBER, OVER
from trainer.steps import Rule
from trainer.trainer import Trainer

INITIAL = 7.0


class Sums:
    """Calls the server part as the hub does. Messages travel as JSON; a worker sends one number."""

    def __init__(self, num_workers: int, is_anew: bool = False) -> None:
        """`is_anew`: the hub was started again, and has no model."""
        model = [] if is_anew else [np.float32([INITIAL])]
        self.part = serve(Served(Config(), num_workers, (), (), model, {}, lambda: 0.0))
        if not is_anew:
            for rank in range(num_workers):
                self.part.joined(rank)

    def follow(self, course: str) -> None:
        """Follows a course, whose entries are in order of time, and compares.

        `0#1:2.5`: worker 0 sends 2.5 for its sum number 1, and nobody has an answer; `0#1:2.5=4>02`: workers 0 and 2
        have theirs, the sum 4; `4>0*2`: worker 0 is asked for its state, too. `0!2:40`: it gives its state after 2
        sums, which is 40; `state2:40>1`: worker 1 gets that. `-0`: it is lost; `0.`: it has ended. `+0`: a new process
        is in its place; `begin>0`: it begins with the initial arrays. `done>0`, `lost>0`: no worker that has a state is
        left, since all have ended or since they are lost.
        """
        for entry in course.split():
            what, _, expected = entry.partition("=")
            assert self._done(what) == answers(expected), entry

    def _done(self, what: str) -> dict[int, Any]:
        if what[0] == "-":
            return taken(self.part.lost(int(what[1:])))
        if what[0] == "+":
            answer = self.part.joined(rank := int(what[1:]))
            return {} if answer is None else taken({rank: answer})
        rank, kind, (number, _, value) = int(what[0]), what[1], what[2:].partition(":")
        if kind == ".":
            return taken(self.part.act(rank, {ENDED: True}, []))
        state = {STATE: {"rounds": int(number)}} if kind == "!" else {}
        return taken(self.part.act(rank, {**state, NUMBER: int(number)}, [np.float32([float(value)])]))


def taken(answers: Answers) -> dict[int, Any]:
    """Message and numbers of each, by rank."""
    return {
        rank: (json.loads(json.dumps(answer.message)), [array.item() for array in answer.arrays])
        for rank, answer in answers.items()
    }


def answers(text: str) -> dict[int, Any]:
    """As `taken`, of what `Sums.follow` explains."""
    what, _, ranks = text.partition(">")
    if what in ("done", "lost"):
        return {int(ranks): ({OVER: what == "done"}, [])}
    if what == "begin":
        return {int(ranks): ({}, [INITIAL])}
    if what.startswith("state"):
        number, _, value = what.removeprefix("state").partition(":")
        return {int(ranks): ({STATE: {"rounds": int(number)}, NUMBER: int(number)}, [float(value)])}
    return {
        int(rank): ({GIVES: ranks[place + 1 : place + 2] == "*"}, [float(what)])
        for place, rank in enumerate(ranks)
        if rank != "*"
    }


ALL_THREE_HAVE_ONE = "0#0:1 1#0:1 2#0:1=3>012 "
COURSES = {
    # 1e8 + 1 is 1e8 in float32; the next sum begins at nothing.
    "all get the sum in the order of arrival": (3, "0#0:1e8 1#0:1 2#0:-1e8=0>012 2#1:2 1#1:2 0#1:2=6>012"),
    "in another order": (3, "0#0:1e8 2#0:-1e8 1#0:1=1>012"),
    "a lost worker whose arrays have arrived counts, and one that had not sent is not waited for": (
        3,
        "0#0:1 -0 1#0:2 -2=3>1 -2 1#1:5=5>1",  # its loss may be told twice
    ),
    "a newcomer before the first sum gets the initial arrays and is waited for": (
        2,
        "-1 +1=begin>1 0#0:1 1#0:2=3>01",
    ),
    # Else it would send them again, or take the sum for the arrays that all begin with.
    "a newcomer whose predecessor's arrays are in the first sum waits for a state": (
        2,
        "1#0:2 -1 +1 0#0:1=3>0* 0!1:40=state1:40>1",
    ),
    "a later newcomer waits for the state of another one, which tells it before its next sum, and then takes part": (
        3,
        f"{ALL_THREE_HAVE_ONE} -1 +1 0#1:1 2#1:2=3>0*2 2#2:2 0!2:40=state2:40>1 0#2:1 1#2:4=7>012",
    ),
    "where the giver is lost before it gives the next one is asked": (
        3,
        f"{ALL_THREE_HAVE_ONE} -2 +2 0#1:1 1#1:1=2>0*1 -0 1#2:1=1>1* 0!2:50 1!3:60=state3:60>2",
    ),
    "an upload that is sent again after a lost connection is not added twice": (2, "0#0:1 -0 0#0:1 1#0:2=3>01"),
    "a worker that has missed a sum while it was away gets a state and nobody waits for it": (
        2,
        "1#0:2 -1 0#0:1=3>0 1#0:2 0#1:4=4>0* 0!2:40=state2:40>1",
    ),
    "where all of the first sum are lost it begins again with those that have come": (
        2,
        "0#0:1 -0 +0 -1=begin>0 +1=begin>1 0#0:2 1#0:3=5>01",
    ),
    "who waits for a state and who comes later hear that all that have one are done": (
        3,
        f"{ALL_THREE_HAVE_ONE} -2 +2 -1 0.=done>2 +1=done>1",
    ),
    "or that they are lost": (3, f"{ALL_THREE_HAVE_ONE} -2 +2 -1 -0=lost>2 +1=lost>1"),
}
ANEW = {
    # Worker 0 has had 3 sums, and worker 1 only 2.
    "a worker that missed the last sum gets a state": (2, "0#3:1 1#2:1=1>0* 0!4:40=state4:40>1 0#4:1 1#4:2=3>01"),
    "also where it is the first": (2, "1#2:1 0#3:1=1>0* 0!4:40=state4:40>1 0#4:1 1#4:2=3>01"),
    "a sum that all have missed is made again": (2, "1#5:1 0#5:2=3>01 -1 +1"),  # without initial arrays
}


@pytest.mark.parametrize("name", COURSES)
def test_a_course_by_hand(name: str) -> None:
    num_workers, course = COURSES[name]
    Sums(num_workers).follow(course)


@pytest.mark.parametrize("name", ANEW)
def test_at_a_hub_that_was_started_again(name: str) -> None:
    num_workers, course = ANEW[name]
    Sums(num_workers, is_anew=True).follow(course)


def test_a_wish_to_stop_is_no_part_of_a_sum() -> None:
    sums = Sums(2)
    sums.follow("0#0:1")
    assert sums.part.act(0, {WANTS_STOP: True}, ()) == {}
    sums.follow("1#0:1=2>01")


SHAPES = [(2, 2), (3,)]


def whole(answers: Answers) -> dict[int, list[float]]:
    """The numbers of each answer's arrays, one behind another."""
    return {
        rank: np.concatenate([array.reshape(-1) for array in each.arrays]).tolist() for rank, each in answers.items()
    }


def test_uploads_are_added_piece_by_piece_whoever_is_ahead() -> None:
    part, numbers = Sums(2).part, np.arange(7, dtype=np.float32)
    first = part.into(0, {NUMBER: 0}, SHAPES)
    first(0, numbers[:5])
    second = part.into(1, {NUMBER: 0}, SHAPES)
    second(0, 10 * numbers[:1])
    second(1, 10 * numbers[1:6])  # it overtakes the first one
    assert not part.act(0, {WANTS_STOP: True}, ())
    first(5, numbers[5:])
    assert part.act(0, {NUMBER: 0}, ()) == {}
    second(6, 10 * numbers[6:])
    done = part.act(1, {NUMBER: 0}, ())
    assert [array.shape for array in done[0].arrays] == SHAPES
    assert whole(done) == dict.fromkeys((0, 1), (11 * numbers).tolist())
    third = part.into(0, {NUMBER: 1}, SHAPES)
    third(0, numbers)
    part.act(0, {NUMBER: 1}, ())
    assert whole(done)[0] == (11 * numbers).tolist()  # which may still be on its way
    assert whole(part.act(1, {NUMBER: 1}, [numbers[:4].reshape(2, 2), numbers[4:]]))[1] == (2 * numbers).tolist()


@pytest.mark.parametrize("is_lost", [False, True])
def test_where_an_upload_breaks_off_all_send_theirs_again(is_lost: bool) -> None:
    part, numbers = Sums(3).part, np.ones(7, np.float32)
    for rank in range(3):
        part.into(rank, {NUMBER: 0}, SHAPES)(0, numbers[:3])
    assert part.into(2, {NUMBER: 0}, SHAPES) is None  # a second one at the same time is read as a whole
    part.act(0, {NUMBER: 0}, ())
    told = (part.lost if is_lost else part.broke_off)(2)
    assert {rank: answer.message for rank, answer in told.items()} == {0: {AGAIN: True}}
    assert part.broke_off(2) == {}
    assert part.act(1, {NUMBER: 0}, ()) == {1: Answer({AGAIN: True})}  # its upload was under way
    there = (0, 1) if is_lost else (0, 1, 2)
    for rank in there:
        part.into(rank, {NUMBER: 0}, SHAPES)(0, numbers)
        done = part.act(rank, {NUMBER: 0}, ())
    assert whole(done) == dict.fromkeys(there, [float(len(there))] * 7)


def test_half_an_upload_to_a_hub_that_was_started_again_changes_nothing() -> None:
    """The others may have had fewer sums; only a whole upload shows that they have missed one."""
    sums = Sums(3, is_anew=True)
    assert sums.part.into(0, {NUMBER: 3}, SHAPES) is None
    sums.follow("1#2:1 -0 2#2:1=2>12")


def test_what_is_not_due_is_not_added() -> None:
    part = Sums(2).part
    assert part.into(0, {WANTS_STOP: True}, SHAPES) is None
    assert part.into(0, {NUMBER: 0}, []) is None
    part.lost(1)
    assert part.into(1, {NUMBER: 0}, SHAPES) is None  # it does not take part


# ------------------------------------------------------------------------------------------- in virtual time

ETA = 0.5
RULE = Rule(momentum=0.9, weight_decay=0.01)


OUTER = {"local_lr": ETA, "global_lr": 0.7}
MODES: dict[str, tuple[Callable[[Context], Trainer], str]] = {  # with the state server's rule
    "sync": (by_flags("sync", learning_rate=ETA), ""),
    "local-sgd": (by_flags("local-sgd", sync_every=2, outer_momentum=0.6, outer_nesterov=1, **OUTER), ""),
    "esync": (by_flags("esync", query="blocking", **OUTER), "journal"),
}


def trained(mode: str, rounds: int, num_workers: int, exchange: str = HUB, **more: object) -> Trained:
    """Of three workers each has another number of samples."""
    build, policy = MODES[mode]
    workers = [
        Worker([batch(rank), batch(rank + 3)], step_s=1.0 + rank / 8, samples=3 - rank) for rank in range(num_workers)
    ]
    return train(
        TransportKind.SUM, workers, build, rounds, exchange=exchange, rule=RULE, mode=mode,
        state_server=StateServer(policy) if policy else None, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
def test_weights_and_traffic_are_those_of_the_kvstore_to_the_bit(mode: str) -> None:
    """Of two workers: more are added in another order."""
    here, there = trained(mode, 5, 2), trained(mode, 5, 2, KVSTORE)
    for rank in range(2):
        assert here.weights(rank).tobytes() == there.weights(rank).tobytes() == here.weights().tobytes()
        for name in ("bytes_pushed", "bytes_pulled"):
            assert [record[name] for record in here.records[rank]] == [record[name] for record in there.records[rank]]
    assert here.ended_s == there.ended_s


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_worker_that_is_killed_and_comes_back_goes_on_with_the_others(mode: str, victim: int) -> None:
    """With BatchNorm, whose statistics are a part of the state."""
    ended = trained(mode, 40, 3, killed={victim: 3}, back_s={victim: 4.0}, network=normalised)
    for rank in range(3):
        for array, other in zip(
            ended.trainers[rank].parameters.model(), ended.trainers[1].parameters.model(), strict=True
        ):
            np.testing.assert_array_equal(array, other)
        records, missed = ended.records[rank], sum(record.get("missed", 0) for record in ended.records[rank])
        assert records[-1]["num_iters"] == ended.trainers[rank].rounds == 40
        assert len(records) + missed == 40 and bool(missed) == (rank == victim)
