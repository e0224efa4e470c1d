"""The forward and the backward pass of a local step."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from trainer.datasets.finite import faults
from trainer.draws import Draws
from trainer.engine import mx

Loss = Callable[[Any, Any], mx.nd.NDArray]  # (outputs, targets) -> loss of each sample (N,)


class Batch(NamedTuple):
    """Samples as the network and the loss take them: arrays (N, ...) on the device, and N."""

    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]
    size: int

    def fault(self) -> str:
        """Which numbers are not finite, in words; empty if all are. Waits for the device."""
        inputs, targets = ([array.asnumpy() for array in part] for part in (self.inputs, self.targets))
        return "; ".join(fault.text for fault in faults(inputs, targets))

    @property
    def arrays(self) -> tuple[Any, ...]:
        return (*self.inputs, *self.targets)


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

    def __init__(self, network: Any, loss: Loss, draws: Draws, samples: Callable[[], int]) -> None:
        """`draws`: dropout's masks, for example; `samples` is the number of this worker's samples so far."""
        self._draws, self._samples = draws, samples
        self._network = network
        self._loss_function = loss
        self._running: mx.nd.NDArray | None = None
        self._complete: mx.nd.NDArray | None = None

    def forward(self, inputs: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray]) -> None:
        self._draws.seed(self._samples(), lambda: [self._loss_of(inputs, targets)])
        self._running = self._loss_of(inputs, targets)

    def _loss_of(self, inputs: Sequence[mx.nd.NDArray], targets: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
        with mx.autograd.record(), shapes_told(inputs, targets):
            return self._loss_function(self._network(*inputs), single(targets))

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


def arrays_in(outputs: Any) -> Iterator[mx.nd.NDArray]:
    """Yields the arrays of a network's outputs, which may be one or a tree of tuples and lists."""
    if isinstance(outputs, (tuple, list)):
        for each in outputs:
            yield from arrays_in(each)
    elif isinstance(outputs, mx.nd.NDArray):
        yield outputs


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
