"""A local step of the one loop: what it leaves in the network, whole or given up."""

import numpy as np
import pytest

from trainer.context import Context
from trainer.data import Samples
from trainer.device import DeviceFeed
from trainer.engine import mx
from trainer.local import LocalTrainer
from trainer.membership import Membership
from utils import Measure

LEARNING_RATE = 0.01


def network_with_statistics():
    network = mx.gluon.nn.HybridSequential()
    network.add(
        mx.gluon.nn.Conv2D(4, 3, in_channels=1),
        mx.gluon.nn.BatchNorm(in_channels=4),
        mx.gluon.nn.GlobalAvgPool2D(),
        mx.gluon.nn.Dense(10, in_units=4),
    )
    mx.random.seed(1)
    network.initialize(mx.init.Xavier())
    network(mx.nd.zeros((1, 1, 8, 8)))
    mx.nd.waitall()
    return network


@pytest.fixture
def batch():
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (16, 1, 8, 8), dtype=np.uint8)
    return Samples(images, random.integers(0, 10, 16, dtype=np.uint8))


class Asked(LocalTrainer):
    """Asks in the middle of its steps whether the round is over, and hears `answers`."""

    can_abandon = True

    def __init__(self, context, answers):
        super().__init__(context, LEARNING_RATE)
        self._answers = iter(answers)

    def round_is_over(self):
        return next(self._answers)


def a_context(batch, **more):
    return Context(
        network=network_with_statistics(),
        feed=DeviceFeed(mx.cpu(), 0),
        batches=iter([batch]),
        warm_up_batch=batch,
        **more,
    )


def model(trainer):
    return [array.asnumpy() for array in trainer.parameters.model()]


@pytest.mark.parametrize(("answers", "whole"), [([True], False), ([False, True], False), ([False, False], True)])
def test_a_step_that_is_given_up_leaves_neither_weights_nor_statistics_behind(tmp_path, batch, answers, whole):
    trainer = Asked(a_context(batch), answers)
    trainer.measure = Measure(tmp_path)
    before = model(trainer)
    assert len(before) == len(trainer.parameters.weights) + 1  # the last one holds BatchNorm's statistics
    assert trainer.local_step(*trainer.context.feed(batch)) is whole
    moved = [not np.array_equal(was, now) for was, now in zip(before, model(trainer), strict=True)]
    # A bias in front of BatchNorm has no gradient; everything else moves in a whole step.
    assert not any(moved) if not whole else moved[0] and moved[-1]


def test_what_a_worker_counts_is_a_factor_on_the_gradients_that_it_exchanges(batch):
    trainer = LocalTrainer(a_context(batch, membership=lambda: Membership(0, 4, (3, 2, 2, 1))), LEARNING_RATE)
    assert trainer.membership.sample_share == 0.375
    gradients = []
    for weight in (1.0, trainer.membership.weight):
        trainer.compute_gradients(*trainer.context.feed(batch), weight)
        gradients.append([gradient.asnumpy() for gradient in trainer.parameters.gradients])
    for plain, weighed in zip(*gradients, strict=True):
        np.testing.assert_allclose(weighed, 1.5 * plain, rtol=1e-3, atol=1e-4)
