"""ESync's questions in virtual time, with and without waiting: what whole clusters do, followed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import StateServer, Trained, Worker, batch, gradient, train

from algorithms import TransportKind
from esync.client import StateClient
from esync.clock import Clock
from esync.queries import AWAY_S
from trainer.algorithms.esync import ESyncTrainer

ETA = 0.5
STEPS_S = (1.0, 1.0, 1.0, 4.8)
ROUND_TRIP_S = 0.3
BEGIN_S = 14.4  # when the slowest has done its three test steps


@dataclass
class Followed:
    """What the workers did, by rank; moments in seconds since training began."""

    trained: Trained
    steps: dict[int, list[int]] = field(default_factory=dict)  # of each round
    synchronized_s: dict[int, list[float]] = field(default_factory=dict)  # the end of each round
    passes_s: dict[int, list[tuple[float, float, bool]]] = field(default_factory=dict)  # begin, end, not given up


def follow(steps_s: Sequence[float], round_trip_s: float, rounds: int, waits: bool, server: StateServer) -> Followed:
    begin_s = 3 * max(steps_s)
    done = Followed(None, *({rank: [] for rank in range(len(steps_s))} for _ in range(3)))  # type: ignore[arg-type]

    class Watched(ESyncTrainer):
        def compute_gradients(self, *batch) -> bool:
            is_whole = super().compute_gradients(*batch)
            if self.rounds:
                moments = (self.emulation._step_began - begin_s, self.clock.now() - begin_s)
                done.passes_s[self.membership.rank].append((*moments, is_whole))
            return is_whole

        def synchronize(self, wants_stop: bool) -> bool:
            stop = super().synchronize(wants_stop)
            done.steps[self.membership.rank].append(self.steps)
            done.synchronized_s[self.membership.rank].append(self.clock.now() - begin_s)
            return stop

    build = by_flags("esync", Watched, local_lr=ETA, query="blocking" if waits else "non-blocking")
    workers = [Worker([batch(rank)], step_s=step_s) for rank, step_s in enumerate(steps_s)]
    done.trained = train(TransportKind.SUM, workers, build, rounds, state_server=server)
    return done


def followed(waits: bool, rounds: int = 3) -> Followed:
    return follow(STEPS_S, ROUND_TRIP_S, rounds, waits, StateServer("journal", ROUND_TRIP_S))


def test_without_waiting_a_round_is_the_stragglers_step_and_one_round_trip() -> None:
    """The straggler waits for its answer; the others train on, and their fifth step is given up."""
    done = followed(waits=False)
    assert done.steps == {0: [4, 4, 4], 1: [4, 4, 4], 2: [4, 4, 4], 3: [1, 1, 1]}
    for rank in range(4):
        assert done.synchronized_s[rank] == pytest.approx([5.1, 10.2, 15.3])


def test_with_waiting_each_step_of_a_fast_worker_takes_a_round_trip_more() -> None:
    """REPORT, the straggler's step, and QUERY; meanwhile three steps of 1.3 s fit."""
    done = followed(waits=True)
    assert done.steps == {0: [3, 3, 3], 1: [3, 3, 3], 2: [3, 3, 3], 3: [1, 1, 1]}
    for rank in range(4):
        assert done.synchronized_s[rank] == pytest.approx([5.4, 10.8, 16.2])
    begins = [begin for begin, _, _ in done.passes_s[0][:3]]
    assert begins == pytest.approx([0.3 + 1.3 * step for step in range(3)])


def test_with_an_anchor_a_round_is_so_many_steps_of_the_straggler() -> None:
    """It waits for the answer after each of its two steps of 4.8 s, 0.3 s; the others fill these 10.2 s."""
    done = follow(STEPS_S, ROUND_TRIP_S, 3, False, StateServer("journal", ROUND_TRIP_S, anchor=2))
    assert done.steps == {0: [9, 9, 9], 1: [9, 9, 9], 2: [9, 9, 9], 3: [2, 2, 2]}
    for rank in range(4):
        assert done.synchronized_s[rank] == pytest.approx([10.2, 20.4, 30.6])


