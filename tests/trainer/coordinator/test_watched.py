"""Workers in whose mode no rule of the state server decides tell it what they do, and train as without it: in virtual
time."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import StateServer, Worker, batch, train

from algorithms import TransportKind
from config import Config
from trainer.simulation.in_process import InProcessServer

ROUNDS = 6
MODES = {
    "sync": (TransportKind.SUM, by_flags("sync", learning_rate=0.5)),
    "local-sgd": (
        TransportKind.SUM,
        by_flags("local-sgd", local_lr=0.5, global_lr=1.0, sync_every=2),
    ),
    "async": (TransportKind.HUB, by_flags("async")),
}


def trained(mode, state_server=None):
    kind, build = MODES[mode]
    workers = [Worker([batch(0)], step_s=1.0), Worker([batch(1)], step_s=3.0)]
    config = Config(mode=mode, learning_rate=0.5, batch_size=1)
    return train(kind, workers, build, ROUNDS, state_server=state_server, config=config)


@pytest.mark.parametrize("mode", MODES)
def test_the_page_has_all_and_the_job_does_not_notice(mode):
    page = StateServer("watched", notice_rest_s=0.5)
    watched, alone = trained(mode, page), trained(mode)
    for rank in (0, 1):
        np.testing.assert_array_equal(watched.weights(rank), alone.weights(rank))
    assert watched.ended_s == alone.ended_s
    job = page.running.handlers.jobs.latest
    steps = ROUNDS * (2 if mode == "local-sgd" else 1)
    assert [(row.round, row.steps, row.step_time) for row in job.rows] == [(ROUNDS, steps, 1), (ROUNDS, steps, 3)]
    assert [row.computing for row in job.rows] == [steps, 3 * steps]
    assert job.ended is not None and not job.is_cut_off
    losses = [point.value for point in job.losses.points]
    assert len(losses) > 2 and losses[0] > losses[-1] > 0


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_is_away_costs_a_line_and_a_try_at_the_end(mode, monkeypatch, caplog):
    begin = InProcessServer.restart

    def restart(self):
        begin(self)
        self.is_away = True

    monkeypatch.setattr(InProcessServer, "restart", restart)
    with caplog.at_level(logging.WARNING):
        away, alone = trained(mode, StateServer("watched", round_trip_s=2.0)), trained(mode)
    np.testing.assert_array_equal(away.weights(), alone.weights())
    for rank, ended_s in alone.ended_s.items():
        assert ended_s <= away.ended_s[rank] <= ended_s + 2  # for one more try, at the very end
    assert [record.message.partition(" (")[0] for record in caplog.records] == [
        "the state server at this process does not answer"
    ]
