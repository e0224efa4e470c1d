"""Every algorithm's update by hand, with small numbers: the real trainers in the memory of this process."""

from __future__ import annotations

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import StateServer, Trained, Worker, batch, gradient, normalised, train

from algorithm_row import Averaging
from algorithms import TransportKind
from config import Config
from flag_values import parse_schedule
from trainer.algorithms.averaging import ModelAveragingTrainer
from trainer.algorithms.esync import ESyncTrainer
from trainer.algorithms.ssp import SSPTrainer
from trainer.simulation.network import WorkerLink
from trainer.steps import PLAIN, Rule

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
    trained = train(TransportKind.SUM, workers, by_flags("sync", learning_rate=ETA), rounds=2)
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
        return by_flags("local-sgd", local_lr=ETA, global_lr=global_rate, sync_every=2)(context)

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


@pytest.mark.parametrize("nesterov", [False, True], ids=["heavy ball", "Nesterov"])
def test_the_outer_optimiser_steps_along_the_mean_update_with_momentum(nesterov) -> None:
    """x' the weighed mean, u <- beta u + (x - x'); x <- x - eps u, or x <- x - eps (x - x' + beta u); three rounds."""
    beta, rate, samples = 0.6, 0.3, (5, 4, 1)
    workers = [Worker([batch(rank), batch(rank + 1)], samples=count) for rank, count in enumerate(samples)]

    def build(context) -> ModelAveragingTrainer:
        return by_flags(
            "local-sgd", local_lr=ETA, global_lr=rate, sync_every=2, outer_momentum=beta, outer_nesterov=int(nesterov)
        )(context)

    trained = train(TransportKind.SUM, workers, build, rounds=3)
    expected, velocity = ZERO, ZERO
    for _ in range(3):
        models = [local_steps(expected, [batch(rank), batch(rank + 1)]) for rank in range(3)]
        gradient_ = expected - sum(count / 10 * model for count, model in zip(samples, models, strict=True))
        velocity = beta * velocity + gradient_
        expected = expected - rate * (gradient_ + beta * velocity if nesterov else velocity)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, **CLOSE)
        np.testing.assert_array_equal(trained.weights(rank), trained.weights(0))


SHARES = (0.5, 0.4, 0.1)  # of the samples, by rank


class Uneven(ModelAveragingTrainer):
    """Takes as many local steps as its rank and the round say; where that is none, it gives up its first."""

    local: list[tuple[int, ...]]  # by round, of each rank

    def __init__(self, *given, **more) -> None:
        super().__init__(*given, **more)
        self.give_up = self._is_over

    def _is_over(self) -> bool:
        return self.rounds > 0 and self.local[self.rounds - 1][self.membership.rank] == 0

    def ready(self) -> bool:
        return self.steps == self.local[self.rounds - 1][self.membership.rank]


def averaging(rate: float, momentum: float) -> Averaging:
    return Averaging(local_lr=ETA, global_lr=rate, outer_momentum=momentum, outer_nesterov=1)


def averaged(
    local: list[tuple[int, ...]], rate: float, momentum: float, normalise: bool, rule: Rule = PLAIN
) -> Trained:
    """Workers with 5, 4 and 1 of 10 samples, each with a batch of its own."""

    def build(context) -> Uneven:
        trainer = Uneven(context, averaging(rate, momentum), normalise)
        trainer.local = local
        return trainer

    workers = [Worker([batch(rank)], samples=count) for rank, count in enumerate((5, 4, 1))]
    return train(TransportKind.SUM, workers, build, rounds=len(local), rule=rule)


@pytest.mark.parametrize("momentum", [0.0, 0.6], ids=["plain", "with momentum"])
def test_fednova_weighs_updates_by_their_local_steps(momentum) -> None:
    """x' = x + tau_eff sum_k p_k (w_k - x) / tau_k, tau_eff = sum_k p_k tau_k; a worker without a step counts as 0."""
    rate, shares, local = 0.3, SHARES, [(7, 1, 2), (3, 2, 0), (1, 1, 4)]
    trained = averaged(local, rate, momentum, normalise=True)
    expected, velocity = ZERO, ZERO
    for steps in local:
        a_step = sum(
            share * (local_steps(expected, [batch(rank)] * tau) - expected) / tau
            for rank, (share, tau) in enumerate(zip(shares, steps, strict=True))
            if tau
        )
        update = sum(share * tau for share, tau in zip(shares, steps, strict=True)) * a_step
        velocity = momentum * velocity + update
        expected = expected + rate * (update + momentum * velocity)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, **CLOSE)
        np.testing.assert_array_equal(trained.weights(rank), trained.weights(0))


