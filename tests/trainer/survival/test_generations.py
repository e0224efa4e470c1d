"""Workers of a job that survives are lost, come and leave in virtual time; what they do is checked by hand.

Worker k's batch in its r-th step is batch(k + r), and each step takes a second where nothing else is said. Of three
workers in a ring a sum is four exchanges, in the last of which rank 2 sends the last part to rank 0 alone.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
import pytest
from contexts import by_flags
from hypothesis import example, given, settings, strategies as st
from memory_cluster import CLOSE, ZERO, batch, gradient
from memory_generations import PATIENCE_S, Job, Worker

from trainer.algorithms.local_sgd import LocalSGDTrainer
from trainer.algorithms.sync import SyncTrainer
from trainer.collectives.schedules import SUMS
from trainer.rendezvous.generations import Generations
from trainer.rendezvous.joining import Member, Start
from trainer.simulation.virtual_clock import VirtualClock
from trainer.survival import recovery
from trainer.survival.recovery import Arrangement
from utils import LEFT, JobOver, PeerLost, SetupError

ETA = 0.5
COMES_S = 4.5  # in the middle of round 2, after three test steps
LAST = 4  # exchange of a sum of three


def ssgd(context) -> SyncTrainer:
    return by_flags("sync", learning_rate=ETA)(context)


def after_rounds(samples: list[dict[int, int]], missed: dict[int, int] | None = None) -> np.ndarray:
    """SSGD's weights by hand: w <- w - eta * sum_k (n_k / n) g_k, round by round.

    Args:
        samples: n_k by worker, of those in each round's sum.
        missed: rounds before a worker's first one, if it comes late.
    """
    late = missed or {}
    weight = ZERO
    for turn, counts in enumerate(samples):
        shares = {number: count / sum(counts.values()) for number, count in counts.items()}
        weight = weight - ETA * sum(
            share * gradient(weight, batch(number + turn - late.get(number, 0))) for number, share in shares.items()
        )
    return weight


@pytest.fixture
def decided(monkeypatch) -> list[Arrangement]:
    """What the workers have decided in each generation, each once."""
    found: list[Arrangement] = []

    def arrange(told):
        found.append(decides(told))
        return found[-1]

    decides = recovery.arrange
    monkeypatch.setattr(recovery, "arrange", arrange)
    return found


def check(job: Job, expected: np.ndarray, rounds: int, alive: list[int]) -> None:
    """All that are left have these weights, the same bits, and have logged each of their rounds."""
    assert [number for number, worker in enumerate(job.workers) if worker in job.alive()] == alive
    for worker in job.alive():
        np.testing.assert_allclose(worker.weights(), expected, **CLOSE)
        np.testing.assert_array_equal(worker.weights(), job.alive()[0].weights())
        numbers = [record["num_iters"] for record in worker.records]
        assert numbers == list(range(numbers[0], rounds + 1))


@pytest.mark.parametrize("exchange", range(LAST))
def test_a_round_whose_sum_fails_is_summed_again_with_the_shares_of_those_left(decided, exchange: int) -> None:
    """Worker 1 dies in round 2: in the middle of its step, or in the sum before any worker has all of it."""
    job = Job([Worker(3), Worker(2), Worker(1, dies_in=(2, exchange))], ssgd, rounds=3)
    both = {0: 3, 1: 2}
    check(job, after_rounds([{**both, 2: 1}, both, both]), 3, [0, 1])
    assert decided[-2:] == [Arrangement(True, source=0)] * 2  # none is behind
    assert [worker.batches.drawn for worker in job.alive()] == [[0, 1, 2]] * 2  # each batch once
    assert job.workers[0].events() == ["2: generation 2: 2 worker(s); worker 2 (cpu2 on host h, 10.0.0.1:4002) is gone"]


def test_a_worker_that_lacks_the_end_of_a_sum_takes_the_outcome_of_one_that_has_it(decided) -> None:
    """Worker 2 dies before it sends the last part to rank 0; rank 1 has the whole sum, with worker 2's gradient."""
    job = Job([Worker(3), Worker(2), Worker(1, dies_in=(2, LAST))], ssgd, rounds=3)
    all_three, both = {0: 3, 1: 2, 2: 1}, {0: 3, 1: 2}
    check(job, after_rounds([all_three, all_three, both]), 3, [0, 1])
    assert set(decided) >= {Arrangement(True, source=1, behind=(0,))}
    assert [worker.trainer.seen.own for worker in job.alive()] == [3, 3]


def test_of_four_workers_two_die_at_once() -> None:
    workers = [Worker(4), Worker(3, dies_in=(2, 1)), Worker(2), Worker(1, dies_in=(2, 1))]
    job = Job(workers, ssgd, rounds=3, algorithm=SUMS["butterfly"])
    check(job, after_rounds([{0: 4, 1: 3, 2: 2, 3: 1}, *[{0: 4, 2: 2}] * 2]), 3, [0, 2])
    assert [event[:28] for event in workers[0].events()] == ["2: generation 2: 2 worker(s)"]


