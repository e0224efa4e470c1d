"""Measures a network on the whole test set, by accuracy, by the loss, or by a job file's metric."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from esync.metric import Metric
from trainer.datasets.sources import described
from trainer.jobs.user_errors import users_errors
from trainer.network import Batch, Network, arrays_in, numpy_of, shapes_told, single
from utils import SetupError

_ERRORS = ("MAE", "MSE", "RMSE", "CrossEntropy", "Perplexity", "Loss")  # MXNet's own metrics of which less is better


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


class EvalMetric:
    """By an mx.metric.EvalMetric."""

    def __init__(self, metric: Any, file: Path | None) -> None:
        metric.reset()
        self._metric = metric
        self._file = file

    def add(self, batch: Batch, outputs: Any) -> None:
        with users_errors(self._file, "metric"):
            self._metric.update(list(batch.targets), list(outputs) if isinstance(outputs, (tuple, list)) else [outputs])

    def value(self) -> float:
        with users_errors(self._file, "metric"):
            return _number(self._metric.get()[1])


class OfAllOutputs:
    """By a function of all targets and outputs as numpy arrays."""

    def __init__(self, function: Callable[[Any, Any], float], file: Path | None) -> None:
        self._function = function
        self._file = file
        self._targets: list[list[np.ndarray]] = []
        self._outputs: list[list[np.ndarray]] = []

    def add(self, batch: Batch, outputs: Any) -> None:
        several = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        self._targets.append([*map(numpy_of, batch.targets)])
        self._outputs.append([*map(numpy_of, several)])

    def value(self) -> float:
        with users_errors(self._file, "metric(targets, outputs)"):
            value = self._function(_joined(self._targets), _joined(self._outputs))
            return _number(numpy_of(value) if hasattr(value, "shape") else value)


class MeanLoss:
    """The mean loss of the samples."""

    def __init__(self, total_of: Callable[[Any, Batch], float]) -> None:
        """`total_of`: (outputs, batch) -> the losses added up."""
        self._total_of = total_of
        self._total = 0.0
        self._samples = 0

    def add(self, batch: Batch, outputs: Any) -> None:
        self._total += self._total_of(outputs, batch)
        self._samples += batch.size

    def value(self) -> float:
        return self._total / self._samples


def measurement_of(
    metric: Any, more_is_better: bool | None, file: Path | None
) -> tuple[Metric, Callable[[], Measurement]]:
    """A job file's metric, an mx.metric.EvalMetric or a function (targets, outputs) -> float, and its measurement.
    Raises SetupError if its name cannot be one in logs."""
    mx = sys.modules.get("mxnet")
    is_own = mx is not None and isinstance(metric, mx.metric.EvalMetric)
    name = metric.name if is_own else getattr(metric, "__name__", type(metric).__name__)
    if more_is_better is None:
        errors = tuple(getattr(mx.metric, name) for name in _ERRORS) if mx is not None else ()
        more_is_better = not isinstance(metric, errors)
    with users_errors(file, "metric"):
        about = Metric(name, more_is_better)
    return about, partial(EvalMetric if is_own else OfAllOutputs, metric, file)


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


def _number(value: Any) -> float:
    """The value of a number, or of an array with one. Raises SetupError for anything else."""
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf":
        raise SetupError(f"gives {described(value)}: give one number")
    return float(array.reshape(()))


def _joined(batches: Sequence[Sequence[np.ndarray]]) -> Any:
    """Batches (N_b, ...) of one or several arrays as one array (N, ...), or several."""
    try:
        return single([np.concatenate(arrays) for arrays in zip(*batches, strict=True)])
    except ValueError:
        shapes = sorted({str(array.shape[1:]) for arrays in batches for array in arrays})
        raise SetupError(
            f"its arrays have other shapes in each batch ({', '.join(shapes[:3])}): give outputs of one shape, or an "
            "mx.metric.EvalMetric, which gets batch after batch"
        ) from None