@pytest.mark.parametrize("rho", [0.5, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.2], ids=["no weight decay", "weight decay"])
@pytest.mark.parametrize("schedule", ["constant", "warmup:4", "step:6,15x0.1"])
def test_fednova_with_momentum_divides_by_the_norm_of_a_k_and_begins_each_round_without_velocity(
    rho, decay, schedule
) -> None:
    """w_k - x = -eta * sum_j a_kj g_kj with a_kj = sum_(s >= j) f_s rho^(s - j), f_s the schedule's factors."""
    local, rate = [(7, 1, 2), (3, 2, 0), (1, 1, 4)], 0.3
    rule = Rule(momentum=rho, weight_decay=decay, schedule=parse_schedule(schedule))
    trained = averaged(local, rate, 0.0, normalise=True, rule=rule)
    expected, seen = ZERO, 0
    for steps in local:
        norms, directions = [], []
        for rank, tau in enumerate(steps):
            factors = [parse_schedule(schedule).factor(seen + step + 1) for step in range(tau)]
            weight, velocity = expected, ZERO
            for factor in factors:
                velocity = rho * velocity + gradient(weight, batch(rank)) + decay * weight
                weight = weight - ETA * factor * velocity
            a_k = [sum(factors[s] * rho ** (s - j) for s in range(j, tau)) for j in range(tau)]
            if schedule == "constant":  # the paper's closed form
                assert sum(a_k) == pytest.approx((tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho))
            norms.append(sum(a_k))
            directions.append((weight - expected) / sum(a_k) if tau else ZERO)
        tau_eff = sum(share * norm for share, norm in zip(SHARES, norms, strict=True))
        mean = sum(share * direction for share, direction in zip(SHARES, directions, strict=True))
        expected = expected + rate * tau_eff * mean
        seen += sum(steps)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, **CLOSE)
        np.testing.assert_array_equal(trained.weights(rank), trained.weights(0))


@pytest.mark.parametrize("rho", [0.0, 0.9])
def test_fednova_is_the_plain_mean_where_all_take_as_many_steps(rho) -> None:
    """One round: in later ones the velocity, which FedNova begins anew, would be another."""
    both = [averaged([(3, 3, 3)], 1.0, 0.0, normalise, Rule(momentum=rho)).weights() for normalise in (True, False)]
    np.testing.assert_allclose(*both, **CLOSE)
    assert np.abs(both[0]).max() > 0.01


def test_without_fednova_the_velocity_of_local_steps_lasts_from_round_to_round() -> None:
    trained = averaged([(1, 1, 1)] * 2, 1.0, 0.0, normalise=False, rule=Rule(momentum=0.9))
    expected, velocities = ZERO, [ZERO] * 3
    for _ in range(2):
        velocities = [0.9 * velocity + gradient(expected, batch(rank)) for rank, velocity in enumerate(velocities)]
        expected = expected - ETA * sum(share * v for share, v in zip(SHARES, velocities, strict=True))
    np.testing.assert_allclose(trained.weights(), expected, **CLOSE)


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("global_rate", [1.0, 0.3])
def test_model_averaging_averages_batchnorms_statistics_whatever_the_outer_optimiser(global_rate, momentum) -> None:
    """Running mean 0.5 * old + 0.5 * batch's, at each worker; then the weighed mean, without eps, momentum, tau_eff."""
    samples, batches = (3, 1), [batch(0, 4), batch(3, 4)]
    workers = [Worker([one], samples=count) for one, count in zip(batches, samples, strict=True)]

    def build(context) -> ModelAveragingTrainer:
        trainer = Uneven(context, averaging(global_rate, momentum), normalise=bool(momentum))
        trainer.local = [(1, 2), (2, 1)]
        return trainer

    trained = train(TransportKind.SUM, workers, build, rounds=2, network=normalised)
    expected = 0.0
    for steps in [(1, 2), (2, 1)]:
        means = [expected] * 2
        for rank, tau in enumerate(steps):
            for _ in range(tau):
                means[rank] = 0.5 * means[rank] + 0.5 * (batches[rank].images / 255).mean()
        expected = sum(count / 4 * mean for count, mean in zip(samples, means, strict=True))
    for trainer in trained.trainers:
        running_mean = trainer.parameters.statistics()[0][0]
        assert running_mean == pytest.approx(expected, rel=1e-5)


