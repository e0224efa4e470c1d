"""Numbers that are not finite stay with the worker that has them: what is skipped, what counts then, and when the job
ends. Virtual time; the gradients of a worker are spoilt on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import CLOSE, StateServer, Trained, Worker, batch, gradient, normalised, train
from one_worker import Batches, a_context, some_batch
from page import Page
from spoilt import ETA, MOST, ZERO, Spoilt, mean_of_local_steps, spoil, weighed

from algorithms import TransportKind
from config import Config
from esync.progress import Limits
from trainer.algorithms.asynchronous import AsyncTrainer
from trainer.algorithms.local import LocalTrainer
from trainer.algorithms.local_sgd import LocalSGDTrainer
from trainer.algorithms.sync import SyncTrainer
from trainer.context import Context
from trainer.loop import Loop
from trainer.nan_guard import BadSteps, first_not_finite
from trainer.trainer import Trainer
from utils import DIVERGED, EXIT_BUG, JobError

# ------------------------------------------------------------------------------------------------ pure parts


def test_bad_steps_in_a_row_end_the_job_with_worker_step_and_layer() -> None:
    bad = BadSteps(3)
    found = "worker 2 (cpu on host b), round 1, step 1: the gradient of conv0_weight is not finite"
    assert bad.bad(found) == f"{found}; skipped, as 1 so far"
    bad.good()
    bad.bad("")
    bad.bad("")
    with pytest.raises(JobError, match=f"{DIVERGED}: worker 2, round 4, step 7: the gradient of dense0_bias") as caught:
        bad.bad("worker 2, round 4, step 7: the gradient of dense0_bias")
    assert "3 steps in a row" in str(caught.value) and "--max-bad-steps" in str(caught.value)
    assert caught.value.exit_code == EXIT_BUG
    assert bad.total == 4


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_the_first_array_that_is_not_finite_is_found_wherever_the_number_is(bad: float) -> None:
    arrays = [np.ones(shape, np.float32) for shape in ((3,), (2, 5), (4, 1, 2))]
    assert first_not_finite(arrays) is None
    arrays[2][3, 0, 1] = bad
    assert first_not_finite(arrays) == 2
    arrays[1][1, 4] = bad
    assert first_not_finite(arrays) == 1


def test_a_large_number_is_finite_although_its_square_is_not() -> None:
    assert first_not_finite([np.full(4, 3e38, "f4"), np.full(2, -1e30, "f4")]) is None


# --------------------------------------------------------------------------------- what counts in its place


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_ssgd_steps_along_the_mean_of_the_others_samples(what: float) -> None:
    """Parts of 5, 4 and 1 samples; that of worker 1 is missing in round 2 of 3, and every other sample counts alike."""
    workers = [Worker([batch(rank)], samples=count) for rank, count in enumerate((5, 4, 1))]
    build = spoil(by_flags("sync", learning_rate=ETA), {2}, what=what)
    trained = train(TransportKind.SUM, workers, build, rounds=3)
    expected = ZERO
    for there in ({0: 5, 1: 4, 2: 1}, {0: 5, 2: 1}, {0: 5, 1: 4, 2: 1}):
        expected = expected - ETA * sum(weighed(expected, there, 3, 10)) / (3 * sum(there.values()) / 10)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, **CLOSE)
        np.testing.assert_array_equal(trained.weights(rank), trained.weights(0))


def test_where_nobodys_gradient_is_good_nothing_changes() -> None:
    def build(context: Context) -> SyncTrainer:
        context.run.max_bad_steps = MOST
        context.task.passes = lambda trainer: Spoilt(context.task.network, {2}, float("nan"))
        return by_flags("sync", learning_rate=ETA)(context)

    workers = [Worker([batch(rank)]) for rank in range(2)]
    three, two = (train(TransportKind.SUM, workers, build, rounds).weights() for rounds in (2, 1))
    np.testing.assert_array_equal(three, two)
    assert np.any(two)


def test_model_averaging_is_the_mean_of_the_others_updates_where_a_worker_has_no_good_step() -> None:
    """Parts of 5, 4 and 1; worker 1 has one bad step of two in round 1, which it skips, and two in round 2."""
    workers = [Worker([batch(rank), batch(rank + 1)], samples=count) for rank, count in enumerate((5, 4, 1))]
    build = spoil(by_flags("local-sgd", local_lr=ETA, global_lr=1.0, sync_every=2), {1, 3, 4})
    trained = train(TransportKind.SUM, workers, build, rounds=2)
    expected = ZERO
    for shares, batches_of_1 in (({0: 0.5, 1: 0.4, 2: 0.1}, [2]), ({0: 5 / 6, 2: 1 / 6}, [])):
        begin = expected
        for rank, share in shares.items():
            own = begin
            for number in batches_of_1 if rank == 1 else (rank, rank + 1):
                own = own - ETA * gradient(own, batch(number))
            expected = expected + share * (own - begin)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, **CLOSE)


class Overflows(LocalSGDTrainer):
    """Worker 1's own weights overflow in its last local step of round 1."""

    def ready(self) -> bool:
        if self.membership.rank == 1 and self.rounds == 1 and self.steps == 2:
            self.parameters.weights[0][1, 2] = float("inf")
        return super().ready()


