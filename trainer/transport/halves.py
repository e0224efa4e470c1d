"""Float16 copies of float32 arrays, by MXNet's cast, which takes half of numpy's time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.engine import memory_of, mx, shared_with_mxnet


class Halves:
    """Keeps the copies, and MXNet's arrays of both memories, since mostly each round has the arrays of the one
    before."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, Any, np.ndarray]] = {}  # by the array's memory: MXNet's array of it, its
        # copy, and the copy's memory

    def encode(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Float16 copies of the arrays, which hold until the next call."""
        found = self._of(arrays)
        for whole, half, _ in found:
            mx.nd.cast(whole, dtype="float16", out=half)
        for _, half, _ in found:
            half.wait_to_read()
        return [copy for *_, copy in found]

    def decode(self, arrays: Sequence[np.ndarray]) -> None:
        """Writes the copies, which have become sums, into the arrays that were encoded."""
        found = self._of(arrays)
        for whole, half, _ in found:
            mx.nd.cast(half, dtype="float32", out=whole)
        for whole, *_ in found:
            whole.wait_to_read()

    def _of(self, arrays: Sequence[np.ndarray]) -> list[tuple[Any, Any, np.ndarray]]:
        found = {}
        for array in arrays:
            place = array.ctypes.data, array.shape
            found[place] = self._known.get(place) or _with_a_half(array)
        self._known = found
        return list(found.values())


def _with_a_half(array: np.ndarray) -> tuple[Any, Any, np.ndarray]:
    half = mx.nd.empty(array.shape, dtype="float16")
    return shared_with_mxnet(array), half, memory_of(half).reshape(array.shape)
