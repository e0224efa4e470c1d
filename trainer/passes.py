"""The forward and the backward pass of a local step."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainer.datasets.finite import faults

Loss = Callable[[Any, Any], Any]  # (outputs, targets) -> loss of each sample (N,)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor of torch, which may not be there."""
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def numpy_of(array: Any) -> np.ndarray:
    """A copy or a view of an array of MXNet, a tensor of torch, or what else numpy knows. bfloat16 becomes float32."""
    if hasattr(array, "asnumpy"):
        return array.asnumpy()
    if is_tensor(array):
        tensor = array.detach().cpu()
        return (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    return np.asarray(array)


def arrays_in(outputs: Any) -> Iterator[Any]:
    """Yields the arrays of a network's outputs, which may be one or a tree of tuples and lists."""
    if isinstance(outputs, (tuple, list)):
        for each in outputs:
            yield from arrays_in(each)
    elif hasattr(outputs, "shape"):
        yield outputs


class Batch(NamedTuple):
    """Samples as the network and the loss take them: arrays (N, ...) on the device, and N."""

    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]
    size: int

    def fault(self) -> str:
        """Which numbers are not finite, in words; empty if all are. Waits for the device."""
        inputs, targets = (list(map(numpy_of, part)) for part in (self.inputs, self.targets))
        return "; ".join(fault.text for fault in faults(inputs, targets))

    @property
    def arrays(self) -> tuple[Any, ...]:
        return (*self.inputs, *self.targets)


class Passes(Protocol):
    """The forward and the backward pass of a step. Both only begin."""

    def forward(self, batch: Batch) -> None:
        """Begins the forward pass on a batch."""

    def wait_for_loss(self) -> None:
        """Waits for the end of the forward pass."""

    def backward(self) -> None:
        """Begins the backward pass: gradients of the loss summed over the batch."""

    def loss(self) -> float | None:
        """Mean loss over the samples of the last batch that had a backward pass; None where it is not known."""

    def end(self) -> None:
        """Called after the last step."""


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
