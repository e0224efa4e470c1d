"""Backup workers by hand, with small numbers, in virtual time: whose gradients count, what becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from hypothesis import given, strategies as st
from memory_cluster import ZERO, Trained, Worker, batch, dense, gradient, normalised, train

from algorithms import TransportKind
from config import Config
from flag_values import parse_schedule
from trainer.context import Context
from trainer.emulation import Slowdown
from trainer.hub.server_part import KEPT, WANTS_STOP, Served, serve
from trainer.simulation.network import WorkerLink
from trainer.steps import Rule
from trainer.trainer import Trainer

ETA = 0.5
WITH_ALL = {"momentum": 0.5, "weight_decay": 0.01, "batch_size": 4, "lr_schedule": "warmup:30"}
CLOSE = {"rtol": 1e-3, "atol": 1e-5}  # float32, of gradients that nearly cancel


def run(
    steps_s: Sequence[float],
    rounds: int,
    *,
    samples: Sequence[int] = (),
    network: Callable[[], Any] = dense,
    latency_s: float = 0.0,
    trace: dict[int, Slowdown] | None = None,
    stop_at_s: dict[int, float] | None = None,
) -> Trained:
    """With one backup worker."""

    def build(context: Context) -> Trainer:
        trainer = by_flags("backup")(context)
        mine = trainer.membership.rank
        if stop_at_s and mine in stop_at_s:
            context.run.stop_requested = lambda: trainer.measure.elapsed_s >= stop_at_s[mine]
        return trainer

    counts = samples or [1] * len(steps_s)
    workers = [
        Worker([batch(rank, 4)], step_s=step_s, samples=counts[rank], link=WorkerLink(latency_s=latency_s))
        for rank, step_s in enumerate(steps_s)
    ]
    config = Config(mode="backup", learning_rate=ETA, backup=1)
    return train(TransportKind.HUB, workers, build, rounds, network, trace=trace, config=config)


def steps_lost(trained: Trained) -> list[int]:
    """By rank."""
    return [sum(record.get("steps_lost", 0) for record in records) for records in trained.records]


def mean_step(weight: np.ndarray, ranks: Sequence[int], samples: Sequence[int] = (1, 1, 1)) -> np.ndarray:
    """The next version out of the gradients of these workers; each has one batch."""
    weighed = [len(samples) * samples[rank] / sum(samples) * gradient(weight, batch(rank, 4)) for rank in ranks]
    return weight - ETA * sum(weighed) / len(ranks)


@pytest.mark.parametrize("samples", [(1, 1, 1), (5, 3, 1)], ids=["equal", "unequal"])
def test_the_slow_workers_gradient_never_counts_where_it_never_comes_in_time(samples) -> None:
    trained = run((1.0, 1.1, 2.5), rounds=6, samples=samples)
    assert trained.rounds_ended_s == [[1.1, 2.2, 3.3, 4.4, 5.5, 6.6]] * 2 + [[2.5, 5.0, 7.5]]
    assert steps_lost(trained) == [0, 0, 3]
    weight = ZERO
    for _ in range(6):
        weight = mean_step(weight, (0, 1), samples)
    trained.assert_all_have(weight, **CLOSE)  # who is late has the newest version, too


def test_whoever_is_the_last_is_dropped_and_begins_anew_on_the_newest_version() -> None:
    """Worker 0 takes 3.9 s for its second step, of version 1: it is late, and in time again with the third. Worker 2 is
    late with its first and its last, and in time between."""
    trained = run((1.0, 1.0, 1.5), rounds=4, trace={0: Slowdown(1.5, 1.0, 2.9)})
    assert trained.rounds_ended_s == [[1.0, 4.9, 5.9], [1.0, 3.0, 4.5, 5.9], [1.5, 3.0, 4.5, 6.0]]
    assert steps_lost(trained) == [1, 0, 2]
    weight = ZERO
    for ranks in ((0, 1), (1, 2), (1, 2), (0, 1)):
        weight = mean_step(weight, ranks)
    trained.assert_all_have(weight, **CLOSE)


@pytest.mark.parametrize("flags", [{}, WITH_ALL], ids=["plain", "momentum, decay and schedule"])
@pytest.mark.parametrize("network", [dense, normalised])
@pytest.mark.parametrize("samples", [(1, 1, 1), (5, 3, 1)], ids=["equal", "unequal"])
def test_without_backup_workers_it_is_ssgd(network, samples, flags) -> None:
    workers = [
        Worker([batch(rank, 4), batch(rank + 1, 4)], step_s=1.0 + rank, samples=count)
        for rank, count in enumerate(samples)
    ]

    config = Config(mode="backup", learning_rate=ETA, backup=0, **flags)
    schedule = parse_schedule(config.settings.lr_schedule)
    rule = Rule(None, config.settings.momentum, config.settings.weight_decay, config.batch_size, schedule)
    here = train(TransportKind.HUB, workers, by_flags("backup"), 4, network, config=config)
    ssgd = train(
        TransportKind.SUM,
        workers,
        by_flags("sync", learning_rate=ETA),
        4,
        network,
        rule=rule,
    )
    for ours, its in zip(here.trainers, ssgd.trainers, strict=True):
        assert (ours.rounds, ours.measure.elapsed_s) == (its.rounds, its.measure.elapsed_s) == (4, 12.0)
        for array, other in zip(ours.parameters.model(), its.parameters.model(), strict=True):
            np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-7)


def test_batchnorms_statistics_are_the_mean_over_those_that_counted() -> None:
    """Running mean 0.5 * old + 0.5 * the batch's at each worker; of samples 5 and 3, since the third is late."""
    trained = run((1.0, 1.0, 2.5), rounds=1, samples=(5, 3, 1), network=normalised)
    means = [0.5 * (batch(rank, 4).images / 255).mean() for rank in (0, 1)]
    for trainer in trained.trainers:
        running_mean = trainer.parameters.statistics()[0][0]
        assert running_mean == pytest.approx((5 * means[0] + 3 * means[1]) / 8, rel=1e-5)


