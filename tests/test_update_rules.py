"""Every algorithm's update by hand, with small numbers: the real trainers in the memory of this process."""

from __future__ import annotations

import numpy as np
import pytest
from memory_cluster import StateServer, Worker, batch, gradient, normalised, train

from algorithms import TransportKind
from trainer.asynchronous import AsyncTrainer
from trainer.averaging import ModelAveragingTrainer
from trainer.coordinator.queries import Queries
from trainer.esync import ESyncTrainer
from trainer.local_sgd import LocalSGDTrainer
from trainer.ssp import SSPTrainer
from trainer.sync import SyncTrainer
from trainer.transport.network import Link
from trainer.wbsp import WBSPTrainer

ETA = 0.5
ZERO = np.zeros((2, 4))
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # float32, of gradients that nearly cancel


def local_steps(weight: np.ndarray, batches: list, eta: float = ETA) -> np.ndarray:
    for samples in batches:
        weight = weight - eta * gradient(weight, samples)
    return weight


@pytest.mark.parametrize("samples", [(1, 1), (3, 1)], ids=["equal", "unequal"])
def test_ssgd_steps_along_the_sum_of_the_gradients_weighed_by_the_samples_that_workers_hold(samples) -> None:
    workers = [Worker([batch(rank)], samples=count) for rank, count in enumerate(samples)]
    trained = train(TransportKind.SUM, workers, lambda context: SyncTrainer(context, ETA), rounds=2)
    expected = ZERO
    for _ in range(2):
        both = [2 * count / sum(samples) * gradient(expected, batch(rank)) for rank, count in enumerate(samples)]
        expected = expected - ETA / 2 * sum(both)
    for rank in (0, 1):
        np.testing.assert_allclose(trained.weights(rank), expected, **CLOSE)
    np.testing.assert_array_equal(trained.weights(0), trained.weights(1))


@pytest.mark.parametrize("samples", [(1, 1, 1), (5, 4, 1)], ids=["equal", "unequal"])
@pytest.mark.parametrize("global_rate", [1.0, 0.3])
def test_model_averaging_adds_eps_times_the_weighed_mean_of_the_updates(samples, global_rate) -> None:
    """w <- w + eps * sum_k (n_k / n) (w_k - w), twice; three workers, two local steps each."""
    workers = [Worker([batch(rank), batch(rank + 1)], samples=count) for rank, count in enumerate(samples)]

    def build(context) -> ModelAveragingTrainer:
        return LocalSGDTrainer(context, ETA, global_rate, sync_every=2)

    trained = train(TransportKind.SUM, workers, build, rounds=2)
    expected = ZERO
    for _ in range(2):
        updates = [
            count / sum(samples) * (local_steps(expected, [batch(rank), batch(rank + 1)]) - expected)
            for rank, count in enumerate(samples)
        ]
        expected = expected + global_rate * sum(updates)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, **CLOSE)


@pytest.mark.parametrize("global_rate", [1.0, 0.3])
def test_model_averaging_averages_batchnorms_statistics_whatever_the_global_rate(global_rate) -> None:
    """Running mean 0.5 * old + 0.5 * batch's, at each worker; then the weighed mean of both, without eps."""
    samples, batches = (3, 1), [batch(0, 4), batch(3, 4)]
    workers = [Worker([one], samples=count) for one, count in zip(batches, samples, strict=True)]

    def build(context) -> ModelAveragingTrainer:
        return LocalSGDTrainer(context, ETA, global_rate, sync_every=1)

    trained = train(TransportKind.SUM, workers, build, rounds=1, network=normalised)
    means = [0.5 * (one.images / 255).mean() for one in batches]
    expected = sum(count / 4 * mean for count, mean in zip(samples, means, strict=True))
    for trainer in trained.trainers:
        running_mean = trainer.context.network[0].running_mean.data().asscalar()
        assert running_mean == pytest.approx(expected, rel=1e-5)


def test_esync_fills_the_stragglers_step_and_adds_the_mean_of_what_all_have_done() -> None:
    """The preprint's cluster: four workers of 0.03 s a step beside two of 3.5 s, the journal's rule."""
    steps_s = [0.03] * 4 + [3.5] * 2
    server, local = StateServer("journal"), {rank: [] for rank in range(6)}

    class Counted(ESyncTrainer):
        def synchronize(self, wants_stop: bool) -> bool:
            local[self.membership.rank].append(self.steps)
            return super().synchronize(wants_stop)

    def build(context) -> ESyncTrainer:
        return Counted(context, ETA, 0.7, Queries(context.state, context.clock, waits=True))

    workers = [Worker([batch(rank)], step_s=step_s) for rank, step_s in enumerate(steps_s)]
    trained = train(TransportKind.SUM, workers, build, rounds=3, state_server=server)
    assert [local[rank] for rank in (4, 5)] == [[1, 1, 1]] * 2
    assert {steps for rank in range(4) for steps in local[rank]} <= {115, 116}  # 3.5 s / 0.03 s is 116.7
    assert trained.trainers[0].measure.elapsed_s == pytest.approx(3 * 3.5, abs=0.1)  # nobody waits for more than a step
    expected = ZERO
    for round_ in range(3):
        updates = [local_steps(expected, [batch(rank)] * local[rank][round_]) - expected for rank in range(6)]
        expected = expected + 0.7 * sum(updates) / 6
    for rank in range(6):
        np.testing.assert_allclose(trained.weights(rank), expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(trained.weights(rank), trained.weights(0))
    job = server.running.router.snapshot()
    assert job is not None and job.ended is not None  # all have taken leave


@pytest.mark.parametrize("overlap", [False, True])
def test_wbsps_release_is_the_initial_model_and_the_mean_of_all_uploads(overlap) -> None:
    """Steps of 1 s and 2.5 s: the slow worker releases after each of its uploads; the fast one has not waited."""

    def build(context) -> WBSPTrainer:
        return WBSPTrainer(context, ETA, overlap)

    workers = [Worker([batch(0)], step_s=1.0), Worker([batch(1)], step_s=2.5)]
    trained = train(TransportKind.SERVER, workers, build, rounds=3, state_server=StateServer("wbsp"))
    begun_s = [3 * worker.step_s for worker in workers]  # three test steps
    took_s = [trained.ended_s[rank] - max(begun_s) for rank in (0, 1)]
    assert took_s == pytest.approx([3.0, 7.5])
    if overlap:
        return
    # The uploads are the steps on each worker's own weights. Release 1, at 2.5 s, has two of the fast worker's.
    u1 = -ETA * gradient(ZERO, batch(0))
    u2 = -ETA * gradient(u1, batch(0))
    v1 = -ETA * gradient(ZERO, batch(1))
    first = (u1 + u2 + v1) / 2
    u3 = -ETA * gradient(u1 + u2, batch(0))  # the fast worker takes release 1 after its next upload, at 3 s
    v2 = -ETA * gradient(first, batch(1))
    second = first + (u3 + v2) / 2
    v3 = -ETA * gradient(second, batch(1))
    np.testing.assert_allclose(trained.weights(0), first, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), second + v3 / 2, **CLOSE)


