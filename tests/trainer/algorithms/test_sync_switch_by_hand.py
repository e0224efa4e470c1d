"""Sync-Switch by hand, with small numbers, in virtual time: phases, learning rates and momentum, stragglers,
and how many exchanges a round takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import CLOSE, ZERO, Worker, batch, gradient, train

from algorithms import TransportKind
from config import Config
from flag_values import parse_schedule
from rates import CONSTANT, Ramp
from trainer.algorithms.sync_switch import PhaseRule, SyncSwitchTrainer, phase_rules
from trainer.command_line import parse
from trainer.datasets.samples import Samples
from trainer.emulation import Slowdown
from trainer.simulation.network import WorkerLink

ETA, MU = 0.5, 0.9

Happened = list[tuple[float, str, str]]  # seconds since training began, kind, text


class Cluster:
    """A run of Sync-Switch.

    Attributes:
        happened, ended_s, pages: by rank, what happened when, when rounds ended, what the state server is told.
    """

    def __init__(
        self,
        order: str,
        steps: tuple[int, ...],
        steps_s: Sequence[float],
        *,
        samples: Sequence[int] | None = None,
        momentum: float = 0.0,
        size: int = 1,  # of a batch, at most
        policy: str = "none",
        link: WorkerLink = WorkerLink(),  # noqa: B008
        trace: dict[int, Slowdown] | None = None,
        rounds: int = 0,
        **more: Any,  # flags
    ) -> None:
        self.happened: list[Happened] = [[] for _ in steps_s]
        happened = self.happened
        phases = {"switch_order": order, "train_steps": steps, "straggler_policy": policy}
        config = Config(mode="sync-switch", learning_rate=ETA, momentum=momentum, **phases, **more)

        class Noted(SyncSwitchTrainer):
            def _add_event(self, kind, text):
                happened[self.membership.rank].append((round(self.measure.elapsed_s, 3), kind.name, text))

        workers = [
            Worker([batch(rank, size)], step_s=step_s, samples=(samples or [1] * len(steps_s))[rank], link=link)
            for rank, step_s in enumerate(steps_s)
        ]
        build = by_flags("sync-switch", Noted)
        trained = train(TransportKind.HUB, workers, build, rounds, trace=trace, config=config)
        self.ended_s, self.pages, self.weights = trained.rounds_ended_s, trained.pages, trained.weights


def test_a_phase_under_bsp_and_one_under_asp_with_momentum_and_unequal_parts() -> None:
    """Steps of 1 s and 2.5 s, two steps a phase: BSP until 5 s; then gradients at 6, 7, 7.5 and 8 s."""
    shares = (1.5, 0.5)
    cluster = Cluster("10", (2, 2), (1.0, 2.5), samples=(3, 1), momentum=MU)

    def weighed(weight: np.ndarray, rank: int) -> np.ndarray:
        return shares[rank] * gradient(weight, batch(rank))

    weight, velocity = ZERO, ZERO
    for _ in range(2):  # eta, and the mean of both
        velocity = MU * velocity + (weighed(weight, 0) + weighed(weight, 1)) / 2
        weight = weight - ETA * velocity
    of_slow = weighed(weight, 1)  # at 7.5 s, of the weights at 5 s
    for _ in range(2):  # eta / N, and the velocity goes on
        velocity = MU * velocity + weighed(weight, 0)
        weight = weight - ETA / 2 * velocity
    of_fast = weighed(weight, 0)  # at 8 s, of the weights at 7 s
    for late in (of_slow, of_fast):
        velocity = MU * velocity + late
        weight = weight - ETA / 2 * velocity
    assert cluster.ended_s == [[2.5, 5.0, 6.0, 7.0, 8.0], [2.5, 5.0, 8.0]]
    for rank in (0, 1):
        np.testing.assert_allclose(cluster.weights(rank), weight, **CLOSE)
        assert cluster.happened[rank] == [(5.0, "switch", "phase 2 of 2: ASP")]


def test_each_phase_has_its_step_size_schedule_momentum_and_batch_size() -> None:
    """As above in time. BSP: two samples a batch; ASP: one, with a momentum that grows to 0.6 over six samples."""
    decay = 0.02
    phases = {
        "phase_lr": (ETA, 0.2),
        "phase_momentum": (str(MU), "0..0.6:6"),
        "phase_lr_schedule": ("constant", "step:2x0.1"),
        "phase_batch_size": (2, 1),
    }
    more = {"weight_decay": decay, "lr_schedule": "step:8x0.5"}  # of all phases
    cluster = Cluster("10", (2, 2), (1.0, 2.5), size=2, **phases, **more)
    weight, velocity = ZERO, ZERO
    for _ in range(2):  # 4 samples, then 8
        both = sum(gradient(weight, batch(rank, 2)) for rank in (0, 1)) / 2
        velocity = MU * velocity + both + 2 * decay * weight
        weight = weight - ETA * velocity

    def alone(weight: np.ndarray, rank: int) -> np.ndarray:
        images, labels = batch(rank, 2)
        return gradient(weight, Samples(images[:1], labels[:1]))

    seen = {0: weight, 1: weight}
    # The schedule of all phases halves the step size behind 8 samples, that of the phase behind two of its own.
    for rank, momentum, factor in ((0, 0.1, 1), (0, 0.2, 1), (1, 0.3, 0.1), (0, 0.4, 0.1)):
        velocity = momentum * velocity + alone(seen[rank], rank) + decay * weight
        weight = seen[rank] = weight - 0.2 * 0.5 * factor * velocity
    assert cluster.ended_s == [[2.5, 5.0, 6.0, 7.0, 8.0], [2.5, 5.0, 8.0]]
    np.testing.assert_allclose(cluster.weights(0), weight, **CLOSE)


def test_steps_that_greedy_takes_from_the_next_phase_have_its_hyper_parameters() -> None:
    """The next phase, under ASP, has a step size near zero: what is left are the 20 steps under BSP, of two samples."""
    phases = {"phase_lr_schedule": ("constant", "warmup:1e12"), "phase_batch_size": (2, 1)}
    slow = {2: Slowdown(6.5, 10.5, 3)}
    cluster = Cluster("10", (20, 10), (1.0, 1.1, 1.2), size=2, policy="greedy", trace=slow, **phases)
    assert [kind for _, kind, _ in cluster.happened[0]] == ["greedy", "greedy", "switch"]
    weight = ZERO
    for _ in range(20):
        weight = weight - ETA / 3 * sum(gradient(weight, batch(rank, 2)) for rank in range(3))
    np.testing.assert_allclose(cluster.weights(0), weight, **CLOSE)


def test_the_flags_say_the_hyper_parameters_of_each_phase() -> None:
    """-l is of the mean of all gradients; --phase-lr is that of an update, which is one gradient under ASP."""
    given = "-m sync-switch -l 0.3 -b 8 --momentum 0.9 --phase-lr 0 0.01 --phase-momentum same 0..0.5:100"
    config = parse([*given.split(), "--phase-batch-size", "0", "4", "--phase-lr-schedule", "constant", "warmup:9"])
    assert phase_rules(config.settings, config.batch_size) == (
        PhaseRule(0.3, Ramp(0.9, 0.9), CONSTANT, 8),
        PhaseRule(0.01, Ramp(0.0, 0.5, 100), parse_schedule("warmup:9"), 4, of_each=True),
    )
    plain = phase_rules(parse(["-m", "sync-switch", "-l", "0.3"]).settings, 64)
    assert plain == (PhaseRule(0.3, Ramp(0.0, 0.0), CONSTANT, 64),) * 2


def test_elastic_goes_on_without_a_straggler_by_the_share_of_the_others_until_the_phase_ends(caplog) -> None:
    caplog.set_level(logging.INFO)
    """Worker 2 takes 4 s a step: five rounds until its throughput is known, then two of 1.1 s without it."""
    cluster = Cluster("10", (7, 2), (1.0, 1.1, 4.0), policy="elastic")
    assert cluster.ended_s[0][:7] == [4.0, 8.0, 12.0, 16.0, 20.0, 21.1, 22.2]
    assert cluster.ended_s[2][:5] == [4.0, 8.0, 12.0, 16.0, 22.2]  # it waits for the end of the phase
    weight = ZERO
    for _ in range(5):
        weight = weight - ETA * sum(gradient(weight, batch(rank)) for rank in range(3)) / 3
    for _ in range(2):
        weight = weight - ETA * 2 / 3 * sum(gradient(weight, batch(rank)) for rank in range(2)) / 2
    # ASP. At 24.4 s as many parts are left as there are other workers: from then on whoever comes waits for the last.
    seen, newest = dict.fromkeys(range(3), weight), weight
    for rank in (0, 1, 0, 1, 0, 2):  # at 23.2, 23.3, 24.2, 24.4, 25.2 and 26.2 s
        newest = seen[rank] = newest - ETA / 3 * gradient(seen[rank], batch(rank))
    for rank in range(3):
        assert cluster.ended_s[rank][-1] == 26.2
        np.testing.assert_allclose(cluster.weights(rank), newest, **CLOSE)
    happened = cluster.happened[2]
    assert [(when, kind) for when, kind, _ in happened] == [(20.0, "elastic"), (22.2, "switch")]
    why = "on without worker(s) 2: worker 2 is a straggler: 0.25 samples/s, the mean is 0.7197 +- 0.334"
    assert happened[0][2] == why
    assert f"warning: the hub says: {why.split(': ', 1)[1]}" in caplog.messages  # on the console, too
    assert cluster.happened[0][0] == (20.0, "elastic", "on without worker(s) 2")
    assert ("TRAIN", why.split(": ", 1)[1]) in [decision for *_, decision in cluster.pages[2].told]


def test_greedy_is_under_asp_while_a_straggler_lasts_and_takes_its_steps_from_the_next_phase() -> None:
    """From 6 s on worker 2 takes 4.2 s for three steps. The median of five shows that after the third, at 18.6 s, and
    that it is over after three more, at 22.2 s. Worker 0 hears of it at 22.6 s and worker 1 at 23 s; then whoever comes
    waits for the last, at 23.6 s."""
    cluster = Cluster("10", (20, 10), (1.0, 1.1, 1.2), policy="greedy", trace={2: Slowdown(6.5, 10.5, 3)})
    acted = [(when, kind, text) for when, kind, text in cluster.happened[0] if kind == "greedy"]
    assert acted == [(18.6, "greedy", "ASP while a straggler lasts"), (23.6, "greedy", "back to BSP")]
    assert sum(map(len, cluster.ended_s)) == 3 * (20 + 10)
    (switched,) = (when for when, kind, _ in cluster.happened[2] if kind == "switch")
    assert switched == pytest.approx(23.6 + 12 * 1.2)  # 8 of 20 steps were done; those under ASP are of the next phase
    assert sum(when > switched for ended_s in cluster.ended_s for when in ended_s) == 3 * 10 - 13
    for rank in range(3):
        np.testing.assert_array_equal(cluster.weights(rank), cluster.weights(0))


LATENCY_S = 0.01


@pytest.mark.parametrize(("order", "slow_s"), [("0", 1.0), ("1", 2.5)], ids=["ASP", "BSP"])
def test_a_round_of_the_slowest_is_a_step_and_a_push_and_a_pull_of_everything(order: str, slow_s: float) -> None:
    """Each takes one latency. Under BSP the others have its pace."""
    cluster = Cluster(order, (100,), (1.0, slow_s), link=WorkerLink(latency_s=LATENCY_S), rounds=5)
    exchanges = np.diff([0.0, *cluster.ended_s[1]]) - slow_s
    np.testing.assert_allclose(exchanges / LATENCY_S, [2] * 5, atol=1e-6)
    if order == "1":
        assert cluster.ended_s[0] == cluster.ended_s[1]
        np.testing.assert_array_equal(cluster.weights(0), cluster.weights(1))


def test_the_page_is_told_of_each_step_under_bsp_and_now_and_then_under_asp() -> None:
    cluster = Cluster("10", (2, 20), (0.3, 0.5))
    told = cluster.pages[0].told
    in_bsp = [(round_, steps) for round_, steps, *_, decision in told if decision is not None]
    assert in_bsp == [(1, 1), (2, 1)]
    assert len([1 for *_, decision in told if decision is None]) < len(cluster.ended_s[0]) / 2
    assert [page.left for page in cluster.pages] == [(len(ended_s),) for ended_s in cluster.ended_s]