def test_a_stop_request_of_one_that_waits_ends_the_job_with_the_version_that_is_under_way() -> None:
    """It comes at 1.5 s and is told at 2 s, when the wait has news; version 1 has three gradients at 4 s."""
    trained = run((1.0, 2.0, 4.0, 10.0), rounds=0, stop_at_s={0: 1.5})
    assert trained.rounds_ended_s == [[4.0]] * 3 + [[10.0]]


def test_a_stop_request_of_one_that_is_late_ends_the_job_with_the_next_version() -> None:
    trained = run((1.0, 1.0, 2.5), rounds=0, stop_at_s={2: 2.0})
    assert trained.rounds_ended_s == [[1.0, 2.0, 3.0]] * 2 + [[2.5, 5.0]]


LATENCY_S = 0.01


def test_who_is_late_hears_of_it_and_has_the_newest_version_after_a_push_and_a_pull() -> None:
    """Each takes one latency."""
    trained = run((1.0, 1.0, 2.5), rounds=14, latency_s=LATENCY_S)
    exchanges = np.diff([0.0, *trained.rounds_ended_s[2]]) - 2.5
    np.testing.assert_allclose(exchanges / LATENCY_S, [2] * 6, atol=1e-6)


# ------------------------------------------------------------------------------------------------ the versions


@given(st.integers(1, 6), st.data())
def test_each_version_takes_as_many_as_are_no_spare_and_every_gradient_counts_or_is_dropped(num_workers, data) -> None:
    num_backup = data.draw(st.integers(0, num_workers - 1))
    config = Config(mode="backup", backup=num_backup)
    server = serve(Served(config, num_workers, (False,), (), [np.zeros(1, np.float32)], {}, lambda: 0.0))
    version, held, dropped = 0, [0] * num_workers, [0] * num_workers
    free, late_since = set(range(num_workers)), 0
    for _ in range(data.draw(st.integers(0, 40))):
        rank = data.draw(st.sampled_from(sorted(free)))  # never empty: who waits are fewer than are needed
        was_late, before, batches = held[rank] < version, version, server.state()["batches"]
        answers = server.act(rank, {WANTS_STOP: False}, [np.zeros(1, np.float32)])
        free = (free - {rank}) | {*answers}
        version, num_applied = server.state()["version"], server.state()["batches"] - batches
        assert was_late == ([*answers] == [rank] and not num_applied)
        assert version == before + bool(num_applied)
        assert num_applied in (0, num_workers - num_backup)
        assert len(answers) == num_applied + was_late
        late_since = 0 if num_applied else late_since + was_late
        assert late_since <= num_backup
        dropped[rank] += was_late
        for other, answer in answers.items():
            held[other] = answer.message[KEPT]["version"]
            assert (held[other], answer.message["dropped"]) == (version, dropped[other])
