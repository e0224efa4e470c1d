"""One worker of a job for tests: a small network, one batch, and a clock that a test moves. Not a test itself."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from contexts import context_of
from ready import ready

from algorithm_row import OwnGradientSteps
from trainer.algorithms.local import LocalTrainer
from trainer.context import Context
from trainer.datasets.samples import Samples
from trainer.engine import mx
from trainer.jobs.gluon import GluonNetwork
from trainer.network import Batch


class HandClock:
    """Time passes where somebody sleeps, and by hand."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def now(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += max(0.0, seconds)


class Batches:
    """Batches that go round; the numbers of those that were drawn are kept."""

    def __init__(self, *batches: Samples) -> None:
        self._batches = batches
        self.drawn: list[int] = []
        self._next = 0
        self._size: int | None = None

    def __next__(self) -> Batch:
        self.drawn.append(self._next)
        self._next += 1
        images, labels = self._batches[self.drawn[-1] % len(self._batches)]
        return ready(Samples(images[: self._size], labels[: self._size]))

    def resize(self, batch_size: int) -> None:
        self._size = batch_size

    def prepare(self) -> None: ...

    def put_back(self, batch: Batch) -> None:
        self._next -= 1

    def look(self, number: int) -> Iterator[Batch]:
        return map(ready, itertools.islice(itertools.cycle(self._batches), number))


def network_with_statistics() -> GluonNetwork:
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
    return GluonNetwork(network, mx.cpu())


def some_batch() -> Samples:
    """16 images of 8 x 8 pixels."""
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (16, 1, 8, 8), dtype=np.uint8)
    return Samples(images, random.integers(0, 10, 16, dtype=np.uint8))


def a_context(batch: Samples, **more: Any) -> Context:
    """What a trainer works with; `more` in place of what is here."""
    given: dict[str, Any] = {
        "network": network_with_statistics(),
        "batches": Batches(batch),
        "warm_up_batch": ready(batch),
    }
    return context_of(**{**given, **more})


class Steps(LocalTrainer):
    """Each step takes as long as it is told; `passed` is called after each round."""

    def __init__(self, given, *, step_s=1.0, passed=lambda trainer: None):
        super().__init__(given, OwnGradientSteps(learning_rate=0.01))
        self._passes_s = step_s if callable(step_s) else lambda: step_s
        self._passed = passed

    def compute_gradients(self, batch, weight=1.0):
        self.clock.sleep(self._passes_s())
        return super().compute_gradients(batch, weight)

    def synchronize(self, wants_stop):
        self._passed(self)
        return super().synchronize(wants_stop)
