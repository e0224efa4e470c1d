"""BatchNorm's running statistics of an averaged model."""

import contextlib
from collections.abc import Iterator

from trainer.trainer import Trainer


@contextlib.contextmanager
def with_estimated_statistics(trainer: Trainer, batches: int) -> Iterator[None]:
    """Estimates the averaged model's own statistics for the duration; training continues with the averaged ones.

    A mean of running variances is not the variance under the mean of the weights. With a few steps a round the two
    hardly differ; with a hundred the model may be no better than chance (results/reproduction/README.md). `batches`:
    number of batches to estimate from; 0: the averaged statistics stay.
    """
    averaged = trainer.parameters.statistics() if batches else []
    for batch in trainer.context.task.batches.look(batches if averaged else 0):
        trainer.passes.forward(batch)
        trainer.passes.backward()  # moves the statistics, and no weights
        trainer.wait_for_gradients()
    try:
        yield
    finally:
        trainer.parameters.set_statistics(averaged)
