"""The model's parameters, and their way over MXNet's kvstore.

What the kvstore does to arrays decides how they are used here (measured on MXNet 1.9.1):

- It takes default-layout arrays only. Gradients are; weights are not after an inference forward pass on the CPU,
  until the next training pass; the result of `a - b` always is.
- A pull also overwrites the array that was pushed last under the key. So only arrays are pushed whose content
  may be lost, and the pull goes into the same array, which saves a copy.
- Issuing all pushes, then all pulls, then waiting once takes two thirds of the time of waiting for each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from trainer.engine import mx


class Parameters:
    """A network's trainable weights with their gradients, and its auxiliary parameters (BatchNorm's statistics)."""

    def __init__(self, network: Any) -> None:
        parameters = list(network.collect_params().values())
        self._trainable = [parameter for parameter in parameters if parameter.grad_req != "null"]
        self._auxiliary = [parameter for parameter in parameters if parameter.grad_req == "null"]

    @property
    def weights(self) -> list[mx.nd.NDArray]:
        """The trainable weights themselves, in the order of the layers."""
        return [parameter.data() for parameter in self._trainable]

    @property
    def gradients(self) -> list[mx.nd.NDArray]:
        """The gradients of `weights`, in their order: overwritten by each backward pass."""
        return [parameter.grad() for parameter in self._trainable]

    def statistics(self) -> list[mx.nd.NDArray]:
        """A copy of the auxiliary parameters as one flat array: many small keys would cost more than this copy.

        No array where the network has none.
        """
        flat = [parameter.data().reshape(-1) for parameter in self._auxiliary]
        return [mx.nd.concat(*flat, dim=0)] if flat else []

    def set_statistics(self, statistics: Sequence[mx.nd.NDArray]) -> None:
        """Writes back what `statistics` returned."""
        for flat in statistics:
            begin = 0
            for parameter in self._auxiliary:
                target = parameter.data()
                flat[begin : begin + target.size].reshape(target.shape).copyto(target)
                begin += target.size

    def model(self) -> list[mx.nd.NDArray]:
        """All that a model is: the weights themselves, and behind them what `statistics` returns."""
        return [*self.weights, *self.statistics()]

    def take_back(self, model: Sequence[mx.nd.NDArray]) -> None:
        """What was written into the arrays of `model` becomes the network's: the weights are already."""
        self.set_statistics(model[len(self.weights) :])

    def replace(self, model: Sequence[mx.nd.NDArray]) -> None:
        """Copies other arrays of the shapes of `model` into the network."""
        for weight, array in zip(self.weights, model, strict=False):
            array.copyto(weight)
        self.take_back(model)

    def sgd_step(self, step_size: float) -> None:
        """w <- w - step_size * gradient."""
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            mx.nd.sgd_update(weight, gradient, lr=step_size, out=weight)

    def num_bytes(self) -> int:
        """Size of weights and auxiliary parameters."""
        return sum(num_bytes(parameter.data()) for parameter in self._trainable + self._auxiliary)


class Exchange:
    """A list of arrays over the kvstore: array i lives under key `first_key + i`.

    Counts the bytes of the arrays that it pushes and pulls.
    """

    def __init__(self, store: Any, first_key: int = 0) -> None:
        self._store = store
        self._first_key = first_key
        self._bytes_pushed = 0
        self._bytes_pulled = 0

    def define(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """Defines the keys with rank 0's values. Every rank calls it, once."""
        self._store.init(list(range(self._first_key, self._first_key + len(arrays))), list(arrays))

    def broadcast(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """Defines the keys; afterwards every rank's arrays hold rank 0's values. Every rank calls it, once."""
        self.define(arrays)
        self.pull(arrays)
        mx.nd.waitall()
        self.take_traffic()  # the rounds' traffic is what is asked for

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled since the last call, under their names in the round logs."""
        traffic = {"bytes_pushed": self._bytes_pushed, "bytes_pulled": self._bytes_pulled}
        self._bytes_pushed = self._bytes_pulled = 0
        return traffic

    def push(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """Begins to push all arrays, each as soon as it is computed; early layers first where there is a choice."""
        for index, array in enumerate(arrays):
            self._store.push(self._first_key + index, array, priority=-index)
        self._bytes_pushed += sum(map(num_bytes, arrays))

    def pull(self, arrays: Sequence[mx.nd.NDArray], first: int = 0) -> None:
        """Begins to pull into all arrays, from position `first` on; wait for them before you rely on their values."""
        for index, array in enumerate(arrays, start=first):
            self._store.pull(self._first_key + index, out=array, priority=-index)
        self._bytes_pulled += sum(map(num_bytes, arrays))


def wait_for(arrays: Iterable[mx.nd.NDArray]) -> None:
    """Waits until all arrays are computed, and for nothing else."""
    for array in arrays:
        array.wait_to_read()


def num_bytes(array: mx.nd.NDArray) -> int:
    """Size of an array's content."""
    return int(array.size * array.dtype().itemsize)
