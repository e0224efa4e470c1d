"""Measures a network on the whole test set."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import numpy as np

from trainer.network import Batch, Network, arrays_in, numpy_of, shapes_told


class Measurement(Protocol):
    """Measures outputs of the network, batch by batch."""

    def add(self, batch: Batch, outputs: Any) -> None: ...

    def value(self) -> float: ...


class Correct:
    """Accuracy: correct / total, with targets that are classes (N,) and a score for each class (N, C)."""

    def __init__(self) -> None:
        self._correct = self._total = 0

    def add(self, batch: Batch, outputs: Any) -> None:
        scores, (classes,) = numpy_of(outputs), map(numpy_of, batch.targets)
        is_number = ~np.isnan(scores).any(axis=1)  # argmax takes NaN for the greatest
        self._correct += int(((scores.argmax(axis=1) == classes) & is_number).sum())
        self._total += len(classes)

    def value(self) -> float:
        return self._correct / self._total


class Evaluator:
    """Measures the network on the whole test set."""

    def __init__(
        self, network: Network, test: Callable[[], Iterable[Batch]], measurement: Callable[[], Measurement] = Correct
    ) -> None:
        """`test` begins the batches of the test set, `measurement` a measurement."""
        self._network = network
        self._test = test
        self._measurement = measurement
        self._is_first = True
        self._is_told = False

    def on(self, test: Callable[[], Iterable[Batch]]) -> Evaluator:
        """Measures the same network on other batches."""
        return Evaluator(self._network, test, self._measurement)

    def __call__(self) -> float:
        measurement, is_bad = self._measurement(), False
        for batch in self._test():
            outputs = self._network.outputs(batch)
            with shapes_told(batch.inputs, batch.targets):
                measurement.add(batch, outputs)
            is_bad |= any(np.isnan(numpy_of(each)).any() for each in arrays_in(outputs))
            if self._is_first:  # the samples are the same each time; a layer such as ReLU makes 0 of NaN
                is_bad |= bool(batch.fault())
        self._is_first = False
        if not self._is_told and is_bad:
            self._is_told = True
            faults = (fault for batch in self._test() if (fault := batch.fault()))
            told = next(faults, "the network gives NaN for finite inputs")
            logging.warning("warning: in the test %s: scores that are NaN count as wrong; mend the data", told)
        return measurement.value()
