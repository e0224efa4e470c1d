"""Every algorithm's update by hand, with small numbers: the real trainers in the memory of this process."""

from __future__ import annotations

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import CLOSE, ZERO, StateServer, Trained, Worker, after_steps, batch, gradient, normalised, train

from algorithm_row import Averaging
from algorithms import TransportKind
from config import Config
from flag_values import parse_schedule
from trainer.algorithms.averaging import ModelAveragingTrainer
from trainer.steps import PLAIN, Rule

ETA = 0.5


@pytest.mark.parametrize("samples", [(1, 1), (3, 1)], ids=["equal", "unequal"])
def test_ssgd_steps_along_the_sum_of_the_gradients_weighed_by_the_samples_that_workers_hold(samples) -> None:
    workers = [Worker([batch(rank)], samples=count) for rank, count in enumerate(samples)]
    trained = train(TransportKind.SUM, workers, by_flags("sync", learning_rate=ETA), rounds=2)
    expected = ZERO
    for _ in range(2):
        both = [2 * count / sum(samples) * gradient(expected, batch(rank)) for rank, count in enumerate(samples)]
        expected = expected - ETA / 2 * sum(both)
    trained.assert_all_have(expected)


@pytest.mark.parametrize(
    ("samples", "rate", "beta", "nesterov"),
    [((1, 1, 1), 1.0, 0.0, 0), ((5, 4, 1), 0.3, 0.0, 1), ((5, 4, 1), 0.3, 0.6, 0), ((5, 4, 1), 0.3, 0.6, 1)],
    ids=["plain mean", "weighed", "heavy ball", "Nesterov"],
)
def test_the_outer_optimiser_steps_along_the_weighed_mean_of_the_updates(samples, rate, beta, nesterov) -> None:
    """x' the weighed mean, u <- beta u + (x - x'); x <- x - eps u, or x <- x - eps (x - x' + beta u); three rounds of
    two local steps each."""
    workers = [Worker([batch(rank), batch(rank + 1)], samples=count) for rank, count in enumerate(samples)]
    flags = {"sync_every": 2, "outer_momentum": beta, "outer_nesterov": nesterov}
    build = by_flags("local-sgd", local_lr=ETA, global_lr=rate, **flags)
    trained = train(TransportKind.SUM, workers, build, rounds=3)
    expected, velocity = ZERO, ZERO
    for _ in range(3):
        models = [after_steps(expected, rank, rank + 1, eta=ETA) for rank in range(3)]
        mean = sum(count / sum(samples) * model for count, model in zip(samples, models, strict=True))
        velocity = beta * velocity + expected - mean
        expected = expected - rate * (expected - mean + beta * velocity if nesterov else velocity)
    trained.assert_all_have(expected)


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


@pytest.mark.parametrize(
    ("rho", "decay", "schedule", "outer"),
    [
        *((0.0, 0.0, "constant", outer) for outer in (0.0, 0.6)),
        *((rho, decay, "constant", 0.0) for rho in (0.5, 0.9) for decay in (0.0, 0.2)),
        *((0.9, 0.2, schedule, 0.6) for schedule in ("warmup:4", "step:6,15x0.1")),
    ],
)
def test_fednova_divides_by_the_norm_of_a_k_and_begins_each_round_without_velocity(rho, decay, schedule, outer) -> None:
    """x' = x + tau_eff sum_k p_k (w_k - x) / |a_k|, tau_eff = sum_k p_k |a_k|; a worker without a step counts as 0.

    w_k - x = -eta * sum_j a_kj g_kj with a_kj = sum_(s >= j) f_s rho^(s - j), f_s the schedule's factors.
    """
    local, rate = [(7, 1, 2), (3, 2, 0), (1, 1, 4)], 0.3
    rule = Rule(momentum=rho, weight_decay=decay, schedule=parse_schedule(schedule))
    trained = averaged(local, rate, outer, normalise=True, rule=rule)
    expected, outer_velocity, seen = ZERO, ZERO, 0
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
        update = tau_eff * sum(share * direction for share, direction in zip(SHARES, directions, strict=True))
        outer_velocity = outer * outer_velocity + update
        expected = expected + rate * (update + outer * outer_velocity)
        seen += sum(steps)
    trained.assert_all_have(expected)


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


def test_esync_adds_the_mean_of_what_all_have_done_and_nothing_of_a_step_that_was_given_up() -> None:
    """Four steps of the fast workers, and one of the slow one. A fifth is under way when the answer to it comes."""
    server, rate = StateServer("journal", 0.3), 0.7
    build = by_flags("esync", local_lr=ETA, global_lr=rate, query="non-blocking")
    workers = [Worker([batch(rank)], step_s=step_s) for rank, step_s in enumerate((1.0, 1.0, 1.0, 4.8))]
    trained = train(TransportKind.SUM, workers, build, rounds=2, state_server=server)
    expected = ZERO
    for _ in range(2):
        updates = [after_steps(expected, *[rank] * (1 if rank == 3 else 4), eta=ETA) - expected for rank in range(4)]
        expected = expected + rate * sum(updates) / 4
    trained.assert_all_have(expected, rtol=1e-4, atol=1e-5)
    job = server.running.handlers.jobs.latest
    assert job is not None and job.ended is not None  # all have taken leave


def test_asgd_applies_each_gradient_to_the_weights_of_its_moment() -> None:
    """Steps of 1 s and 2.5 s: the slow worker's gradient is of the initial weights, and arrives third."""
    workers = [Worker([batch(0)], step_s=1.0), Worker([batch(1)], step_s=2.5)]
    config = Config(mode="async", learning_rate=ETA, batch_size=1)
    trained = train(TransportKind.HUB, workers, by_flags("async"), rounds=2, config=config)
    first = ZERO - ETA * gradient(ZERO, batch(0))  # at 1 s
    second = first - ETA * gradient(first, batch(0))  # at 2 s
    third = second - ETA * gradient(ZERO, batch(1))  # at 2.5 s
    fourth = third - ETA * gradient(third, batch(1))  # at 5 s
    np.testing.assert_allclose(trained.weights(0), second, **CLOSE)
    np.testing.assert_allclose(trained.weights(1), fourth, **CLOSE)
