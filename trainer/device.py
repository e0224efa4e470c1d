"""The work of a worker's device: samples in the network's form, forward and backward passes, evaluation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from trainer.datasets.batches import Batch
from trainer.datasets.sources import Raw, described
from trainer.engine import mx
from trainer.parameters import array_of
from utils import SetupError

# (inputs, targets, generator of random changes in training; None in an evaluation) -> (inputs, targets)
Prepare = Callable[[Any, Any, "np.random.Generator | None"], tuple[Any, Any]]
Loss = Callable[[Any, Any], mx.nd.NDArray]  # (outputs, targets) -> loss of each sample (N,)


class Feed:
    """Prepares samples and brings them to the device."""

    def __init__(self, device: mx.Context, prepare: Prepare | None = None) -> None:
        self._device = device
        self._prepare = prepare

    def __call__(self, raw: Raw, random: np.random.Generator | None = None) -> Batch:
        """The batch of some samples; `random` draws their changes in training."""
        if self._prepare is None:
            return self.placed(raw.inputs, raw.targets, raw.size)
        with self._device:
            inputs, targets = self._prepare(raw.inputs, raw.targets, random)
            return self.placed(inputs, targets, raw.size)

    def placed(self, inputs: Any, targets: Any, size: int = 0) -> Batch:
        """Brings arrays of numbers to the device: numpy's as float32, MXNet's as they are.

        Raises:
            SetupError: one of them is no array of numbers.
        """
        own, wanted = (
            tuple(map(self._placed, each if isinstance(each, tuple) else (each,))) for each in (inputs, targets)
        )
        return Batch(own, wanted, size or len(wanted[0]))

    def _placed(self, value: Any) -> mx.nd.NDArray:
        if isinstance(value, mx.nd.NDArray):
            return value.as_in_context(self._device)
        try:
            return array_of(np.ascontiguousarray(value, np.float32), self._device)
        except (TypeError, ValueError) as error:
            raise SetupError(
                f"samples that are {described(value)} are no numbers of one shape ({error}): make them that in "
                "prepare(inputs, targets) or batchify(samples)"
            ) from None


def cross_entropy() -> Loss:
    """The loss of scores (N, C) and classes (N,)."""
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    loss.hybridize()
    return loss


class Passes(Protocol):
    """The forward and the backward pass of a step. Both only begin."""

    def forward(self, inputs: Sequence[Any], targets: Sequence[Any]) -> None:
        """Begins the forward pass on a batch."""

    def wait_for_loss(self) -> None:
        """Waits for the end of the forward pass."""

    def backward(self) -> None:
        """Begins the backward pass: gradients of the loss summed over the batch."""

    def loss(self) -> float | None:
        """Mean loss over the samples of the last batch that had a backward pass; None where it is not known."""

    def end(self) -> None:
        """Called after the last step."""


class NetworkPasses:
    """The passes of an MXNet network."""

    def __init__(self, network: Any, loss: Loss) -> None:
        self._network = network
        self._loss_function = loss
        self._running: mx.nd.NDArray | None = None
        self._complete: mx.nd.NDArray | None = None

    def forward(self, inputs: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray]) -> None:
        with mx.autograd.record(), shapes_told(inputs, targets):
            self._running = self._loss_function(self._network(*inputs), single(targets))

    def wait_for_loss(self) -> None:
        assert self._running is not None
        self._running.wait_to_read()

    def backward(self) -> None:
        assert self._running is not None
        self._complete = self._running
        self._complete.backward()

    def loss(self) -> float:
        assert self._complete is not None
        return float(self._complete.mean().asscalar())

    def end(self) -> None: ...


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
        """
        Args:
            test: begins the batches of the test set.
            measurement: begins a measurement.
        """
        self._network = network
        self._test = test
        self._measurement = measurement

    def __call__(self) -> float:
        measurement = self._measurement()
        for batch in self._test():
            with shapes_told(batch.inputs, batch.targets):
                measurement.add(batch.targets, self._network(*batch.inputs))
        return measurement.value()


def single(values: Sequence[Any]) -> Any:
    """The only one of several values, or all of them."""
    return values[0] if len(values) == 1 else values


@contextlib.contextmanager
def shapes_told(inputs: Sequence[Any], targets: Sequence[Any]) -> Iterator[None]:
    """An error inside gets the attribute `batch`: the shapes in words."""
    try:
        yield
    except Exception as error:
        shapes = [" and ".join(str(tuple(array.shape)) for array in part) for part in (inputs, targets)]
        error.batch = f"a batch of inputs {shapes[0]} and targets {shapes[1]}"  # type: ignore[attr-defined]
        raise
