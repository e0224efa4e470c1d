"""A local step of the one loop: what it leaves in the network, whole or given up."""

import numpy as np
import pytest
from contexts import by_flags
from memory_cluster import Worker, batch as images_of, normalised, train
from one_worker import a_context, some_batch
from ready import endless, labels_of, ready

from algorithm_row import OwnGradientSteps
from algorithms import TransportKind
from esync.measure import Measure
from trainer.algorithms.local import LocalTrainer
from trainer.datasets.samples import Samples

LEARNING_RATE = 0.01


@pytest.fixture
def batch():
    return some_batch()


@pytest.mark.parametrize(("answers", "whole"), [([True], False), ([False, True], False), ([False, False], True)])
def test_a_step_that_is_given_up_leaves_neither_weights_nor_statistics_behind(tmp_path, batch, answers, whole):
    trainer = LocalTrainer(a_context(batch), OwnGradientSteps(learning_rate=LEARNING_RATE))
    trainer.give_up = iter(answers).__next__  # asked in the middle of a step whether the round is over
    trainer.measure = Measure(tmp_path)
    before = trainer.parameters.copied()
    assert len(before) == len(trainer.parameters.weights) + 1  # the last one holds BatchNorm's statistics
    assert trainer.local_step(ready(batch)) is whole
    moved = [not np.array_equal(was, now) for was, now in zip(before, trainer.parameters.model(), strict=True)]
    # A bias in front of BatchNorm has no gradient; everything else moves in a whole step.
    assert not any(moved) if not whole else moved[0] and moved[-1]


@pytest.mark.parametrize("batches", [0, 30])
def test_an_evaluation_has_statistics_of_its_own_where_they_are_asked_for_and_training_the_averaged_ones(
    batches,
):
    """BatchNorm moves half-way with each pass, so 30 batches leave nothing of what was there."""
    images = [images_of(0, size=4), images_of(5, size=4)]
    means = [float(each.images.mean()) / 255 for each in images]
    assert abs(means[0] - means[1]) > 0.1
    evaluated, left = [], []

    def build(context):
        flags = {"local_lr": LEARNING_RATE, "sync_every": 30, "estimate_statistics": batches}
        trainer = by_flags("local-sgd", **flags)(context)

        def evaluate():
            evaluated.append(trainer.parameters.statistics()[0][0])
            left.append(lambda: trainer.parameters.statistics()[0][0])
            return 0.5

        context.task.evaluate = evaluate
        context.peers.is_evaluator = lambda step_s: trainer.membership.rank == 0
        return trainer

    train(TransportKind.SUM, [Worker([each]) for each in images], build, 1, network=normalised)
    averaged = sum(means) / 2
    np.testing.assert_allclose(evaluated, [means[0] if batches else averaged], rtol=1e-3)
    np.testing.assert_allclose([each() for each in left], [averaged], rtol=1e-3)


def test_a_look_at_the_samples_takes_none_of_them():
    samples = Samples(np.arange(40, dtype=np.uint8).reshape(10, 1, 2, 2), np.arange(10, dtype=np.uint8))
    ways = [endless(samples, np.arange(3, 8), 4, seed=1) for _ in range(2)]
    seen = np.concatenate([labels_of(each) for each in ways[0].look(20)])
    assert seen.shape == (80,) and set(seen) == {3, 4, 5, 6, 7}
    assert [labels_of(next(ways[0])).tolist() for _ in range(3)] == [
        labels_of(next(ways[1])).tolist() for _ in range(3)
    ]
