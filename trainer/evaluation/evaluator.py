"""Measures a network on the whole test set, by accuracy, by the loss, or by a job file's metric."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from esync.metric import Metric
from trainer.datasets.sources import described
from trainer.jobs.user_errors import users_errors
from trainer.network import Batch, Network, arrays_in, numpy_of, shapes_told, single
from utils import SetupError

_ERRORS = ("MAE", "MSE", "RMSE", "CrossEntropy", "Perplexity", "Loss")  # MXNet's own metrics of which less is better


Measurement = Callable[[Iterable[tuple[Batch, Any]]], float]  # of batches and the network's outputs


def accuracy(measured: Iterable[tuple[Batch, Any]]) -> float:
    """Correct / total, with targets that are classes (N,) and a score for each class (N, C)."""
    correct = total = 0
    for batch, outputs in measured:
        with shapes_told(batch.inputs, batch.targets):
            scores, (classes,) = numpy_of(outputs), map(numpy_of, batch.targets)
            is_number = ~np.isnan(scores).any(axis=1)  # argmax takes NaN for the greatest
            correct += int(((scores.argmax(axis=1) == classes) & is_number).sum())
            total += len(classes)
    return correct / total


def mean_loss(total_of: Callable[[Any, Batch], float], measured: Iterable[tuple[Batch, Any]]) -> float:
    """The mean loss of the samples. `total_of`: (outputs, batch) -> the losses added up."""
    total, samples = 0.0, 0
    for batch, outputs in measured:
        with shapes_told(batch.inputs, batch.targets):
            total += total_of(outputs, batch)
        samples += batch.size
    return total / samples


def _by_metric(metric: Any, file: Path | None, measured: Iterable[tuple[Batch, Any]]) -> float:
    """By an mx.metric.EvalMetric."""
    metric.reset()
    for batch, outputs in measured:
        with users_errors(file, "metric"):
            metric.update(list(batch.targets), list(outputs) if isinstance(outputs, (tuple, list)) else [outputs])
    with users_errors(file, "metric"):
        return _number(metric.get()[1])


def _by_function(
    function: Callable[[Any, Any], float], file: Path | None, measured: Iterable[tuple[Batch, Any]]
) -> float:
    """By a function of all targets and outputs as numpy arrays."""
    all_targets, all_outputs = [], []
    for batch, outputs in measured:
        all_targets.append([*map(numpy_of, batch.targets)])
        all_outputs.append([*map(numpy_of, outputs if isinstance(outputs, (tuple, list)) else (outputs,))])
    with users_errors(file, "metric(targets, outputs)"):
        value = function(_joined(all_targets), _joined(all_outputs))
        return _number(numpy_of(value) if hasattr(value, "shape") else value)


def measurement_of(metric: Any, more_is_better: bool | None, file: Path | None) -> tuple[Metric, Measurement]:
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
    return about, partial(_by_metric if is_own else _by_function, metric, file)


class Evaluator:
    """Measures the network on the whole test set."""

    def __init__(
        self, network: Network, test: Callable[[], Iterable[Batch]], measurement: Measurement = accuracy
    ) -> None:
        """`test` begins the batches of the test set."""
        self._network = network
        self._test = test
        self._measurement = measurement
        self._is_first = True
        self._is_told = False

    def on(self, test: Callable[[], Iterable[Batch]]) -> Evaluator:
        """Measures the same network on other batches."""
        return Evaluator(self._network, test, self._measurement)

    def __call__(self) -> float:
        return self._measurement(self._measured())

    def _measured(self) -> Iterator[tuple[Batch, Any]]:
        """Yields each batch with its outputs; then tells of numbers that are not finite."""
        is_bad = False
        for batch in self._test():
            with shapes_told(batch.inputs, batch.targets):
                outputs = self._network.outputs(batch)
                is_bad |= any(np.isnan(numpy_of(each)).any() for each in arrays_in(outputs))
            yield batch, outputs
            if self._is_first:  # the samples are the same each time; a layer such as ReLU makes 0 of NaN
                is_bad |= bool(batch.fault())
        self._is_first = False
        if is_bad and not self._is_told:
            self._is_told = True
            faults = (fault for batch in self._test() if (fault := batch.fault()))
            told = next(faults, "the network gives NaN for finite inputs")
            logging.warning("warning: in the test %s: scores that are NaN count as wrong; mend the data", told)


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
