"""Measures a network on the whole test set."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from trainer.engine import mx
from trainer.jobs.gluon import GluonNetwork
from trainer.jobs.gluon_blocks import arrays_in
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
        is_number = (outputs == outputs).min(axis=1)  # argmax takes NaN for the greatest
        self._correct.append(((outputs.argmax(axis=1) == classes.astype(outputs.dtype)) * is_number).sum())
        self._total += len(classes)

    def value(self) -> float:
        return float(mx.nd.add_n(*self._correct).asscalar()) / self._total


class Evaluator:
    """Measures the network on the whole test set."""

    def __init__(
        self,
        network: GluonNetwork,
        test: Callable[[], Iterable[Batch]],
        measurement: Callable[[], Measurement] = Correct,
    ) -> None:
        """`test` begins the batches of the test set, `measurement` a measurement."""
        self._network = network
        self._test = test
        self._measurement = measurement
        self._is_first = True
        self._is_told = False

    def __call__(self) -> float:
        measurement, bad = self._measurement(), []
        for batch in self._test():
            outputs = self._network.outputs(batch)
            with shapes_told(batch.inputs, batch.targets):
                measurement.add(batch.targets, outputs)
            bad += [(each != each).sum() for each in arrays_in(outputs)]
            if self._is_first:  # the samples are the same each time; a layer such as ReLU makes 0 of NaN
                bad += [(each * 0 != 0).sum() for each in (*batch.inputs, *batch.targets)]
        self._is_first = False
        if not self._is_told and any(each.asscalar() for each in bad):
            self._is_told = True
            faults = (fault for batch in self._test() if (fault := batch.fault()))
            told = next(faults, "the network gives NaN for finite inputs")
            logging.warning("warning: in the test %s: scores that are NaN count as wrong; mend the data", told)
        return measurement.value()
