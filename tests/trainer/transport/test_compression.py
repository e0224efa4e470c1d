"""What travels in fewer bytes: which values arrive, what that costs, and what trainers make of it. All in memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from hypothesis import given, settings, strategies as st
from memory_cluster import StateServer, Trained, Worker, batch, normalised, train
from run_all import run_all
from spoilt import ETA, MOST, ZERO, Spoilt, mean_of_local_steps, spoil, weighed

from algorithms import TransportKind
from config import AMONG_WORKERS, KVSTORE, Config
from trainer.algorithms.local_sgd import LocalSGDTrainer
from trainer.collectives.mesh import MeshGroup, follow
from trainer.collectives.schedules import SUMS
from trainer.context import Context
from trainer.nan_guard import first_not_finite
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_kvstore import VirtualKVStore, VirtualServer
from trainer.simulation.virtual_mesh import MemoryMesh, MemoryNetwork, in_memory
from trainer.trainer import Trainer
from trainer.transport.protocol import Transport, num_bytes
from utils import DIVERGED, JobError

EXCHANGES = (KVSTORE, *AMONG_WORKERS)

# ------------------------------------------------------------------------------------------ float16 on the way


def summed_in_halves(name: str, buffers: list[np.ndarray], num_halves: int) -> list[np.ndarray]:
    """What each worker has after an exchange."""
    clock, number = VirtualClock(), len(buffers)
    network = MemoryNetwork(clock, [WorkerLink()] * number)
    groups = [MeshGroup(MemoryMesh(network, rank), SUMS[name]) for rank in range(number)]
    mine = [buffer.copy() for buffer in buffers]

    def work(rank: int) -> None:
        groups[rank].all_reduce(mine[rank], mine[rank].nbytes, num_halves)

    run_all(clock, [partial(work, rank) for rank in range(number)])
    return mine


def test_a_ring_of_two_by_hand() -> None:
    """Worker 1 adds up the first part, and worker 0 the second; each keeps the sum as rounded as it tells it."""
    first, second = np.array([0.1, 3.0], np.float32), np.array([4096.0, 4097.0], np.float32)
    sums = summed_in_halves("ring", [first, second], 2)
    # Float16 has every fourth number from 4096 on: 4096.1 -> 4096, and 3 + 4096 (4097 as it is told) = 4099 -> 4100.
    for mine in sums:
        assert mine.tolist() == [4096.0, 4100.0]


@pytest.mark.parametrize("number", range(1, 10))
@pytest.mark.parametrize("name", SUMS)
@settings(max_examples=15)
@given(data=st.data())
def test_all_workers_get_the_same_bits_within_the_rounding_and_what_is_exact_exactly(name, number, data) -> None:
    length, num_exact = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 5))
    seed, scale = data.draw(st.integers(0, 2**32 - 1)), data.draw(st.sampled_from((1e-6, 1e-3, 1.0, 1e3)))
    random = np.random.default_rng(seed)
    given_ = [
        np.concatenate([random.standard_normal(length) * scale, random.integers(0, 1 << 20, num_exact)]).astype("f4")
        for _ in range(number)
    ]
    sums = summed_in_halves(name, given_, length)
    for mine in sums:
        np.testing.assert_array_equal(mine.view(np.uint32), sums[0].view(np.uint32))
    every = np.stack(given_).astype(np.float64)
    np.testing.assert_array_equal(sums[0][length:], every.sum(0)[length:])
    # Each addend is rounded, and each partial sum, by up to 2^-11 of it, or 2^-25 near zero.
    most = (number + 1) * (1.01 * 2.0**-11 * np.abs(every).sum(0) + 2.0**-25)
    assert (np.abs(sums[0] - every.sum(0)) <= most)[:length].all()
    if number > 1:
        np.testing.assert_array_equal(sums[0][:length], sums[0][:length].astype(np.float16))


def test_a_server_adds_up_in_float32() -> None:
    def work(place: Transport, clock: VirtualClock) -> list[float]:
        shared, arrays = place.sums(as_halves=True), [np.float32([(2048.0, 1.0, 1.0)[place.rank]])]
        shared.broadcast(arrays)
        arrays[0][:] = (2048.0, 1.0, 1.0)[place.rank]
        shared.begin_sum(arrays)
        shared.finish_sum(arrays)
        return arrays[0].tolist()

    # In float16 each 1 would be lost.
    assert together(KVSTORE, 3, work) == {rank: [2050.0] for rank in range(3)}


def test_an_overflow_on_the_way_is_an_infinity_on_all() -> None:
    for mine in summed_in_halves("ring", [np.full(2, 4e4, np.float32)] * 3, 2):
        assert np.isinf(mine).all()
    assert not any(np.isinf(mine).any() for mine in summed_in_halves("ring", [np.full(2, 2.0**15 / 3, "f4")] * 3, 2))


def test_a_message_of_both_kinds_is_as_long_as_its_numbers() -> None:
    sizes: list[int] = []

    class Noting(MemoryMesh):
        def exchange(self, to: Any, out: Any, source: Any, into: Any, adds: bool) -> None:
            sizes.append(len(out.array))
            super().exchange(to, out, source, into, adds)

    def work(rank: int) -> None:
        follow(SUMS["ring"](2, rank), Noting(network, rank), np.ones(12, "f4"), 0, 10)

    clock = VirtualClock()
    network = MemoryNetwork(clock, [WorkerLink()] * 2)
    run_all(clock, [partial(work, rank) for rank in range(2)])
    assert sizes == [5 * 2 + 1 * 4] * 4


# ---------------------------------------------------------------------------------------------- bytes and time


def together(
    exchange: str,
    number: int,
    work: Callable[[Transport, VirtualClock], Any],
    link: WorkerLink = WorkerLink(),  # noqa: B008
    size_of: Callable[[np.ndarray], int] = num_bytes,
) -> dict[int, Any]:
    """What so many workers return that do the same in virtual time, by rank."""
    clock, returned = VirtualClock(), {}
    links = [link] * number
    server = VirtualServer(clock, links, size_of=size_of)
    network = MemoryNetwork(clock, links)

    def worker(rank: int) -> None:
        place = (
            VirtualKVStore(server, rank) if exchange == KVSTORE else in_memory(network, SUMS[exchange], rank, size_of)
        )
        returned[rank] = work(place, clock)

    run_all(clock, [lambda rank=rank: worker(rank) for rank in range(number)])
    return returned


def one_sum(as_halves: bool, shapes: tuple[int, ...] = (1200, 2400)) -> Callable[..., Any]:
    """Traffic and seconds of a sum of some numbers and of one that is exact."""

    def work(place: Transport, clock: VirtualClock) -> tuple[dict[str, int], float]:
        arrays = [np.ones(size, np.float32) for size in (*shapes, 1)]
        shared = place.sums(as_halves)
        shared.broadcast(arrays, exact=1)
        begin = 100.0  # when all have the values
        clock.sleep(begin - clock.now())
        shared.begin_sum(arrays)
        shared.finish_sum(arrays)
        return shared.take_traffic(), clock.now() - begin

    return work


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_float16_is_half_of_the_bytes_and_of_the_time_that_they_take(exchange: str) -> None:
    link = WorkerLink(bytes_per_s=1e4)
    whole = together(exchange, 4, one_sum(False), link)
    half = together(exchange, 4, one_sum(True), link)
    for rank in range(4):
        (of_whole, whole_s), (of_half, half_s) = whole[rank], half[rank]
        exact = 4 * (1 if exchange == KVSTORE else 2)  # of the one that stays as it is; at most so often on the way
        for way in ("bytes_pushed", "bytes_pulled"):
            assert of_whole[way] / 2 <= of_half[way] <= of_whole[way] / 2 + exact
        assert half_s == pytest.approx(whole_s / 2, rel=0.01)


def test_where_arrays_stand_for_larger_ones_the_bytes_of_those_are_halved() -> None:
    def larger(array: np.ndarray) -> int:
        return 10 * array.nbytes

    for exchange in EXCHANGES:
        returned = together(exchange, 2, one_sum(True), size_of=larger)
        for traffic, _ in returned.values():
            assert traffic == {"bytes_pushed": 10 * (2 * 3600 + 4), "bytes_pulled": 10 * (2 * 3600 + 4)}


# --------------------------------------------------------------------------------------------------- training


ssgd = by_flags("sync", learning_rate=ETA)
SMALL = 0.05  # a step, with which a rounding stays one
MODES: dict[str, tuple[Callable[[Context], Trainer], str]] = {  # with the policy
    "sync": (by_flags("sync", learning_rate=SMALL), ""),
    "esync": (by_flags("esync", local_lr=SMALL, global_lr=1.0, query="blocking", normalise=1), "journal"),
    "local-sgd": (by_flags("local-sgd", local_lr=SMALL, global_lr=1.0, sync_every=2), ""),
    "lb-bsp": (by_flags("lb-bsp", learning_rate=SMALL), "lb-bsp"),
}


def trained_in(mode: str, as_halves: bool, exchange: str = KVSTORE, rounds: int = 3) -> Trained:
    build, policy = MODES[mode]
    workers = [Worker([batch(rank, 4), batch(rank + 3, 4)], step_s=1 + rank / 2, samples=rank + 1) for rank in range(3)]
    state_server = StateServer(policy, batch_size=4) if policy else None
    return train(
        TransportKind.SUM, workers, build, rounds, normalised, state_server=state_server, as_halves=as_halves,
        exchange=exchange, config=Config(batch_size=4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "exchange"), [*((mode, KVSTORE) for mode in MODES), *(("sync", each) for each in SUMS), ("esync", "ring")]
)
def test_replicas_stay_equal_to_the_bit_and_near_the_model_of_exact_sums(mode: str, exchange: str) -> None:
    exact, half = trained_in(mode, False, exchange), trained_in(mode, True, exchange)
    for rank in range(3):
        trainers = half.trainers[rank], half.trainers[0], exact.trainers[rank]
        for mine, first, other in zip(*(each.parameters.model() for each in trainers), strict=True):
            np.testing.assert_array_equal(mine, first)
            np.testing.assert_allclose(mine, other, rtol=0.01, atol=0.003)
    models = (trained.trainers[0].parameters.model() for trained in (half, exact))
    assert any(np.any(a != b) for a, b in zip(*models, strict=True))


# --------------------------------------------------------------------------------- numbers too large for float16


def test_a_number_that_a_sum_in_float16_may_not_hold_is_bad_where_it_counts_and_only_there() -> None:
    arrays = [np.float32([1.0, -3.0]), np.float32([200.0])]
    assert first_not_finite(arrays, largest=100.0) == 1
    assert first_not_finite(arrays, largest=200.0) is None
    assert first_not_finite(arrays, largest=100.0, num_limited=1) is None
    assert first_not_finite(arrays, largest=2.5, num_limited=1) == 0


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_a_gradient_too_large_for_float16_is_skipped_as_one_that_is_not_finite(exchange: str, caplog) -> None:
    """Worker 1's in round 2 of 3: the step goes along the mean of the others."""
    workers = [Worker([batch(rank)]) for rank in range(3)]
    build = spoil(ssgd, {2}, what=20000.0)
    trained = train(TransportKind.SUM, workers, build, 3, as_halves=True, exchange=exchange)
    expected = ZERO
    for there in ((0, 1, 2), (0, 2), (0, 1, 2)):
        expected = expected - ETA * sum(weighed(expected, dict.fromkeys(there, 1), 3, 3)) / len(there)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, rtol=0.01, atol=0.001)
        np.testing.assert_array_equal(trained.weights(rank), trained.weights(0))
    assert "_weight is not finite, or above 10922.7: too much for float16; skipped" in caplog.text
    assert [trainer.checks.steps.total for trainer in trained.trainers] == [0, 1, 0]


