"""A local step of the one loop: what it leaves in the network, whole or given up."""

import numpy as np
import pytest
from one_worker import a_context, some_batch

from trainer.local import LocalTrainer
from trainer.membership import Membership
from utils import Measure

LEARNING_RATE = 0.01


@pytest.fixture
def batch():
    return some_batch()


class Asked(LocalTrainer):
    """Asks in the middle of its steps whether the round is over, and hears `answers`."""

    can_abandon = True

    def __init__(self, context, answers):
        super().__init__(context, LEARNING_RATE)
        self._answers = iter(answers)

    def round_is_over(self):
        return next(self._answers)


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
