"""A network that computes nothing, for simulate.py -n none: only times and bytes count, so 1,000 workers are possible.

Its model is a few numbers, which stand for arrays of any size: MODEL_SHAPE tells them from other arrays that travel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from trainer.context import LearningTask
from trainer.datasets.samples import Samples
from trainer.engine import mx

MODEL_SHAPE = (1, 1, 1, 1, 1)  # as no vote, no counters and no status vector
NUM_ARRAYS = 5  # each is a fifth of the model, like ResNet-18's largest array, the last that a pull waits for


class _NoPasses:
    """Passes that take no time and compute nothing."""

    def forward(self, images: Any, labels: Any) -> None: ...
    def wait_for_loss(self) -> None: ...
    def backward(self, weight: float) -> None: ...

    def loss(self) -> float:
        return 0.0  # for the logs


class _EqualBatches:
    """The same empty samples again and again, to be counted."""

    def __init__(self, batch: Samples) -> None:
        self._batch = batch

    def __next__(self) -> Samples:
        return self._batch

    def put_back(self, batch: Samples) -> None: ...
    def draw_from(self, indices: np.ndarray) -> None: ...

    def resize(self, batch_size: int) -> None:
        if batch_size != len(self._batch.labels):
            self._batch = _samples(batch_size)

    def look(self, number: int) -> Iterator[Samples]:
        return itertools.repeat(self._batch, number)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...


def learning_task(batch_size: int, evaluate: Callable[[], float | None] | None) -> LearningTask:
    """The task of a worker that computes nothing."""
    batch = _samples(batch_size)
    return LearningTask(
        network=_network(),
        feed=lambda samples: samples,
        batches=_EqualBatches(batch),
        warm_up_batch=batch,
        passes=_NoPasses(),
        evaluate=evaluate,
    )


def _samples(size: int) -> Samples:
    return Samples(np.zeros((size, 0), np.uint8), np.zeros(size, np.uint8))


def _network() -> Any:
    network = mx.gluon.Block(prefix="none_")
    for number in range(NUM_ARRAYS):
        network.params.get(f"model{number}", shape=MODEL_SHAPE)
    network.initialize(mx.init.Zero())
    return network