def test_a_model_update_that_is_not_finite_reaches_nobody() -> None:
    def build(context: Context) -> Trainer:
        context.run.max_bad_steps = MOST
        return by_flags("local-sgd", Overflows, local_lr=ETA, sync_every=2)(context)

    workers = [Worker([batch(rank)]) for rank in range(3)]
    trained = train(TransportKind.SUM, workers, build, rounds=1)
    expected = mean_of_local_steps((0, 2), steps=2)
    for rank in range(3):
        np.testing.assert_allclose(trained.weights(rank), expected, **CLOSE)


def alone_with_asgd(build: Callable[[Context], Trainer]) -> Trained:
    """Three rounds, of which the gradient of the second is not finite."""
    config = Config(mode="async", learning_rate=ETA, batch_size=1)
    workers = [Worker([batch(0), batch(1), batch(2)])]
    return train(TransportKind.HUB, workers, spoil(build, {2}, rank=0), rounds=3, config=config)


def after_two_of_three() -> np.ndarray:
    first = ZERO - ETA * gradient(ZERO, batch(0))
    return first - ETA * gradient(first, batch(2))


def test_asgd_sends_no_gradient_that_is_not_finite() -> None:
    np.testing.assert_allclose(alone_with_asgd(by_flags("async")).weights(), after_two_of_three(), **CLOSE)


def test_a_server_applies_no_gradient_that_is_not_finite_whoever_pushes_it() -> None:
    """A worker that does not look sends it; the hub does."""

    class Careless(AsyncTrainer):
        def gradients_are_good(self) -> bool:
            return True

    np.testing.assert_allclose(alone_with_asgd(by_flags("async", Careless)).weights(), after_two_of_three(), **CLOSE)


def test_backup_workers_make_no_version_of_it_and_its_worker_has_another_try() -> None:
    """Nobody is spare: version 1 waits for worker 1's second batch, and is SSGD's step along the good ones."""
    workers = [Worker([batch(0)]), Worker([batch(1), batch(2), batch(3)])]
    config = Config(mode="backup", backup=0, learning_rate=ETA)
    trained = train(TransportKind.HUB, workers, spoil(by_flags("backup"), {1}), rounds=1, config=config)
    expected = ZERO - ETA / 2 * (gradient(ZERO, batch(0)) + gradient(ZERO, batch(2)))
    np.testing.assert_allclose(trained.weights(0), expected, **CLOSE)


def test_batchnorms_statistics_are_as_before_the_step() -> None:
    class Noted(LocalTrainer):
        statistics: list[np.ndarray] = []

        def synchronize(self, wants_stop: bool) -> bool:
            self.statistics = [*self.statistics, self.parameters.statistics()[0]]
            return super().synchronize(wants_stop)

    build = spoil(by_flags("local", Noted, learning_rate=ETA), {2}, rank=0)
    trained = train(TransportKind.NONE, [Worker([batch(0, 4), batch(1, 4), batch(2, 4)])], build, 3, normalised)
    first, second, third = trained.trainers[0].statistics  # type: ignore[attr-defined]
    np.testing.assert_array_equal(first, second)
    assert np.any(second != third)


# --------------------------------------------------------------------------------------------------- all modes


def of_page(build: Callable[[Context], Trainer]) -> Callable[[Context], Trainer]:
    """With a state server that is only told."""

    def built(context: Context) -> Trainer:
        context.peers.state_server = Page()  # type: ignore[assignment]
        return build(context)

    return built