def test_esync_fills_the_stragglers_step_and_adds_the_mean_of_what_all_have_done() -> None:
    """The preprint's cluster: four workers of 0.03 s a step beside two of 3.5 s, the journal's rule."""
    steps_s = [0.03] * 4 + [3.5] * 2
    server, local = StateServer("journal"), {rank: [] for rank in range(6)}

    class Counted(ESyncTrainer):
        def synchronize(self, wants_stop: bool) -> bool:
            local[self.membership.rank].append(self.steps)
            return super().synchronize(wants_stop)

    build = by_flags("esync", Counted, local_lr=ETA, global_lr=0.7, query="blocking")
    workers = [Worker([batch(rank)], step_s=step_s) for rank, step_s in enumerate(steps_s)]
    trained = train(TransportKind.SUM, workers, build, rounds=2, state_server=server)
    assert [local[rank] for rank in (4, 5)] == [[1, 1]] * 2
    assert {steps for rank in range(4) for steps in local[rank]} <= {115, 116}  # 3.5 s / 0.03 s is 116.7
    assert trained.trainers[0].measure.elapsed_s == pytest.approx(2 * 3.5, abs=0.1)  # nobody waits for more than a step
    expected = ZERO
    for round_ in range(2):
        updates = [local_steps(expected, [batch(rank)] * local[rank][round_]) - expected for rank in range(6)]
        expected = expected + 0.7 * sum(updates) / 6
    for rank in range(6):
        np.testing.assert_allclose(trained.weights(rank), expected, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(trained.weights(rank), trained.weights(0))
    job = server.running.handlers.jobs.latest
    assert job is not None and job.ended is not None  # all have taken leave


def trained_by_asgd(
    rounds: int, workers: list[Worker] | None = None, server_bytes_per_s: float = float("inf"), **flags
) -> Trained:
    """By default of two workers with steps of 1 s and 2.5 s."""
    workers = workers or [Worker([batch(0)], step_s=1.0), Worker([batch(1)], step_s=2.5)]
    config = Config(mode="async", learning_rate=ETA, batch_size=1, **flags)
    return train(
        TransportKind.HUB, workers, by_flags("async"), rounds, server_bytes_per_s=server_bytes_per_s, config=config
    )


def test_asgd_applies_each_gradient_to_the_weights_of_its_moment() -> None:
    """Steps of 1 s and 2.5 s: the slow worker's gradient is of the initial weights, and arrives third."""
    trained = trained_by_asgd(2)
    first = ZERO - ETA * gradient(ZERO, batch(0))  # at 1 s
    second = first - ETA * gradient(first, batch(0))  # at 2 s
    third = second - ETA * gradient(ZERO, batch(1))  # at 2.5 s
    fourth = third - ETA * gradient(third, batch(1))  # at 5 s
    np.testing.assert_allclose(trained.weights(0), second, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), fourth, **CLOSE)


def test_dc_asgd_compensates_the_delay_by_the_workers_own_backup() -> None:
    """w <- w - eta (g + lambda g g (w - w_bak)); the slow worker's backup is the initial model, w has moved twice."""
    strength = 0.7
    trained = trained_by_asgd(2, use_dcasgd=1, dcasgd_lambda=strength)
    first = ZERO - ETA * gradient(ZERO, batch(0))  # its backup is what it departs from: no delay
    second = first - ETA * gradient(first, batch(0))
    late = gradient(ZERO, batch(1))
    third = second - ETA * (late + strength * late * late * (second - ZERO))
    fourth = third - ETA * gradient(third, batch(1))
    np.testing.assert_allclose(trained.weights(1), fourth, **CLOSE)


def test_dc_asgd_a_adapts_the_compensation_to_the_mean_square_of_all_workers_gradients() -> None:
    """lambda = lambda_0 / sqrt(s + 1e-7), s <- 0.95 s + 0.05 g g with every gradient that comes, whoever sends it."""
    strength = 0.7
    trained = trained_by_asgd(2, use_dcasgd=1, dcasgd_lambda=strength, dcasgd_adaptive=1)
    weight, square, backups = ZERO, ZERO, [ZERO, ZERO]
    for rank in (0, 0, 1, 1):  # at 1, 2, 2.5 and 5 s
        its = gradient(backups[rank], batch(rank))
        square = 0.95 * square + 0.05 * its * its
        delay = weight - backups[rank]
        weight = weight - ETA * (its + strength / np.sqrt(square + 1e-7) * its * its * delay)
        backups[rank] = weight
    np.testing.assert_allclose(trained.weights(1), weight, **CLOSE)


