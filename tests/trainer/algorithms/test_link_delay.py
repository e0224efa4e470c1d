"""An emulated slow link, in every algorithm that exchanges anything: real trainers of one worker on MXNet's local
kvstore. Nothing sleeps here: what would be waited for is written down."""

from __future__ import annotations

import time

import numpy as np
import pytest
from contexts import context_of
from equivalence_worker import OneStepARound
from page import Page
from ready import endless, ready

import models
from trainer.algorithms.async_local import AsyncLocalTrainer
from trainer.algorithms.async_local_optimizer import LocalSteps
from trainer.algorithms.asynchronous import AsyncTrainer
from trainer.algorithms.dcasgd import PerWorkerDCASGD
from trainer.algorithms.delayed_nesterov import DelayedNesterov
from trainer.algorithms.esync import ESyncTrainer
from trainer.algorithms.local_sgd import LocalSGDTrainer
from trainer.algorithms.ssp import SSPTrainer
from trainer.algorithms.sync import SyncTrainer
from trainer.algorithms.sync_switch import SyncSwitchTrainer
from trainer.algorithms.sync_switch_optimizer import SyncSwitchSettings
from trainer.algorithms.wbsp import WBSPTrainer
from trainer.coordinator.queries import Queries
from trainer.datasets.samples import Samples
from trainer.emulation import COMPUTE, NETWORK, Slowdown
from trainer.engine import mx
from trainer.loop import Loop
from trainer.progress import Limits
from trainer.run_logs.measure import GLOBAL_AGGREGATE, GLOBAL_UPDATE
from trainer.transport.kvstore import KVStoreTransport

ROUNDS = 3
LINK_S, STEP_S = 0.25, 0.75  # that the link and a step take longer
TRACE = (Slowdown(0, 1000, LINK_S, NETWORK), Slowdown(0, 1000, STEP_S, COMPUTE))


class StateServer(OneStepARound, Page):
    """Is asked, or told."""


def a_context(state, trace=TRACE):
    generator = np.random.default_rng(0)
    samples = Samples(
        generator.integers(0, 255, (64, 1, 28, 28), dtype=np.uint8), generator.integers(0, 10, 64).astype(np.int32)
    )
    return context_of(
        network=models.build("lenet", (1, 28, 28), 10, mx.cpu(), 0),
        batches=endless(samples, np.arange(64), 8, seed=(0, 0)),
        warm_up_batch=ready(Samples(*(part[:8] for part in samples))),
        limits=Limits(ROUNDS),
        transport=KVStoreTransport(mx.kv.create("local")),
        num_servers=1,
        state_server=state,
        trace=trace,
    )


def sync_switch(context, tmp_path):
    settings = SyncSwitchSettings("10", (2, 1), 0.001, 0.0, "none")
    return SyncSwitchTrainer(context, settings)


def async_local(context, tmp_path):
    return AsyncLocalTrainer(context, 0.001, DelayedNesterov(0.7, 0.9), LocalSteps(1, True, 1))


def esync(context, tmp_path):
    return ESyncTrainer(context, 0.001, 1.0, Queries(context.state, context.run.clock, waits=True))


TRAINERS = {
    "sync": lambda context, tmp_path: SyncTrainer(context, 0.001),
    "async": lambda context, tmp_path: AsyncTrainer(context, 0.001),
    "dcasgd": lambda context, tmp_path: AsyncTrainer(context, 0.001, PerWorkerDCASGD, compensation=0.04),
    "ssp": lambda context, tmp_path: SSPTrainer(context, 0.001, 3),
    "local-sgd": lambda context, tmp_path: LocalSGDTrainer(context, 0.001, 1.0, sync_every=2),
    "esync": esync,
    "wbsp": lambda context, tmp_path: WBSPTrainer(context, 0.001, overlap=False),
    "async-local": async_local,
    "sync-switch": sync_switch,
}


@pytest.mark.parametrize("mode", TRAINERS)
def test_each_push_and_each_pull_takes_longer_and_counts_as_aggregation(mode, tmp_path, monkeypatch):
    slept = []
    trainer = TRAINERS[mode](a_context(StateServer()), tmp_path)

    def sleep(seconds):
        if trainer.rounds:  # training has begun
            slept.append((seconds, trainer.measure._stage))

    monkeypatch.setattr(time, "sleep", sleep)
    Loop(trainer).run(lambda: tmp_path)
    over_the_link = [stage for seconds, stage in slept if seconds == LINK_S]
    assert len(over_the_link) == 2 * ROUNDS
    assert set(over_the_link) <= {GLOBAL_AGGREGATE, GLOBAL_UPDATE}
    steps = ROUNDS * 2 if mode == "local-sgd" else ROUNDS
    assert [seconds for seconds, _ in slept if seconds == STEP_S] == [STEP_S] * steps


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_over_a_slow_link_nobody_sees_a_push_before_it_has_travelled(mode, tmp_path, monkeypatch):
    happened = []
    trainer = TRAINERS[mode](a_context(StateServer()), tmp_path)
    name = "begin_sum" if mode == "sync" else "push"
    push = getattr(trainer.exchange, name)
    monkeypatch.setattr(trainer.exchange, name, lambda arrays: (happened.append("push"), push(arrays)))
    monkeypatch.setattr(time, "sleep", lambda seconds: happened.append("link") if seconds == LINK_S else None)
    Loop(trainer).run(lambda: tmp_path)
    assert happened == ["link", "push", "link"] * ROUNDS


@pytest.mark.parametrize("mode", ["wbsp", "sync-switch"])
def test_the_state_server_is_told_of_the_slow_link(mode, tmp_path):
    """Here the link is slow for real, by little, and the steps are not."""
    state = StateServer()
    Loop(TRAINERS[mode](a_context(state, (Slowdown(0, 1000, 0.04, NETWORK),)), tmp_path)).run(lambda: tmp_path)
    assert state.told[-1][3] >= 2 * 0.04
