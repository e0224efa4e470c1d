"""Sums on the hub: the server part alone, worked by hand, and the trainers of each mode in virtual time."""

from __future__ import annotations

import json
from collections.abc import Callable

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
                self.join(rank)
        self.given: dict[int, tuple[object, list[float]]] = {}  # by rank, the newest answers that are not taken

    def take(self, answers: Answers) -> dict[int, tuple[object, list[float]]]:
        return {
            rank: (json.loads(json.dumps(answer.message)), [array.item() for array in answer.arrays])
            for rank, answer in answers.items()
        }

    def send(self, rank: int, number: int, value: float) -> dict[int, tuple[object, list[float]]]:
        return self.take(self.part.act(rank, {NUMBER: number}, [np.float32([value])]))

    def give(self, rank: int, number: int, value: float) -> dict[int, tuple[object, list[float]]]:
        return self.take(self.part.act(rank, {STATE: {"rounds": number}, NUMBER: number}, [np.float32([value])]))

    def end(self, rank: int) -> dict[int, tuple[object, list[float]]]:
        return self.take(self.part.act(rank, {ENDED: True}, []))

    def lose(self, rank: int) -> dict[int, tuple[object, list[float]]]:
        return self.take(self.part.lost(rank))

    def join(self, rank: int) -> tuple[object, list[float]] | None:
        answer = self.part.joined(rank)
        return None if answer is None else self.take({rank: answer})[rank]


def summed(value: float, *ranks: int, giver: int | None = None) -> dict[int, tuple[object, list[float]]]:
    """What the hub gives to these ranks with a sum."""
    return {rank: ({GIVES: rank == giver}, [value]) for rank in ranks}


def state_to(rank: int, number: int, value: float) -> dict[int, tuple[object, list[float]]]:
    return {rank: ({STATE: {"rounds": number}, NUMBER: number}, [value])}


@pytest.mark.parametrize(("arrivals", "total"), [((0, 1, 2), 0.0), ((0, 2, 1), 1.0)])
def test_all_get_the_sum_in_the_order_of_arrival(arrivals: tuple[int, ...], total: float) -> None:
    """1e8 + 1 is 1e8 in float32."""
    sums, values = Sums(3), (1e8, 1.0, -1e8)
    assert [sums.send(rank, 0, values[rank]) for rank in arrivals[:2]] == [{}, {}]
    assert sums.send(arrivals[2], 0, values[arrivals[2]]) == summed(total, 0, 1, 2)
    assert [sums.send(rank, 1, 2.0) for rank in (2, 1)] == [{}, {}]  # the next sum begins at nothing
    assert sums.send(0, 1, 2.0) == summed(6.0, 0, 1, 2)


def test_a_wish_to_stop_is_no_part_of_a_sum() -> None:
    sums = Sums(2)
    sums.send(0, 0, 1.0)
    assert sums.part.act(0, {WANTS_STOP: True}, ()) == {}
    assert sums.send(1, 0, 1.0) == summed(2.0, 0, 1)


def test_a_lost_worker_whose_arrays_have_arrived_counts_and_one_that_had_not_sent_is_not_waited_for() -> None:
    sums = Sums(3)
    sums.send(0, 0, 1.0)
    assert sums.lose(0) == {}
    sums.send(1, 0, 2.0)
    assert sums.lose(2) == summed(3.0, 1)
    assert sums.lose(2) == {}  # its loss may be told twice
    assert sums.send(1, 1, 5.0) == summed(5.0, 1)


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
    assert sums.send(1, 2, 1.0) == sums.lose(0) == {}
    assert sums.send(2, 2, 1.0) == summed(2.0, 1, 2)


def test_what_is_not_due_is_not_added() -> None:
    part = Sums(2).part
    assert part.into(0, {WANTS_STOP: True}, SHAPES) is None
    assert part.into(0, {NUMBER: 0}, []) is None
    part.lost(1)
    assert part.into(1, {NUMBER: 0}, SHAPES) is None  # it does not take part


def test_a_newcomer_before_the_first_sum_gets_the_initial_arrays_and_is_waited_for() -> None:
    sums = Sums(2)
    sums.lose(1)
    assert sums.join(1) == ({}, [INITIAL])
    assert sums.send(0, 0, 1.0) == {}
    assert sums.send(1, 0, 2.0) == summed(3.0, 0, 1)


def test_a_newcomer_whose_predecessors_arrays_are_in_the_first_sum_waits_for_a_state() -> None:
    """Else it would send them again, or take the sum for the arrays that all begin with."""
    sums = Sums(2)
    sums.send(1, 0, 2.0)
    sums.lose(1)
    assert sums.join(1) is None
    assert sums.send(0, 0, 1.0) == summed(3.0, 0, giver=0)
    assert sums.give(0, 1, 40.0) == state_to(1, 1, 40.0)


