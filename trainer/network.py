"""What computes: a network on its device with the passes of a local step, by the protocols that algorithms, checks and
transports know, and its parameters as algorithms use them."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from trainer.datasets.finite import faults

if TYPE_CHECKING:
    from trainer.datasets.batches import Feed, Prepare
    from trainer.draws import Draws

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


def sha256(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 of the concatenated content of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


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


class Passes:
    """The forward and the backward pass of a step. Both only begin. Those of this class take no time and compute
    nothing."""

    def forward(self, batch: Batch) -> None:
        """Begins the forward pass on a batch."""

    def wait_for_loss(self) -> None:
        """Waits for the end of the forward pass."""

    def backward(self) -> None:
        """Begins the backward pass: gradients of the loss summed over the batch."""

    def loss(self) -> float | None:
        """Mean loss over the samples of the last batch that had a backward pass; None where it is not known."""
        return 0.0

    def end(self) -> None:
        """Called after the last step."""


class Network(Protocol):
    """A network whose arrays the host can read and write.

    On the CPU the host arrays are the network's own memory, float32, contiguous. They are valid until the network is
    used again, by its passes or for outputs. Getting them waits for these.
    """

    suffix: str  # of a file with its parameters
    names: list[str]  # of `weights`, such as conv0_weight

    @property
    def weights(self) -> list[np.ndarray]:
        """The trainable weights, in the order of the layers. Frozen ones stay as they are and never travel."""

    @property
    def gradients(self) -> list[np.ndarray]:
        """The gradients of `weights`, in their order; each backward pass overwrites them."""

    @property
    def statistics(self) -> list[np.ndarray]:
        """BatchNorm's running means and variances."""

    def passes(self, loss: Any, draws: Draws, samples: Callable[[], int]) -> Passes:
        """The passes of a step with this loss (None: cross-entropy). `draws` seeds what a pass draws, such as dropout's
        masks, by the number of this worker's samples so far."""

    def feed(self, prepare: Prepare | None) -> Feed:
        """What brings samples to the network's device."""

    def outputs(self, batch: Batch) -> Any:
        """What the network gives for the inputs, without a gradient, in arrays of its own kind."""

    def seed(self, number: int) -> None:
        """Seeds the random generator of its library."""

    def state(self) -> dict[str, np.ndarray]:
        """Copies of all parameters, frozen ones too, by their names."""

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes parameters by their names."""


class JobNetwork(Network, Protocol):
    """A network of a job file, or a built-in one: what a job asks of it, whatever library it is of. jobs/gluon.py and
    jobs/torch_network.py answer."""

    device: Any  # of its library

    @property
    def layers(self) -> Any:
        """The library's own object, such as a gluon Block, for one use of it: host arrays from before are no longer
        valid."""

    @property
    def frozen(self) -> list[np.ndarray]:
        """Copies of the weights that stay as they are."""

    def begin(self) -> None:
        """Called before a training loop of the user's own computes gradients."""

    def own_loop(self) -> Callable[[bool], str]:
        """Returns a function that says at the end of each step of such a loop what is wrong with it, in words. Its
        argument: whether the step is the first, which must have computed gradients."""

    def tried(self, loss: Loss | None, batch: Batch, outputs: Any) -> Any:
        """The loss (None: cross-entropy) as `passes` and `total` take it, after a trial on a batch and its outputs.
        Raises SetupError if it cannot be trained with."""

    def total(self, loss: Any, outputs: Any, batch: Batch) -> float:
        """The losses of a batch's samples, added up, by what `tried` has returned."""

    def on(self, use_cpu: bool, gpu: int) -> JobNetwork:
        """The network on its device, once it was tried on the CPU. Raises SetupError if there is no such device."""

    def keep_memory(self) -> None:
        """The passes keep their memory, which takes less time and more memory."""

    def saved(self, inputs: Sequence[str]) -> tuple[bytes | None, bytes]:
        """The content of files with its layers, where its library has such a file, and with its parameters. `inputs`
        are the names of its inputs."""

    def restore(self, file: Path) -> None:
        """Takes all parameters of a file of `saved`. Raises SetupError if they are another network's."""

    def found_in(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Those of a file's arrays whose names are the network's, in whatever way of naming, by the names of
        `state`."""


class Parameters:
    """A network's trainable weights with their gradients, and BatchNorm's statistics as one array."""

    def __init__(self, network: Network) -> None:
        self._network = network

    @property
    def weights(self) -> list[np.ndarray]:
        """As Network.weights."""
        return self._network.weights

    @property
    def names(self) -> Sequence[str]:
        """As Network.names."""
        return self._network.names

    @property
    def gradients(self) -> list[np.ndarray]:
        """As Network.gradients."""
        return self._network.gradients

    def statistics(self) -> list[np.ndarray]:
        """A copy of BatchNorm's statistics as one flat array, cheaper to exchange than many small ones; empty if the
        network has none."""
        found = self._network.statistics
        return [np.concatenate([array.reshape(-1) for array in found], dtype=np.float32)] if found else []

    def set_statistics(self, statistics: Sequence[np.ndarray]) -> None:
        """Writes arrays of the form of `statistics` into the network."""
        for flat in statistics:
            begin = 0
            for target in self._network.statistics:
                own = flat[begin : begin + target.size].reshape(target.shape)
                target[...] = own if target.dtype == np.float32 else np.rint(own)  # a mean of counts
                begin += target.size

    def model(self) -> list[np.ndarray]:
        """The weights themselves, then `statistics`."""
        return [*self.weights, *self.statistics()]

    def copied(self) -> list[np.ndarray]:
        """A copy of `model()`."""
        return [array.copy() for array in self.model()]

    def replace(self, model: Sequence[np.ndarray]) -> None:
        """Copies arrays of the form of `model()` into the network."""
        for weight, array in zip(self.weights, model, strict=False):
            weight[...] = array
        self.set_statistics(model[len(self.weights) :])  # the weights are the network's own

    def sha256(self) -> str:
        """A hash of the trainable weights."""
        return sha256(self.weights)

    def num_bytes(self) -> int:
        """Size of trainable weights and statistics."""
        return 4 * sum(array.size for array in (*self.weights, *self._network.statistics))
