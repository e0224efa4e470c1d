"""A loop of a job's own: what of it counts, what is refused, and how it ends."""

from __future__ import annotations

import itertools
import os
import re
import sys
import threading

import numpy as np
import pytest
from contexts import context_of
from one_worker import HandClock
from round_records import read_rounds

from algorithm_row import OwnGradientSteps
from config import Config
from esync.progress import Limits
from trainer.algorithms.local import LocalTrainer
from trainer.datasets.batches import Batches, EndlessBatches
from trainer.datasets.sources import Arrays
from trainer.engine import mx
from trainer.jobs.gluon import GluonFeed, GluonNetwork
from trainer.jobs.own_loop import ENDED, OwnLoop
from trainer.loop import Loop
from utils import EXIT_SETUP, SetupError

X = np.arange(20, dtype=np.float32).reshape(20, 1)
ETA = 0.001
loss_of = mx.gluon.loss.L2Loss()


def network():
    made = mx.gluon.nn.Dense(1, use_bias=False, in_units=1)
    made.initialize(mx.init.Zero())
    return GluonNetwork(made, mx.cpu())


def run(folder, train, *, rounds=4, batches=None, flags=None, gives_up=()):
    """Trains alone with `train` on a batch of two of 20 numbers x, for which y = 3 x; returns the trainer.

    `gives_up` are the steps, counted from 0 without the test steps, that the algorithm gives up half-way.
    """
    samples, feed = Arrays(X, 3 * X[:, 0]), GluonFeed(mx.cpu())
    warm_up = feed(samples.take(slice(0, 2))) if batches is None else next(batches)
    batches = batches or EndlessBatches(samples, feed, np.arange(20), 2, 0)

    class Gives(LocalTrainer):
        attempts = 0

        def local_step(self, batch):
            self.give_up = lambda: self.attempts in gives_up
            try:
                return super().local_step(batch)
            finally:
                self.attempts += 1

    mine = network()
    context = context_of(
        config=Config(**{"mode": "local", "batch_size": 2, **(flags or {})}),
        network=mine,
        batches=batches,
        warm_up_batch=warm_up,
        passes=lambda trainer: OwnLoop(train, mine, trainer),
        limits=Limits(rounds),
        clock=HandClock(),
        min_step_s=1.0,
    )
    trainer = Gives(context, OwnGradientSteps(learning_rate=ETA))
    trainer.reason = Loop(trainer).run(lambda: folder)
    return trainer


def backward(worker, x, y):
    with mx.autograd.record():
        loss = loss_of(worker.network(x), y)
    loss.backward()
    return loss


def test_the_test_steps_and_what_is_given_up_do_not_count_and_the_batch_comes_again(tmp_path):
    told, seen = [], []

    def train(worker):
        for x, y in worker.batches:
            loss = backward(worker, x, y)
            seen.append(x.asnumpy().ravel().tolist())
            told.append(worker.step(len(y), loss))

    run(tmp_path, train, gives_up=(1,))
    assert told == [False] * 3 + [True, False, True, True]
    assert seen[:3] == [[0, 1]] * 3
    assert seen[4] == seen[5] and len({tuple(each) for each in seen[3:]}) == 3
    records = list(read_rounds(tmp_path, pytest.fail))
    assert [record["num_samples"] for record in records] == [2, 0, 2, 2]
    assert all("loss" in record for record in records)


def test_a_step_of_several_batches_counts_their_samples_and_sums_their_gradients(tmp_path):
    def train(worker):
        worker.network.collect_params().setattr("grad_req", "add")
        while not worker.is_done:
            worker.network.collect_params().zero_grad()
            samples = 0
            for _ in range(2):
                x, y = next(worker.batches)
                backward(worker, x, y)
                samples += len(y)
            worker.step(samples)

    trainer = run(tmp_path, train, rounds=2)
    assert [record["num_samples"] for record in read_rounds(tmp_path, pytest.fail)] == [4, 4]
    order = np.random.default_rng(0).permutation(20)
    weight = 0.0
    for chosen in (order[:4], order[4:8]):
        x = X[chosen, 0].astype(np.float64)
        weight -= ETA * ((weight - 3) * x * x).sum()
    assert trainer.parameters.weights[0].item() == pytest.approx(weight, rel=1e-5)


def has_a_loader(worker):
    for number in range(1000):
        x = mx.nd.array(X[: 1 + number % 3])
        backward(worker, x, 3 * x[:, 0])
        worker.step(len(x))
        if worker.is_done:
            break


def returns(worker):
    for x, y in itertools.islice(worker.batches, 5):
        backward(worker, x, y)
        worker.step(len(y))