def after_a_sum(num_workers: int) -> Sums:
    sums = Sums(num_workers)
    for rank in range(num_workers):
        sums.send(rank, 0, 1.0)
    return sums


def test_a_later_newcomer_waits_for_the_state_of_another_one_and_then_takes_part() -> None:
    sums = after_a_sum(3)
    sums.lose(1)
    assert sums.join(1) is None
    assert sums.send(0, 1, 1.0) == {}
    assert sums.send(2, 1, 2.0) == summed(3.0, 0, 2, giver=0)
    assert sums.send(2, 2, 2.0) == {}  # the giver tells its state before its next sum
    assert sums.give(0, 2, 40.0) == state_to(1, 2, 40.0)
    assert sums.send(0, 2, 1.0) == {}
    assert sums.send(1, 2, 4.0) == summed(7.0, 0, 1, 2)


def test_where_the_giver_is_lost_before_it_gives_the_next_one_is_asked() -> None:
    sums = after_a_sum(3)
    sums.lose(2)
    sums.join(2)
    sums.send(0, 1, 1.0)
    assert sums.send(1, 1, 1.0) == summed(2.0, 0, 1, giver=0)
    sums.lose(0)
    assert sums.send(1, 2, 1.0) == summed(1.0, 1, giver=1)
    assert sums.give(0, 2, 50.0) == {}  # of a sum before the last
    assert sums.give(1, 3, 60.0) == state_to(2, 3, 60.0)


def test_an_upload_that_is_sent_again_after_a_lost_connection_is_not_added_twice() -> None:
    sums = Sums(2)
    sums.send(0, 0, 1.0)
    sums.lose(0)
    assert sums.send(0, 0, 1.0) == {}
    assert sums.send(1, 0, 2.0) == summed(3.0, 0, 1)


def test_a_worker_that_has_missed_a_sum_gets_a_state_and_nobody_waits_for_it() -> None:
    sums = Sums(2)
    sums.send(1, 0, 2.0)
    sums.lose(1)
    assert sums.send(0, 0, 1.0) == summed(3.0, 0)  # while worker 1 is away
    assert sums.send(1, 0, 2.0) == {}
    assert sums.send(0, 1, 4.0) == summed(4.0, 0, giver=0)
    assert sums.give(0, 2, 40.0) == state_to(1, 2, 40.0)


@pytest.mark.parametrize("first", [0, 1])
def test_at_a_hub_that_was_started_again_a_worker_that_missed_the_last_sum_gets_a_state(first: int) -> None:
    """Worker 0 has had 3 sums, and worker 1 only 2."""
    sums = Sums(2, is_anew=True)
    numbers = {0: 3, 1: 2}
    assert sums.send(first, numbers[first], 1.0) == {}
    expected = summed(1.0, 0, giver=0)
    assert sums.send(1 - first, numbers[1 - first], 1.0) == expected
    assert sums.give(0, 4, 40.0) == state_to(1, 4, 40.0)
    sums.send(0, 4, 1.0)
    assert sums.send(1, 4, 2.0) == summed(3.0, 0, 1)


def test_at_a_hub_that_was_started_again_a_sum_that_all_have_missed_is_made_again() -> None:
    sums = Sums(2, is_anew=True)
    assert sums.send(1, 5, 1.0) == {}
    assert sums.send(0, 5, 2.0) == summed(3.0, 0, 1)
    sums.lose(1)
    assert sums.join(1) is None  # there are no initial arrays any more


@pytest.mark.parametrize("is_done", [False, True])
def test_who_needs_a_state_hears_when_nobody_is_left_that_has_one(is_done: bool) -> None:
    """Worker 2 waits for it when the others go; worker 1 comes later."""
    sums = after_a_sum(3)
    sums.lose(2)
    sums.join(2)
    assert sums.lose(1) == {}
    assert (sums.end(0) if is_done else sums.lose(0)) == {2: ({OVER: is_done}, [])}
    assert sums.join(1) == ({OVER: is_done}, [])


def test_where_all_of_the_first_sum_are_lost_it_begins_again_with_those_that_have_come() -> None:
    sums = Sums(2)
    sums.send(0, 0, 1.0)
    sums.lose(0)
    assert sums.join(0) is None  # its predecessor's arrays are in the sum
    assert sums.lose(1) == {0: ({}, [INITIAL])}
    assert sums.join(1) == ({}, [INITIAL])
    assert sums.send(0, 0, 2.0) == {}
    assert sums.send(1, 0, 3.0) == summed(5.0, 0, 1)


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