def test_ready_in_the_middle_of_a_step_ends_it_behind_its_forward_pass() -> None:
    """Round 2 begins at 5.1 s. Steps end at 6.1, 7.1, 8.1 and 9.1 s; the question of the last is answered at 9.4 s, and
    the forward pass of the fifth, a third of its step, ends at 9.433 s."""
    done = followed(waits=False)
    second = [whole for whole in done.passes_s[0] if 5.0 < whole[0] < 10.1]
    assert [whole for _, _, whole in second] == [True] * 4 + [False]
    assert [begin for begin, _, _ in second] == pytest.approx([5.1, 6.1, 7.1, 8.1, 9.1])
    assert second[-1][1] == pytest.approx(9.1 + 1 / 3)


def test_a_step_that_was_given_up_leaves_nothing_in_the_model() -> None:
    done = followed(waits=False, rounds=2)
    expected = np.zeros((2, 4))
    for _ in range(2):
        updates = []
        for rank, steps in enumerate([4, 4, 4, 1]):
            local = expected
            for _ in range(steps):
                local = local - ETA * gradient(local, batch(rank))
            updates.append(local - expected)
        expected = expected + sum(updates) / 4
    for rank in range(4):
        np.testing.assert_allclose(done.trained.weights(rank), expected, rtol=1e-4, atol=1e-5)


def test_the_same_run_twice_is_the_same_to_the_bit() -> None:
    first, second = followed(waits=False), followed(waits=False)
    assert first.passes_s == second.passes_s
    assert first.synchronized_s == second.synchronized_s
    for rank in range(4):
        np.testing.assert_array_equal(first.trained.weights(rank), second.trained.weights(rank))


def test_the_preprints_cluster_without_waiting_computes_nearly_all_the_time() -> None:
    """Four workers of 0.03 s a step beside two of 3.5 s; a round trip of two thirds of a fast step. In round 1 a fast
    worker waits for its first answer, since it cannot know how many steps there will be; so the one that it gives up in
    the end takes from 3.5 to 3.53 s, beyond the straggler's answer at 3.52 s."""
    steps_s = [0.03] * 4 + [3.5] * 2
    done = follow(steps_s, 0.02, 3, False, StateServer("journal", 0.02))
    for rank in range(6):
        assert done.synchronized_s[rank] == pytest.approx([3.53, 7.05, 10.57])
    assert [done.steps[rank] for rank in range(6)] == [[116] * 3] * 4 + [[1] * 3] * 2  # 3.52 s / 0.03 s is 117.3


class AwayForAWhile(StateServer):
    """A state server that nobody reaches between two moments, in seconds since training began."""

    from_s, to_s = 5.4, 20.0

    def client(self, clock: Clock) -> StateClient:
        is_first = not hasattr(self, "running")
        made = super().client(clock)
        if is_first:
            clock.start(lambda: self._go_away(clock), "the state server's absence")
        return made

    def _go_away(self, clock: Clock) -> None:
        clock.sleep(BEGIN_S + self.from_s)
        self.running.is_away = True
        clock.sleep(self.to_s - self.from_s)
        self.running.is_away = False


def test_while_the_state_server_is_away_all_go_on_with_the_steps_of_the_last_round() -> None:
    """It leaves in round 2, which the straggler, whose one step ends at 9.9 s, ends a second and a try later. Round 3
    lasts as long as that step. In round 4 it is back, at 20 s, and decides again."""
    done = follow(STEPS_S, ROUND_TRIP_S, 6, False, AwayForAWhile("journal", ROUND_TRIP_S))
    assert [done.steps[rank] for rank in range(4)] == [[4, 4, 4, 5, 4, 4]] * 3 + [[1] * 6]
    _, second, third, fourth, *later = done.synchronized_s[0]
    assert second == pytest.approx(9.9 + AWAY_S + 2 * ROUND_TRIP_S)
    assert third - second == pytest.approx(4.8)
    assert fourth - third < 5.1 + 1 / 3 + ROUND_TRIP_S
    assert later == pytest.approx([fourth + 5.1, fourth + 10.2])