def test_asgd_applies_each_gradient_to_the_weights_of_its_moment() -> None:
    """Steps of 1 s and 2.5 s: the slow worker's gradient is of the initial weights, and arrives third."""
    workers = [Worker([batch(0)], step_s=1.0), Worker([batch(1)], step_s=2.5)]

    def build(context) -> AsyncTrainer:
        return AsyncTrainer(context, ETA, compensation=None)

    trained = train(TransportKind.SERVER, workers, build, rounds=2)
    first = ZERO - ETA * gradient(ZERO, batch(0))  # at 1 s
    second = first - ETA * gradient(first, batch(0))  # at 2 s
    third = second - ETA * gradient(ZERO, batch(1))  # at 2.5 s
    fourth = third - ETA * gradient(third, batch(1))  # at 5 s
    np.testing.assert_allclose(trained.weights(0), second, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), fourth, **CLOSE)


def test_dc_asgd_compensates_the_delay_by_the_workers_own_backup() -> None:
    """w <- w - eta (g + lambda g g (w - w_bak)); the slow worker's backup is the initial model, w has moved twice."""
    strength = 0.7
    workers = [Worker([batch(0)], step_s=1.0), Worker([batch(1)], step_s=2.5)]

    def build(context) -> AsyncTrainer:
        return AsyncTrainer(context, ETA, compensation=strength)

    trained = train(TransportKind.SERVER, workers, build, rounds=2)
    first = ZERO - ETA * gradient(ZERO, batch(0))  # its backup is what it departs from: no delay
    second = first - ETA * gradient(first, batch(0))
    late = gradient(ZERO, batch(1))
    third = second - ETA * (late + strength * late * late * (second - ZERO))
    fourth = third - ETA * gradient(third, batch(1))
    np.testing.assert_allclose(trained.weights(1), fourth, **CLOSE)


@pytest.mark.parametrize(("staleness", "ends"), [(0, [4.0, 8.0, 12.0]), (1, [1.0, 4.0, 8.0]), (2, [1.0, 2.0, 4.0])])
def test_ssp_lets_nobody_be_further_ahead_of_the_slowest_than_the_bound(staleness, ends) -> None:
    """Steps of 1 s and 4 s: when the fast worker's rounds end. What travels takes no time here."""
    moments = []

    class Timed(SSPTrainer):
        def synchronize(self, wants_stop: bool) -> bool:
            stop = super().synchronize(wants_stop)
            if self.membership.rank == 0:
                moments.append(self.measure.elapsed_s)
            return stop

    workers = [Worker([batch(0)], step_s=1.0), Worker([batch(1)], step_s=4.0)]
    train(TransportKind.SERVER, workers, lambda context: Timed(context, ETA, staleness), rounds=3)
    assert moments == pytest.approx(ends)


def test_a_transfer_takes_latency_and_bytes_over_bandwidth_of_links_that_are_shared() -> None:
    """Two workers, 32 bytes of weights and 4 of a vote each way; 36 bytes/s, which the server's link carries once."""
    workers = [Worker([batch(rank)], step_s=1.0, link=Link(36.0, latency_s=0.5)) for rank in range(2)]
    trained = train(
        TransportKind.SUM,
        workers,
        lambda context: SyncTrainer(context, ETA),
        rounds=1,
        server_bytes_per_s=36.0,
    )
    # Up: 0.5 s, and 2 s since both send at once; down the same.
    assert trained.trainers[0].measure.elapsed_s == pytest.approx(1.0 + 2 * (0.5 + 2.0))


def test_the_same_run_twice_is_the_same_to_the_bit() -> None:
    def run() -> tuple[bytes, float]:
        workers = [Worker([batch(rank)], step_s=0.3 + 0.2 * rank, link=Link(1e3, 0.01)) for rank in range(3)]
        trained = train(
            TransportKind.SERVER, workers, lambda context: AsyncTrainer(context, ETA, None), rounds=7,
            server_bytes_per_s=1e3,
        )  # fmt: skip
        return b"".join(trained.weights(rank).tobytes() for rank in range(3)), trained.clock.now()

    assert run() == run()
