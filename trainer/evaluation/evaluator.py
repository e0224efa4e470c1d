"""Measures a network on the whole test set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from trainer.engine import mx
from trainer.passes import Batch, shapes_told

if TYPE_CHECKING:
    from config import Config
    from trainer.datasets.feed import Feed
    from trainer.jobs.job import Job
    from trainer.jobs.network import BuiltNetwork

BATCH = 500  # takes a third of the CPU time of batches of 64, with the built-in networks on 28 x 28 pixels
INPUT_BYTES = 8 << 20  # of a batch, at most, since the network's own arrays are many times as large


def _batch_size(training: int, shapes: Sequence[tuple[int, ...]] | None) -> int:
    """The size of the batches of an evaluation, at least that of training. `shapes` are those of a sample's inputs,
    float32; None: not known."""
    if not shapes:
        return training
    return max(training, min(BATCH, INPUT_BYTES // (4 * sum(map(math.prod, shapes)))))


class Measurement(Protocol):
    """Measures outputs of the network, batch by batch."""

    def add(self, targets: Sequence[mx.nd.NDArray], outputs: Any) -> None: ...

    def value(self) -> float: ...


class Correct:
    """Accuracy: correct / total, with targets that are classes (N,) and a score for each class (N, C)."""

    def __init__(self) -> None:
        self._correct: list[mx.nd.NDArray] = []
        self._total = 0

    def add(self, targets: Sequence[mx.nd.NDArray], outputs: Any) -> None:
        (classes,) = targets
        self._correct.append((outputs.argmax(axis=1) == classes.astype(outputs.dtype)).sum())
        self._total += len(classes)

    def value(self) -> float:
        return float(mx.nd.add_n(*self._correct).asscalar()) / self._total


class Evaluator:
    """Measures the network on the whole test set."""

    def __init__(
        self, network: Any, test: Callable[[], Iterable[Batch]], measurement: Callable[[], Measurement] = Correct
    ) -> None:
        """`test` begins the batches of the test set, `measurement` a measurement."""
        self._network = network
        self._test = test
        self._measurement = measurement

    def __call__(self) -> float:
        measurement = self._measurement()
        for batch in self._test():
            with shapes_told(batch.inputs, batch.targets):
                measurement.add(batch.targets, self._network(*batch.inputs))
        return measurement.value()


def of_job(config: Config, job: Job, built: BuiltNetwork, feed: Feed) -> Evaluator:
    """Measures a job's network on its test part."""
    size = _batch_size(config.batch_size, built.input_shapes)
    return Evaluator(built.network, partial(job.test_batches, feed, size, config.seed), built.measurement)
