"""Measures a network on the whole test set."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from trainer.engine import mx
from trainer.passes import Batch, shapes_told


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