@pytest.mark.parametrize("max_delay", [1, 2, 3])
def test_ringmaster_drops_a_gradient_whose_delay_is_r_or_more(max_delay) -> None:
    """The slow worker's first gradient comes after two of the other; its next one is of the newest weights."""
    trained = trained_by_asgd(2, max_delay=max_delay)
    second = local_steps(ZERO, [batch(0)] * 2)  # at 2 s: no others between
    third = second - ETA * gradient(ZERO, batch(1)) if max_delay > 2 else second  # at 2.5 s
    np.testing.assert_allclose(trained.weights(0), second, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), local_steps(third, [batch(1)]), **CLOSE)


def test_ringleader_steps_once_for_each_worker_along_the_mean_of_the_workers_means() -> None:
    """Momentum acts on the mean; the fast worker ends at 3 s, and then counts no more."""
    mu = 0.6
    workers = [Worker([batch(0), batch(2)], step_s=1.0), Worker([batch(1)], step_s=2.5)]
    trained = trained_by_asgd(3, workers, table=1, momentum=mu)
    fast, slow = (2 * gradient(ZERO, batch(0)) + gradient(ZERO, batch(2))) / 3, gradient(ZERO, batch(1))
    velocity = (
        fast + slow
    ) / 2  # at 3 s, by the third gradient of the fast one, since both have an entry from 2.5 s on
    first = ZERO - ETA * velocity
    velocity = mu * velocity + slow  # at 5 s, by the slow one, of the weights that it began with
    second = first - ETA * velocity
    np.testing.assert_allclose(trained.weights(0), first, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), second, **CLOSE)  # at 7.5 s the next round begins, without a step


def test_rescaled_asgd_weighs_gradients_by_the_last_step_time_of_their_worker_over_the_mean() -> None:
    """Worker 0 takes 1 s, with its batches of three samples 2 s; it ends at 4 s, and the mean is that of the other."""
    workers = [Worker([batch(0), batch(2, size=3)], step_s=0.5, sample_s=0.5), Worker([batch(1)], step_s=2.5)]
    trained = trained_by_asgd(3, workers, rescale=1)
    first = ZERO - ETA * 1 / 1.75 * gradient(ZERO, batch(0))  # at 1 s; of the other one by the time of its test step
    second = first - ETA * 2.5 / 1.75 * gradient(ZERO, batch(1))  # at 2.5 s
    third = second - ETA * 2 / 2.25 * gradient(first, batch(2, size=3))  # at 3 s
    fourth = third - ETA * 1 / 1.75 * gradient(third, batch(0))  # at 4 s
    fifth = fourth - ETA * gradient(second, batch(1))  # at 5 s
    np.testing.assert_allclose(trained.weights(0), fourth, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), fifth - ETA * gradient(fifth, batch(1)), **CLOSE)


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
    train(
        TransportKind.HUB,
        workers,
        by_flags("ssp", Timed),
        rounds=3,
        config=Config(mode="ssp", learning_rate=ETA, staleness=staleness),
    )
    assert moments == pytest.approx(ends)


def test_a_transfer_takes_latency_and_bytes_over_bandwidth_of_links_that_are_shared() -> None:
    """Two workers, 32 bytes of weights and 8 of vote and weight each way; 40 bytes/s, which the server's link carries
    once."""
    workers = [Worker([batch(rank)], step_s=1.0, link=WorkerLink(40.0, latency_s=0.5)) for rank in range(2)]
    trained = train(
        TransportKind.SUM,
        workers,
        by_flags("sync", learning_rate=ETA),
        rounds=1,
        server_bytes_per_s=40.0,
    )
    # Up: 0.5 s, and 2 s since both send at once; down the same.
    assert trained.trainers[0].measure.elapsed_s == pytest.approx(1.0 + 2 * (0.5 + 2.0))


def test_the_same_run_twice_is_the_same_to_the_bit() -> None:
    def run() -> tuple[bytes, float]:
        workers = [Worker([batch(rank)], step_s=0.3 + 0.2 * rank, link=WorkerLink(1e3, 0.01)) for rank in range(3)]
        trained = trained_by_asgd(7, workers, server_bytes_per_s=1e3)
        return b"".join(trained.weights(rank).tobytes() for rank in range(3)), trained.clock.now()

    assert run() == run()
