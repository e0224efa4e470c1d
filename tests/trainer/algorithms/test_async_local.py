"""Asynchronous local SGD by hand, with small numbers: delayed Nesterov momentum, local steps by speed, and the real
trainers in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import CLOSE, ZERO, Trained, Worker, batch, dense, gradient, normalised, train

from algorithms import TransportKind
from config import Config
from trainer.algorithms.async_local import dynamic_steps
from trainer.algorithms.outer_momentum import DelayedNesterov

ETA, EPS, BETA = 0.5, 0.3, 0.6


# --------------------------------------------------------------------------------------------------- on paper


def applied(weight: np.ndarray, outer: DelayedNesterov, *updates: tuple[float, int]) -> list[float]:
    """The weight after each update, of pairs (d, P)."""
    found = []
    for update, period in updates:
        outer.apply([weight], [np.float32([update])], period)
        found.append(weight.item())
    return found


def begun(weight: np.ndarray, saved: Mapping[str, Any] | None = None) -> DelayedNesterov:
    """eps = beta = 1/2."""
    return DelayedNesterov(0.5, 0.5, [weight], saved or {})


def test_the_momentum_comes_with_each_pth_update_and_is_of_all_p() -> None:
    """m = (4 + 2) / 2 = 3 with the second; m = 3 / 2 + (2 - 6) / 2 = -0.5 with the fourth, here after a resume."""
    weight = np.float32([10.0])
    outer = begun(weight)
    assert applied(weight, outer, (4, 2), (2, 2)) == [11.0, 11.5 + 0.75]
    assert applied(weight, outer, (2, 2)) == [12.75]
    outer = begun(weight, outer.state())
    assert applied(weight, outer, (-6, 2)) == [11.25 - 0.125]


def test_a_period_of_one_is_nesterovs_momentum_in_each_update() -> None:
    """m = 4, then 4 / 2 + 2 = 4: 10 + (4 + 2) / 2 = 13, 13 + (2 + 2) / 2 = 15."""
    weight = np.float32([10.0])
    assert applied(weight, begun(weight), (4, 1), (2, 1)) == [13.0, 15.0]


def test_where_a_worker_is_lost_the_mean_of_what_is_there_goes_into_the_momentum() -> None:
    """Two of three updates are there when P becomes 2: m = (3 + 6 + 3) / 3 = 4."""
    weight = np.float32([10.0])
    assert applied(weight, begun(weight), (3, 3), (6, 3), (3, 2)) == pytest.approx([10.5, 11.5, 12.25 + 1.0])


@pytest.mark.parametrize(
    ("most", "times_s", "expected"),
    [
        (8, (0.02, 0.04, 0.2), (8, 4, 1)),  # 8 * 0.02 / 0.2 = 0.8
        (8, (0.03, 0.04, 0.05), (8, 6, 4)),  # 4.8
        (8, (math.inf, 0.04, 0.2), (1, 8, 1)),  # not known yet, or lost: 8 * 0.04 / 0.2 = 1.6
        (8, (math.inf, math.inf, 0.2), (1, 1, 8)),
        (9, (0.1, 0.3, 0.0), (1, 1, 9)),
        (9, (0.1, 3 * 0.1, 1.0), (9, 3, 1)),  # 3 * 0.1 is more than 0.3, and 9 of its thirds are less than 3
        (1, (0.1, 0.3, 0.3), (1, 1, 1)),
    ],
)
def test_local_steps_are_in_proportion_to_the_speed(
    most: int, times_s: Sequence[float], expected: tuple[int, ...]
) -> None:
    assert tuple(dynamic_steps(most, rank, times_s) for rank in range(len(times_s))) == expected


# -------------------------------------------------------------------------------------------- in virtual time


def run(
    dylu: bool = True,
    delay: bool = True,
    rounds: int = 3,
    killed: Mapping[int, int] | None = None,
    network: Callable[[], Any] = dense,
) -> Trained:
    """Two workers of 1 s and 2.4 s a step, with 3 and 1 of 4 samples; H = 4."""
    flags = {
        "local_lr": ETA,
        "global_lr": EPS,
        "outer_momentum": BETA,
        "sync_every": 4,
        "dylu": dylu,
    }
    workers = [Worker([batch(0)], step_s=1.0, samples=3), Worker([batch(1)], step_s=2.4)]
    config = Config(mode="async-local", delay_momentum=delay, **flags)
    return train(TransportKind.HUB, workers, by_flags("async-local"), rounds, network, killed=killed, config=config)


def after(uploads: Sequence[tuple[int, int, float, int]]) -> list[np.ndarray]:
    """The global model after each upload, of (rank, local steps, weight, P)."""
    weight, momentum, buffer, count = ZERO, ZERO, ZERO, 0
    had, models = [ZERO, ZERO], []
    for rank, steps, factor, period in uploads:
        own = had[rank]
        for _ in range(steps):
            own = own - ETA * gradient(own, batch(rank))
        pseudo_gradient = -factor * (own - had[rank])
        buffer, count = buffer + pseudo_gradient, count + 1
        if count >= period:
            momentum = BETA * momentum + buffer / count
            weight = weight - EPS * (BETA * momentum + pseudo_gradient / period)
            buffer, count = ZERO, 0
        else:
            weight = weight - EPS * pseudo_gradient / period
        had[rank] = weight
        models.append(weight)
    return models


@pytest.mark.parametrize("period", [2, 1], ids=["delayed", "at once"])
@pytest.mark.parametrize("dylu", [True, False], ids=["by speed", "all alike"])
def test_each_upload_is_applied_at_once_and_no_worker_waits(period: int, dylu: bool) -> None:
    """By speed: uploads at 1, 5, 9 s, and at 2.4, 4.8, 7.2 s; all alike: at 4, 8, 12 s, and at 9.6, 19.2, 28.8 s."""
    trained = run(dylu, delay=period == 2)
    ranks = (0, 1, 1, 0, 1, 0) if dylu else (0, 0, 1, 0, 1, 1)
    steps = (1, 1, 1, 4, 1, 4) if dylu else (4,) * 6
    models = after([(rank, count, (1.5, 0.5)[rank], period) for rank, count in zip(ranks, steps, strict=True)])
    lasts = dict(zip(ranks, models, strict=True))
    for rank in (0, 1):
        np.testing.assert_allclose(trained.weights(rank), lasts[rank], **CLOSE)
    begun_s = 3 * 2.4  # three test steps of the slower one
    ended_s = [trained.ended_s[rank] - begun_s for rank in (0, 1)]
    assert ended_s == pytest.approx([9.0, 7.2] if dylu else [12.0, 28.8])


def test_without_a_lost_worker_each_update_counts_whole_and_the_speeds_are_those_of_the_rest() -> None:
    """The slow one's upload at 2.4 s is its last; the fast one hears of it with its next upload."""
    trained = run(rounds=4, killed={1: 1})
    models = after([(0, 1, 1.5, 2), (1, 1, 0.5, 2), (0, 4, 1.5, 1), (0, 4, 1.0, 1), (0, 4, 1.0, 1)])
    np.testing.assert_allclose(trained.weights(0), models[-1], **CLOSE)


def test_the_fastest_that_is_lost_slows_no_other_down() -> None:
    trained = run(rounds=4, killed={0: 1})
    # The loss comes before the slow one's first upload: it is the fastest then, and takes 4 steps in a round.
    assert trained.ended_s[1] == pytest.approx(2.4 * (3 + 1 + 3 * 4))


def test_batchnorms_statistics_are_moved_by_each_workers_part_without_momentum() -> None:
    """Running mean 0.5 * old + 0.5 * batch's at the worker; weighed by 1.5 and 0.5, over two workers."""
    trained = run(rounds=1, network=normalised)
    moved = [0.5 * (batch(rank).images / 255).mean() * part / 2 for rank, part in enumerate((1.5, 0.5))]
    for trainer, expected in zip(trained.trainers, (moved[0], sum(moved)), strict=True):
        assert trainer.parameters.statistics()[0][0] == pytest.approx(expected, rel=1e-5)