@pytest.mark.parametrize("exchange", [1, 4], ids=["while they connect", "while they say how far they are"])
def test_another_worker_dies_while_those_left_come_together(exchange: int) -> None:
    """Before its part of the new generation is done: the last worker that is left sums alone."""
    workers = [Worker(3), Worker(2, dies_in=(2, 0)), Worker(1, dies_in=(2, exchange))]
    job = Job(workers, ssgd, rounds=3)
    check(job, after_rounds([{0: 3, 1: 2, 2: 1}, {0: 3}, {0: 3}]), 3, [0])
    assert workers[0].events()[-1].startswith("2: generation 3: 1 worker(s)")
    assert workers[0].records[1]["total_time"] < PATIENCE_S  # a call finds out, also where no connection was watched


def test_a_worker_that_comes_late_gets_the_model_of_one_at_work_and_its_share_from_the_next_round_on(decided) -> None:
    workers = [Worker(3), Worker(2), Worker(1, begins_s=COMES_S)]
    job = Job(workers, ssgd, rounds=5)
    both, all_three = {0: 3, 1: 2}, {0: 3, 1: 2, 2: 1}
    weight = after_rounds([both, both, all_three, all_three, all_three], {2: 2})
    check(job, weight, 5, [0, 1, 2])
    assert decided[-1] == Arrangement(True, source=0, behind=(2,), newcomers=(2,))
    assert workers[0].events() == ["2: generation 2: 3 worker(s); worker 2 (cpu2 on host h, 10.0.0.1:4002) has come"]
    first = workers[2].records[0]
    assert (first["num_iters"], first["missed"]) == (3, 2)
    second, third = (record["total_time"] for record in workers[0].records[1:3])
    assert first["total_time"] == pytest.approx(third)  # seconds of the job
    assert third - second < 2.0  # a step and messages, no test steps


def test_a_newcomer_counts_as_the_slowest_until_its_first_step_is_done() -> None:
    """Were its time not known, worker 0 would do two steps in that round, and all would wait for the second."""
    workers = [Worker(step_s=0.5), Worker(step_s=0.8), Worker(step_s=0.6, begins_s=4.0)]
    Job(workers, by_flags("esync", local_lr=ETA, global_lr=1.0, query="blocking"), rounds=5, policy="journal")
    assert workers[2].records and {record["num_samples"] for record in workers[0].records} == {1}


def test_a_newcomer_with_another_set_up_is_refused_and_the_others_go_on() -> None:
    alike = {"-b": "1"}
    workers = [Worker(3, setup=alike), Worker(2, setup=alike), Worker(begins_s=COMES_S, setup={"-b": "2"})]
    job = Job(workers, ssgd, rounds=4)
    assert isinstance(workers[2].error, SetupError) and "worker 0 is at work" in str(workers[2].error)
    assert not workers[0].events()  # nor do they pause for it
    check(job, after_rounds([{0: 3, 1: 2}] * 4), 4, [0, 1])


def test_a_worker_leaves_after_its_round_and_the_others_sum_with_their_shares() -> None:
    workers = [Worker(3, leaves_after=2), Worker(2), Worker(1)]
    job = Job(workers, ssgd, rounds=4)
    assert workers[0].ended == LEFT and [record["num_iters"] for record in workers[0].records] == [1, 2]
    check(job, after_rounds([*[{0: 3, 1: 2, 2: 1}] * 2, *[{1: 2, 2: 1}] * 2]), 4, [1, 2])
    assert [worker.generations.taken.start.rank for worker in workers[1:]] == [0, 1]


def test_a_newcomer_that_is_taken_in_after_the_last_round_ends_and_the_others_do_too() -> None:
    """It waits when worker 2 dies after the last sum."""
    ends_s = 3.0 + 3.0  # three test steps, three rounds
    workers = [Worker(3), Worker(2), Worker(1, dies_in=(3, LAST + 1)), Worker(begins_s=ends_s - 1e-6)]
    job = Job(workers, ssgd, rounds=3)
    check(job, after_rounds([{0: 3, 1: 2, 2: 1}] * 3), 3, [0, 1])
    assert isinstance(workers[3].error, JobOver)


def test_a_newcomer_takes_over_the_velocity_of_the_outer_optimiser() -> None:
    """u <- beta u + (x - x'), x <- x - u, x' the mean after two local steps. The newcomer sums from round 3 on."""
    beta, missed = 0.5, 2
    workers = [Worker(step_s=0.5), Worker(step_s=0.5, begins_s=COMES_S - 1.7)]

    def build(context) -> LocalSGDTrainer:
        return by_flags("local-sgd", local_lr=ETA, global_lr=1.0, sync_every=2, outer_momentum=beta, outer_nesterov=0)(
            context
        )

    job = Job(workers, build, rounds=5)
    assert workers[1].records[0]["missed"] == missed
    weight, velocity = ZERO, ZERO
    for turn in range(5):
        trained = []
        for number in (0,) if turn < missed else (0, 1):
            local, begin = weight, 2 * (turn - number * missed)
            for step in (begin, begin + 1):
                local = local - ETA * gradient(local, batch(number + step % 5))
            trained.append(local)
        velocity = beta * velocity + weight - sum(trained) / len(trained)
        weight = weight - velocity
    check(job, weight, 5, [0, 1])