OUTER = {"global_lr": 0.7, "outer_momentum": 0.9}
SYNC_SWITCH = {"momentum": 0.9, "train_steps": (6,), "straggler_policy": "none"}
SUM, HUB = TransportKind.SUM, TransportKind.HUB
# What carries the arrays, the trainer, and either the state server's rule or the flags of the server part on the hub.
MODES: dict[str, tuple[TransportKind, Callable[[Context], Trainer], str | dict[str, Any]]] = {
    "sync": (SUM, by_flags("sync", learning_rate=ETA), ""),
    "esync": (SUM, by_flags("esync", local_lr=ETA, global_lr=1.0, query="blocking"), "journal"),
    "esync, FedNova": (SUM, by_flags("esync", local_lr=ETA, normalise=1), "journal"),
    "local-sgd": (SUM, by_flags("local-sgd", local_lr=ETA, global_lr=1.0, sync_every=2), ""),
    "lb-bsp": (SUM, by_flags("lb-bsp", learning_rate=ETA), "lb-bsp"),
    "backup": (HUB, by_flags("backup"), {"backup": 1}),
    "async": (HUB, by_flags("async"), {}),
    "async, DC-ASGD": (HUB, by_flags("async"), {"use_dcasgd": 1}),
    "async, DC-ASGD-a": (HUB, by_flags("async"), {"use_dcasgd": 1, "dcasgd_adaptive": 1}),
    "async, Ringmaster": (HUB, by_flags("async"), {"max_delay": 3}),
    "async, Ringleader": (HUB, by_flags("async"), {"table": 1}),
    "async, Rescaled": (HUB, by_flags("async"), {"rescale": 1}),
    "ssp": (HUB, by_flags("ssp"), {"staleness": 1}),
    "wbsp": (HUB, of_page(by_flags("wbsp", local_lr=ETA, wbsp_overlap=0)), {}),
    "wbsp, overlap": (HUB, of_page(by_flags("wbsp", local_lr=ETA, wbsp_overlap=1)), {}),
    "async-local": (HUB, by_flags("async-local", local_lr=ETA), {**OUTER, "sync_every": 2}),
    "decoupled": (HUB, of_page(by_flags("decoupled", local_lr=ETA, sync_every=2)), {**OUTER, "quorum": 2}),
    "sync-switch, BSP": (HUB, of_page(by_flags("sync-switch")), {**SYNC_SWITCH, "switch_order": "1"}),
    "sync-switch, ASP": (HUB, of_page(by_flags("sync-switch")), {**SYNC_SWITCH, "switch_order": "0"}),
}


def trained_in(mode: str, steps: Collection[int], rounds: int = 6) -> Trained:
    kind, build, more = MODES[mode]
    workers = [Worker([batch(rank), batch(rank + 3)], step_s=1.0 + rank / 8, samples=rank + 1) for rank in range(3)]
    if isinstance(more, str):
        return train(kind, workers, spoil(build, steps), rounds, state_server=StateServer(more) if more else None)
    config = Config(mode=mode.partition(",")[0], learning_rate=ETA, **more)
    return train(kind, workers, spoil(build, steps), rounds, config=config)


@pytest.mark.parametrize("mode", MODES)
def test_in_every_mode_bad_steps_are_skipped_and_the_job_goes_on(mode: str) -> None:
    trained = trained_in(mode, {2, 3})
    assert sorted(trained.ended_s) == [0, 1, 2]
    assert [trainer.checks.steps.total for trainer in trained.trainers] == [0, 2, 0]
    for rank in range(3):
        assert np.isfinite(trained.weights(rank)).all() and np.any(trained.weights(rank))


@pytest.mark.parametrize("mode", MODES)
def test_in_every_mode_too_many_in_a_row_end_the_job_with_worker_step_and_layer(mode: str) -> None:
    with pytest.raises(JobError, match=rf"{DIVERGED}: worker 1, round \d+, step \d+: the gradient of \w+weight is not"):
        trained_in(mode, range(2, 100))


def test_the_log_of_a_round_has_its_bad_steps_and_no_loss_where_the_last_had_none(tmp_path) -> None:
    samples = some_batch()
    context = a_context(samples, batches=Batches(samples), limits=Limits(3), max_bad_steps=MOST)
    context.task.passes = lambda trainer: Spoilt(context.task.network, (), float("nan"))
    trainer = by_flags("local", learning_rate=0.01)(context)

    def begin_round() -> None:  # as after an overflow that nobody has seen: the loss itself is not finite
        trainer.parameters.weights[0][:] = float("nan") if trainer.rounds == 2 else 1

    trainer.begin_round = begin_round  # type: ignore[method-assign]
    Loop(trainer).run(lambda: tmp_path)
    records = [json.loads((tmp_path / f"iter-{number}.txt").read_text()) for number in (1, 2, 3)]
    assert [record.get("bad_steps", 0) for record in records] == [0, 1, 0]
    assert ["loss" in record for record in records] == [True, False, True]
    assert [record["num_samples"] for record in records] == [16, 0, 16]