def has_no_end(worker):
    while True:
        for x, y in worker.batches:
            backward(worker, x, y)
            worker.step(len(y))


@pytest.mark.parametrize(
    ("train", "batches", "samples", "reason"),
    [
        (has_a_loader, Batches(2), [1, 2, 3, 1], "4 rounds done"),  # and its own numbers of samples
        (returns, None, [2, 2, 0], ENDED),  # the last step has none
        (has_no_end, None, [2] * 4, "4 rounds done"),
    ],
)
def test_each_step_is_a_round_and_the_end_is_that_of_the_job_or_of_the_loop(tmp_path, train, batches, samples, reason):
    assert run(tmp_path, train, batches=batches).reason == reason
    assert [record["num_samples"] for record in read_rounds(tmp_path, pytest.fail)] == samples


def test_the_loop_sees_the_end_and_does_what_stands_behind_it(tmp_path):
    ended = []

    def train(worker):
        for x, y in worker.batches:
            backward(worker, x, y)
            worker.step(len(y))
        ended.append((worker.is_done, worker.rank, worker.num_workers, worker.batch_size))

    run(tmp_path, train)
    assert ended == [(True, 0, 1, 2)]


def loads_itself(worker):
    while True:
        x = mx.nd.ones((2, 1))
        backward(worker, x, 3 * x[:, 0])
        worker.step(2)


@pytest.mark.parametrize(
    ("train", "flags", "line"),
    [
        (loads_itself, {"mode": "lb-bsp"}, "mode lb-bsp cannot choose the batch size"),
        (loads_itself, {"resume": 1, "ckpt_frequency": 1}, "--resume cannot continue where the checkpoint was taken"),
        (lambda worker: None, {}, "train(worker) has returned without a call of worker.step()"),
        (lambda worker: worker.step(None), {}, "worker.step(None): give the number of samples"),
    ],
)
def test_what_cannot_be_is_one_line_before_training_begins(tmp_path, train, flags, line):
    with pytest.raises(SetupError, match=re.escape(line)):
        run(tmp_path, train, flags=flags)
    assert not list(tmp_path.iterdir())


def draws(worker):
    for _ in worker.batches:
        pass


def has_a_trainer(worker):
    trainer = mx.gluon.Trainer(worker.network.collect_params(), "sgd")
    for x, y in worker.batches:
        backward(worker, x, y)
        trainer.step(len(y))
        worker.step(len(y))


def only_looks(worker):
    for x, y in worker.batches:
        worker.step(len(y), loss_of(worker.network(x), y))


def steps_inside_record(worker):
    x, y = next(worker.batches)
    with mx.autograd.record():
        loss_of(worker.network(x), y).backward()
        worker.step(len(y))


def tells(loss):
    def train(worker):
        for x, y in worker.batches:
            backward(worker, x, y)
            worker.step(np.int64(len(y)), loss)

    return train


@pytest.mark.parametrize(
    ("train", "line"),
    [
        (draws, "has drawn 1000 batches without worker.step()"),
        (has_a_trainer, "has a gluon.Trainer for the weights of worker.network"),
        (only_looks, "has computed no gradients: call loss.backward()"),
        (tells("low"), "loss is a str"),
        (steps_inside_record, "inside autograd.record"),
    ],
)
def test_what_is_no_loop_of_steps_is_one_line(tmp_path, train, line):
    with pytest.raises(SetupError, match=re.escape(line)):
        run(tmp_path, train)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of `leave`
@pytest.mark.parametrize(
    ("use", "what"), [(lambda worker: worker.step(2), "worker.step()"), (lambda worker: [*worker.batches], "batches")]
)
def test_another_thread_ends_the_process_since_train_may_wait_for_it(tmp_path, monkeypatch, caplog, use, what):
    codes = []

    def leave(code):
        codes.append(code)
        sys.exit()  # this thread

    def train(worker):
        thread = threading.Thread(target=use, args=(worker,))
        thread.start()
        thread.join()

    monkeypatch.setattr(os, "_exit", leave)
    with pytest.raises(SetupError, match="without a call"):
        run(tmp_path, train)
    assert codes == [EXIT_SETUP] and f"{what} is used in another thread" in caplog.text


@pytest.mark.parametrize("loss", [np.array([1.0, 2.0]), [1.0, 2.0], 1.5, np.float32(1.5), mx.nd.array([1, 2])])
def test_losses_of_any_kind_are_told(tmp_path, loss):
    run(tmp_path, tells(loss), rounds=1)
    assert [record["loss"] for record in read_rounds(tmp_path, pytest.fail)] == [1.5]