def test_esync_sums_what_each_worker_has_trained_and_the_state_server_decides_for_those_left() -> None:
    """w <- w + sum_k (n_k / n) (w_k - w). Worker 1 dies in a step of round 2; no other step is lost."""
    workers = [Worker(3, step_s=0.2), Worker(2, step_s=0.5, dies_in=(2, 0)), Worker(1)]

    build = by_flags("esync", local_lr=ETA, global_lr=1.0, query="blocking")
    job = Job(workers, build, rounds=4, policy="journal")
    weight, drawn = ZERO, dict.fromkeys(range(3), 0)
    for turn in range(4):
        update = ZERO
        numbers = (0, 1, 2) if turn == 0 else (0, 2)
        for number in numbers:
            local = weight
            for _ in range(workers[number].records[turn]["num_samples"]):
                local = local - ETA * gradient(local, batch(number + drawn[number] % 5))
                drawn[number] += 1
            update = update + workers[number].samples / sum(workers[each].samples for each in numbers) * (
                local - weight
            )
        weight = weight + update
    check(job, weight, 4, [0, 2])
    assert [record["num_samples"] for record in workers[2].records] == [1] * 4
    assert all(record["num_samples"] > 1 for record in workers[0].records)
    assert workers[0].batches.drawn == list(range(drawn[0]))


class Connections:
    """Of a worker that is alone."""

    group = watch = interrupt = let_leave = stop_watching = close = lambda self, *about: None
    heard = tuple


FIRST = Start(1, 0, (Member("w0", "10.0.0.1", 4000, "h", "cpu0"),))


def alone(clock: VirtualClock, beat: Callable[[Start], str], come_back: Callable[[], Start]) -> Generations:
    """A worker that is alone in its first generation."""

    class Joins:
        def beat(self, place: Start) -> str:
            return beat(place)

        def wait(self, timeout_s: float, before: Start, *about: object) -> Start:
            return come_back()

        def leave(self, cause: str) -> None: ...

    return Generations(Joins(), lambda start: Connections(), clock, FIRST, clock.start)


@pytest.mark.parametrize("wanted_at_s", [0.0, 30.0])
def test_a_worker_that_is_to_stop_gives_up_a_generation_that_does_not_form(clock, wanted_at_s: float) -> None:
    def come_back() -> Start:
        clock.sleep(90.0)
        return FIRST

    generations = alone(clock, lambda place: "", come_back)
    generations.pause()
    with pytest.raises(PeerLost, match="the time is over, and other workers were waited for"):
        generations.take(lambda: "the time is over" if clock.now() >= wanted_at_s else "")
    assert clock.now() == max(10.0, wanted_at_s)
    generations.take()
    generations.leave()


def test_a_call_to_pause_that_comes_late_does_not_concern_the_next_generation(clock) -> None:
    """The generation breaks while the answer to its BEAT is under way."""

    def beat(place: Start) -> str:
        if place.generation > 1:
            return ""
        clock.sleep(2.0)
        return "PAUSE"

    generations = alone(clock, beat, lambda: msgspec.structs.replace(FIRST, generation=2))
    first = generations.taken
    clock.sleep(1.0)
    generations.pause()
    assert generations.take() is not first
    clock.sleep(5.0)
    assert not generations.taken.newcomer_waits
    generations.leave()


@example(deaths={2: (0, 3)}, paces=[0.5] * 4, algorithm="ring")  # before the first round
@settings(max_examples=20, deadline=None)
@given(
    deaths=st.dictionaries(st.integers(0, 3), st.tuples(st.integers(0, 3), st.integers(0, 12)), max_size=3),
    paces=st.lists(st.sampled_from([0.3, 0.5, 0.8]), min_size=4, max_size=4),
    algorithm=st.sampled_from(sorted(SUMS)),
)
def test_whenever_workers_die_those_left_end_with_the_same_weights_and_all_rounds(deaths, paces, algorithm) -> None:
    workers = [Worker(number + 1, paces[number], dies_in=deaths.get(number)) for number in range(4)]
    job = Job(workers, ssgd, rounds=4, algorithm=SUMS[algorithm])
    left = job.alive()
    assert {number for number, worker in enumerate(workers) if worker.is_dead} <= deaths.keys() and left
    assert len(left) + sum(worker.is_dead for worker in workers) == 4
    for worker in left:
        np.testing.assert_array_equal(worker.weights(), left[0].weights())
        assert [record["num_iters"] for record in worker.records] == [1, 2, 3, 4]
