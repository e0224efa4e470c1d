"""The model's parameters on this device."""

import ctypes
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from trainer.datasets.partitions import sha256
from trainer.engine import mx


class Parameters:
    """A network's trainable weights with their gradients, and its auxiliary parameters (BatchNorm's statistics).

    Frozen weights, whose grad_req the network has set to "null", stay as they are on each worker and never travel.
    """

    def __init__(self, network: Any) -> None:
        parameters = list(network.collect_params().values())
        self._trainable = [parameter for parameter in parameters if parameter.grad_req != "null"]
        fixed = [parameter for parameter in parameters if parameter.grad_req == "null"]
        self._auxiliary = [parameter for parameter in fixed if not parameter._differentiable]
        self._frozen = [parameter for parameter in fixed if parameter._differentiable]

    @property
    def weights(self) -> list[mx.nd.NDArray]:
        """The trainable weights themselves, in the order of the layers."""
        return [parameter.data() for parameter in self._trainable]

    @property
    def names(self) -> list[str]:
        """Names of `weights`, such as conv0_weight."""
        return [parameter.name for parameter in self._trainable]

    @property
    def gradients(self) -> list[mx.nd.NDArray]:
        """The gradients of `weights`, in their order; each backward pass overwrites them."""
        return [parameter.grad() for parameter in self._trainable]

    def statistics(self) -> list[mx.nd.NDArray]:
        """A copy of the auxiliary parameters as one flat array, cheaper to exchange than many small ones; empty if the
        network has none."""
        flat = [parameter.data().reshape(-1) for parameter in self._auxiliary]
        return [mx.nd.concat(*flat, dim=0)] if flat else []

    def set_statistics(self, statistics: Sequence[mx.nd.NDArray]) -> None:
        """Writes arrays of the form of `statistics` into the network."""
        for flat in statistics:
            begin = 0
            for parameter in self._auxiliary:
                target = parameter.data()
                flat[begin : begin + target.size].reshape(target.shape).copyto(target)
                begin += target.size

    def model(self) -> list[mx.nd.NDArray]:
        """The weights themselves, then `statistics`."""
        return [*self.weights, *self.statistics()]

    def write_back(self, model: Sequence[mx.nd.NDArray]) -> None:
        """Writes back the statistics of `model()` after its arrays were changed; the weights are the network's own."""
        self.set_statistics(model[len(self.weights) :])

    def replace(self, model: Sequence[mx.nd.NDArray]) -> None:
        """Copies arrays of the form of `model()` into the network."""
        for weight, array in zip(self.weights, model, strict=False):
            array.copyto(weight)
        self.write_back(model)

    def sha256(self) -> str:
        """A hash of the trainable weights."""
        return sha256(weight.asnumpy() for weight in self.weights)

    def frozen_sha256(self) -> str:
        """A hash of the frozen weights; "none" if there are none."""
        return sha256(each.data().asnumpy() for each in self._frozen) if self._frozen else "none"

    def num_bytes(self) -> int:
        """Size of trainable weights and auxiliary parameters."""
        return sum(num_bytes(parameter.data()) for parameter in self._trainable + self._auxiliary)


def wait_for(arrays: Iterable[mx.nd.NDArray]) -> None:
    """Waits until these arrays are computed."""
    for array in arrays:
        array.wait_to_read()


def num_bytes(array: mx.nd.NDArray) -> int:
    """Size of an array's content."""
    return math.prod(array.shape) * int(array.dtype().itemsize)


def array_of(numbers: np.ndarray, context: mx.Context | None = None) -> mx.nd.NDArray:
    """A device's copy of a numpy array, of the same type; by default the CPU's. Four times as fast as `mx.nd.array`,
    which counts in each step."""
    array = mx.nd.empty(numbers.shape, ctx=context, dtype=numbers.dtype)
    array._sync_copyfrom(numbers)
    return array


def memory_of(array: mx.nd.NDArray) -> np.ndarray:
    """A computed array's own memory on the CPU, float32 (n,). It stays valid while the array lives and MXNet does not
    use it: an inference pass may move weights elsewhere."""
    library, pointer = mx.base._LIB, ctypes.c_void_p()
    array.wait_to_read()
    # Restores the default layout if oneDNN has chosen another one.
    mx.base.check_call(library.MXNDArrayGetData(array.handle, ctypes.byref(pointer)))
    assert pointer.value is not None
    return np.frombuffer((ctypes.c_float * array.size).from_address(pointer.value), np.float32)
