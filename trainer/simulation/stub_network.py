"""A network that computes nothing, for simulate.py -n none: only times and bytes count, so 1,000 workers are possible.

Its model is a few numbers, which stand for arrays of any size: MODEL_SHAPE tells them from other arrays that travel.
"""

from collections.abc import Callable
from typing import Any

from trainer.context import LearningTask
from trainer.datasets.batches import CountedBatches
from trainer.engine import mx
from trainer.simulation.zeros import Zeros
from trainer.steps import Rule

MODEL_SHAPE = (1, 1, 1, 1, 1)  # as no vote, no counters and no status vector
NUM_ARRAYS = 5  # each is a fifth of the model, like ResNet-18's largest array, the last that a pull waits for


@mx.optimizer.register
class NoSteps(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Leaves the weights as they are."""

    def create_state(self, index: int, weight: mx.nd.NDArray) -> None: ...
    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: None) -> None: ...


RULE = Rule(NoSteps.__name__)


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
        network=_Network(),
        batches=batches,
        warm_up_batch=next(batches),
        passes=lambda trainer: _NoPasses(),
        evaluate=evaluate,
    )


class _Parameter:
    """A trainable weight of the model, with a gradient that is 0 as the weight is."""

    grad_req = "write"

    def __init__(self, name: str) -> None:
        self.name = name
        self._weight, self._gradient = Zeros(MODEL_SHAPE), Zeros(MODEL_SHAPE)

    def data(self) -> Zeros:
        return self._weight

    def grad(self) -> Zeros:
        return self._gradient


class _Network:
    """What trainer.parameters asks of a network."""

    def __init__(self) -> None:
        self._parameters = {name: _Parameter(name) for name in (f"none_model{number}" for number in range(NUM_ARRAYS))}

    def collect_params(self) -> dict[str, _Parameter]:
        return self._parameters
