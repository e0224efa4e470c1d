"""Ring, butterfly and binary blocks: exact sums everywhere, steps and bytes as the papers say, for all N up to 33."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import count, pairwise

import numpy as np
import pytest

from config import EXCHANGES, HUB, KVSTORE, MPI
from trainer.collectives.schedules import SUMS, Exchange, ExchangeSchedule, ScheduleMaker, barrier, broadcast

NUMBERS = range(1, 34)


class Follower:
    """A worker that follows its schedule; a message goes where both its ends are there, as with no memory between."""

    def __init__(self, schedule: ExchangeSchedule, buffer: np.ndarray) -> None:
        self.steps = list(schedule.steps)
        self.buffer = buffer
        self.edges = [len(buffer) * part // schedule.parts for part in range(schedule.parts + 1)]
        self.number = 0  # of the step
        self.has_sent = self.has_received = False

    @property
    def step(self) -> Exchange:
        return self.steps[self.number] if self.number < len(self.steps) else Exchange()

    def slice(self, span) -> slice:
        return slice(self.edges[span.begin], self.edges[span.end])

    def go_on(self) -> bool:
        """Goes to the next step if this one is done."""
        step = self.step
        if self.number == len(self.steps) or (step.to is not None) > self.has_sent:
            return False
        if (step.source is not None) > self.has_received:
            return False
        self.number += 1
        self.has_sent = self.has_received = False
        return True


def run(algorithm: ScheduleMaker, buffers: list[np.ndarray]) -> int:
    """Lets all workers follow their schedules; returns after how many moments all were done."""
    number = len(buffers)
    workers = [Follower(algorithm(number, rank), buffer) for rank, buffer in enumerate(buffers)]
    for moments in count():
        if all(worker.number == len(worker.steps) for worker in workers):
            return moments
        moved = []
        for rank, worker in enumerate(workers):
            step = worker.step
            if step.to is None or worker.has_sent:
                continue
            other = workers[step.to]
            if other.step.source != rank or other.has_received:
                continue
            out, into = worker.slice(step.out), other.slice(other.step.into)
            assert out == into, f"rank {rank} sends {step} and rank {step.to} expects {other.step}"
            assert step.source is None or not step.out.size or step.into != step.out
            moved.append((other, into, other.step.adds, worker.buffer[out].copy()))
            worker.has_sent = other.has_received = True
        for other, into, adds, content in moved:
            other.buffer[into] = other.buffer[into] + content if adds else content
        went_on = [worker.go_on() for worker in workers]
        assert moved or any(went_on), "all wait, and nobody sends what another one waits for"
    raise AssertionError


def sent(algorithm: ScheduleMaker, number: int) -> list[Fraction]:
    """Buffers that each rank sends."""
    schedules = [algorithm(number, rank) for rank in range(number)]
    return [Fraction(sum(step.out.size for step in each.steps), each.parts) for each in schedules]


@pytest.fixture(params=SUMS)
def algorithm(request: pytest.FixtureRequest) -> ScheduleMaker:
    return SUMS[request.param]


def test_the_flag_offers_each_of_them() -> None:
    assert set(EXCHANGES) - set(SUMS) == {KVSTORE, HUB, MPI}  # whose sums are not made here


@pytest.mark.parametrize("number", NUMBERS)
def test_every_rank_ends_with_the_exact_sum_and_with_the_same_bits(algorithm: ScheduleMaker, number: int) -> None:
    length = 3 * number + 1  # pieces of unequal sizes
    given = [np.arange(length) * (rank + 1) + 1000 * rank for rank in range(number)]
    buffers = [each.copy() for each in given]
    run(algorithm, buffers)
    for buffer in buffers:
        np.testing.assert_array_equal(buffer, sum(given))
    floats = list(np.random.default_rng(number).standard_normal((number, length)).astype(np.float32))
    run(algorithm, floats)
    assert {buffer.tobytes() for buffer in floats} == {floats[0].tobytes()}


def halves(number: int) -> int:
    """lg of the greatest power of two that is no greater."""
    return number.bit_length() - 1


@pytest.mark.parametrize("number", NUMBERS)
def test_a_ring_takes_the_steps_and_the_bytes_of_the_paper(number: int) -> None:
    assert {len(SUMS["ring"](number, rank).steps) for rank in range(number)} == {2 * (number - 1)}
    assert set(sent(SUMS["ring"], number)) == {Fraction(2 * (number - 1), number)}
    assert run(SUMS["ring"], [np.zeros(number) for _ in range(number)]) == 2 * (number - 1)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_butterfly_takes_the_steps_and_the_bytes_of_the_paper(number: int) -> None:
    power = 1 << halves(number)
    folded, of_all = number - power, Fraction(2 * (power - 1), power)
    pairs = [Fraction(1, 2) + of_all + 1, Fraction(1)] * folded
    assert sent(SUMS["butterfly"], number) == pairs + [of_all] * (number - 2 * folded)
    moments = 2 * halves(number) + (3 if folded else 0)
    assert run(SUMS["butterfly"], [np.zeros(number) for _ in range(number)]) == moments


@pytest.mark.parametrize("number", NUMBERS)
def test_binary_blocks_send_two_buffers_each_at_most(number: int) -> None:
    bytes_ = sent(SUMS["binary-blocks"], number)
    assert all(each <= 2 for each in bytes_)
    sizes = [1 << bit for bit in reversed(range(6)) if number >> bit & 1]
    expected = []
    for index, size in enumerate(sizes):
        of_block = Fraction(2 * (size - 1), size)
        up = Fraction(1, size) * (index > 0)
        down = Fraction(1, size) * (index + 1 < len(sizes))
        expected += [of_block + up + down] * size
    assert bytes_ == expected
    if len(sizes) == 1:
        assert bytes_ == sent(SUMS["butterfly"], number)


@pytest.mark.parametrize("number", NUMBERS)
def test_binary_blocks_take_the_steps_of_the_largest_block_and_the_messages_between_blocks(number: int) -> None:
    """A worker of a smaller block sends a piece of its piece to each of several, and gets their sums, one by one."""
    sizes = [1 << bit for bit in reversed(range(6)) if number >> bit & 1]
    between = [2 * larger // smaller for larger, smaller in pairwise(sizes)]
    moments = run(SUMS["binary-blocks"], [np.zeros(number) for _ in range(number)])
    assert 2 * halves(number) <= moments <= 2 * halves(number) + sum(between)
    if len(sizes) <= 2:
        assert moments == 2 * halves(number) + sum(between)


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_broadcast_brings_the_sources_buffer_to_all_in_lg_n_moments(number: int, place: float) -> None:
    source = round(place * (number - 1))
    buffers = [np.full(3, rank) for rank in range(number)]
    assert run(partial(broadcast, source=source), buffers) == (number - 1).bit_length()
    assert all((buffer == source).all() for buffer in buffers)


@pytest.mark.parametrize("number", NUMBERS)
def test_no_worker_leaves_a_barrier_before_all_have_come(number: int) -> None:
    def knows(steps: Callable[[int], tuple[Exchange, ...]], rounds: int) -> list[set[int]]:
        """Of whom each has heard, through others too."""
        heard = [{rank} for rank in range(number)]
        for index in range(rounds):
            heard = [heard[rank] | heard[steps(rank)[index].source] for rank in range(number)]
        return heard

    rounds = (number - 1).bit_length()
    assert {len(barrier(number, rank).steps) for rank in range(number)} == {rounds}
    assert knows(lambda rank: barrier(number, rank).steps, rounds) == [set(range(number))] * number
    assert run(barrier, [np.zeros(0) for _ in range(number)]) == rounds