def test_without_compression_it_is_a_gradient_like_any_other() -> None:
    build = spoil(ssgd, {2}, what=20000.0)
    trained = train(TransportKind.SUM, [Worker([batch(rank)]) for rank in range(3)], build, 3)
    assert [trainer.checks.steps.total for trainer in trained.trainers] == [0, 0, 0]


def test_an_update_too_large_for_float16_is_left_out_of_the_mean() -> None:
    """The weights of local SGD's worker 1 have gone far away in its own steps: the others' updates are the mean."""

    class GoesFar(LocalSGDTrainer):
        def ready(self) -> bool:
            if self.membership.rank == 1 and self.steps == 2:
                self.parameters.weights[0][1, 2] = 1e5
            return super().ready()

    def build(context: Context) -> Trainer:
        context.run.max_bad_steps = MOST
        return by_flags("local-sgd", GoesFar, local_lr=ETA, sync_every=2)(context)

    trained = train(TransportKind.SUM, [Worker([batch(rank)]) for rank in range(3)], build, 1, as_halves=True)
    expected = mean_of_local_steps((0, 2), steps=2)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, rtol=0.01, atol=0.001)


@pytest.mark.parametrize("exchange", EXCHANGES)
def test_without_number_checks_the_infinity_ends_the_job(exchange: str) -> None:
    def build(context: Context) -> Trainer:
        if context.peers.membership().rank == 1:
            context.task.passes = lambda trainer: Spoilt(context.task.network, {2}, 1e5)
        return ssgd(context)

    with pytest.raises(JobError, match=DIVERGED):
        train(
            TransportKind.SUM, [Worker([batch(rank)]) for rank in range(3)], build, 5, as_halves=True,
            exchange=exchange,
        )  # fmt: skip
