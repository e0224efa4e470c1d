"""Measurements by a job file's metric."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from esync.metric import Metric
from trainer.datasets.sources import described
from trainer.evaluation.evaluator import Measurement
from trainer.jobs.user_errors import users_errors
from trainer.network import Batch, numpy_of, single
from utils import SetupError

_ERRORS = ("MAE", "MSE", "RMSE", "CrossEntropy", "Perplexity", "Loss")  # MXNet's own metrics of which less is better


def of(metric: Any, more_is_better: bool | None, file: Path | None) -> tuple[Metric, Callable[[], Measurement]]:
    """A job file's metric, an mx.metric.EvalMetric or a function (targets, outputs) -> float, and its measurement.
    Raises SetupError if its name cannot be one in logs."""
    mx = sys.modules.get("mxnet")
    is_own = mx is not None and isinstance(metric, mx.metric.EvalMetric)
    name = metric.name if is_own else getattr(metric, "__name__", type(metric).__name__)
    if more_is_better is None:
        errors = tuple(getattr(mx.metric, name) for name in _ERRORS) if mx is not None else ()
        more_is_better = not isinstance(metric, errors)
    with users_errors(file, "metric"):
        described = Metric(name, more_is_better)
    return described, partial(EvalMetric if is_own else OfAllOutputs, metric, file)


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
