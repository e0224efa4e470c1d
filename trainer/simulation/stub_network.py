"""A network that computes nothing, for simulate.py -n none: only times and bytes count, so 1,000 workers are possible.

Its model is a few numbers, which stand for arrays of any size: MODEL_SHAPE tells them from other arrays that travel.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trainer.context import LearningTask
from trainer.datasets.batches import Batches
from trainer.network import Passes
from trainer.steps import NO_STEPS, Rule

MODEL_SHAPE = (1, 1, 1, 1, 1)  # as no vote, no counters and no status vector
NUM_ARRAYS = 5  # each is a fifth of the model, like ResNet-18's largest array, the last that a pull waits for
RULE = Rule(NO_STEPS)


class StubNetwork:
    """Weights and gradients that are 0 and stay it, as trainer.network.Network."""

    suffix = ""
    statistics: list[np.ndarray] = []

    def __init__(self) -> None:
        self.names = [f"none_model{number}" for number in range(NUM_ARRAYS)]
        self.weights, self.gradients = ([np.zeros(MODEL_SHAPE, np.float32) for _ in self.names] for _ in range(2))

    def passes(self, loss: Any, draws: Any, samples: Any) -> Passes:
        return Passes()

    def feed(self, prepare: Any) -> Any:
        raise NotImplementedError("there are no samples")

    outputs = feed

    def seed(self, number: int) -> None: ...

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, state: Mapping[str, np.ndarray]) -> None: ...


def learning_task(batch_size: int, evaluate: Callable[[], float | None] | None) -> LearningTask:
    """The task of a worker that computes nothing."""
    batches = Batches(batch_size)
    return LearningTask(network=StubNetwork(), batches=batches, warm_up_batch=next(batches), evaluate=evaluate)
