"""Sums on a parameter server that travel as float16: MXNet's server, once multiple precision is on (kvstore.py), adds
up in float32 and rounds the sum, which all workers pull. MXNet's cast takes half of numpy's time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.engine import memory_of, mx, shared_with_mxnet
from trainer.transport.protocol import SummedArrays

Arrays = Sequence[np.ndarray]


class HalvedSums:
    """SummedArrays."""

    def __init__(self, keyed: SummedArrays, largest: float) -> None:
        """`keyed` sums the arrays that travel, on the server; `largest` as SummedArrays."""
        self._keyed, self.largest = keyed, largest
        self.take_traffic = keyed.take_traffic
        self._num_halved = 0
        self._travelling: list[np.ndarray] = []
        # By an array's memory: MXNet's array of it, its float16 copy, and the copy's memory. Mostly each round has the
        # arrays of the one before.
        self._known: dict[Any, tuple[Any, Any, np.ndarray]] = {}

    def broadcast(self, arrays: Arrays, exact: int = 0) -> None:
        """As SummedArrays. The values travel as they are, under keys behind those of the sums."""
        self._num_halved = len(arrays) - exact
        self._keyed.broadcast([*map(np.zeros_like, self._encoded(arrays)), *arrays])

    def begin_sum(self, arrays: Arrays) -> None:
        self._travelling = self._encoded(arrays)
        self._keyed.begin_sum(self._travelling)

    def finish_sum(self, arrays: Arrays, timed: bool = False) -> float | None:
        took_s = self._keyed.finish_sum(self._travelling, timed)
        halved = self._halved(arrays)
        for whole, half, _ in halved:
            mx.nd.cast(half, dtype="float32", out=whole)
        for whole, *_ in halved:
            whole.wait_to_read()
        return took_s

    def _encoded(self, arrays: Arrays) -> list[np.ndarray]:
        """What travels in their place, which holds until the next call."""
        halved = self._halved(arrays)
        for whole, half, _ in halved:
            mx.nd.cast(whole, dtype="float16", out=half)
        for _, half, _ in halved:
            half.wait_to_read()
        return [*(copy for *_, copy in halved), *arrays[self._num_halved :]]

    def _halved(self, arrays: Arrays) -> list[tuple[Any, Any, np.ndarray]]:
        found = {}
        for array in arrays[: self._num_halved]:
            place = array.ctypes.data, array.shape
            found[place] = self._known.get(place) or _with_a_half(array)
        self._known = found
        return list(found.values())


def _with_a_half(array: np.ndarray) -> tuple[Any, Any, np.ndarray]:
    half = mx.nd.empty(array.shape, dtype="float16")
    return shared_with_mxnet(array), half, memory_of(half).reshape(array.shape)
