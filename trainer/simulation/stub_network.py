"""A network that computes nothing, for simulate.py -n none: only times and bytes count, so that 1,000 workers are few.

Its model is a few numbers, which stand for arrays of a model of any size: MODEL_SHAPE tells them from the other arrays
that travel.
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
NUM_ARRAYS = 5  # so that each is a fifth of the model, as ResNet-18's largest array is: the last that a pull waits for


class _NoPasses:
    """Takes no time and computes nothing."""

    def forward(self, images: Any, labels: Any) -> None:
        """As device.Passes says."""

    def wait_for_loss(self) -> None:
        """As device.Passes says."""

    def backward(self, weight: float) -> None:
        """As device.Passes says."""

    def loss(self) -> float:
        """There is none; the logs say 0."""
        return 0.0


class _EqualBatches:
    """The same empty samples again and again: they are counted, and nobody looks at them."""

    def __init__(self, batch: Samples) -> None:
        self._batch = batch

    def __next__(self) -> Samples:
        return self._batch

    def put_back(self, batch: Samples) -> None:
        """As data.Batches says."""

    def draw_from(self, indices: np.ndarray) -> None:
        """As data.Batches says."""

    def resize(self, batch_size: int) -> None:
        """As data.Batches says."""
        if batch_size != len(self._batch.labels):
            self._batch = _samples(batch_size)

    def look(self, number: int) -> Iterator[Samples]:
        """As data.Batches says."""
        return itertools.repeat(self._batch, number)

    def state(self) -> dict[str, Any]:
        """As data.Batches says."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """As data.Batches says."""


def learning_task(batch_size: int, evaluate: Callable[[], None] | None) -> LearningTask:
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
