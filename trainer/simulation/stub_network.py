"""A network that computes nothing, for simulate.py -n none: only times and bytes count, so 1,000 workers are possible.

Its model is a few numbers, which stand for arrays of any size: MODEL_SHAPE tells them from other arrays that travel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainer.context import LearningTask
from trainer.datasets.batches import CountedBatches
from trainer.engine import mx

MODEL_SHAPE = (1, 1, 1, 1, 1)  # as no vote, no counters and no status vector
NUM_ARRAYS = 5  # each is a fifth of the model, like ResNet-18's largest array, the last that a pull waits for


class _NoPasses:
    """Passes that take no time and compute nothing."""

    def forward(self, inputs: Any, targets: Any) -> None: ...
    def wait_for_loss(self) -> None: ...
    def backward(self) -> None: ...
    def end(self) -> None: ...

    def loss(self) -> float:
        return 0.0  # for the logs


def learning_task(batch_size: int, evaluate: Callable[[], float | None] | None) -> LearningTask:
    """The task of a worker that computes nothing."""
    batches = CountedBatches(batch_size)
    return LearningTask(
        network=_network(),
        batches=batches,
        warm_up_batch=next(batches),
        passes=lambda trainer: _NoPasses(),
        evaluate=evaluate,
    )


def _network() -> Any:
    network = mx.gluon.Block(prefix="none_")
    for number in range(NUM_ARRAYS):
        network.params.get(f"model{number}", shape=MODEL_SHAPE)
    network.initialize(mx.init.Zero())
    return network
