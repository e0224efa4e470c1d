"""Float16 copies of float32 arrays, by MXNet's cast, which takes half of numpy's time."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.engine import mx, shared_with_mxnet


class Halves:
    """Keeps the copies, and MXNet's arrays of both memories, since mostly each round has the arrays of the one
    before."""

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, np.ndarray, Any]] = {}  # by the array's memory: it, its copy, MXNet's copy

    def encode(self, arrays: Sequence[np.ndarray], exact: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Float16 copies of the compressed arrays, which hold until the next call, and the exact ones."""
        found = self._of(arrays)
        for whole, _, half in found:
            mx.nd.cast(whole, dtype="float16", out=half)
        for *_, half in found:
            half.wait_to_read()
        return [*(copy for _, copy, _ in found), *exact]

    def decode(self, travelled: Sequence[np.ndarray], arrays: Sequence[np.ndarray], exact: object) -> None:
        """Writes the copies, which have become sums, into the arrays that were encoded."""
        found = self._of(arrays)
        for whole, _, half in found:
            mx.nd.cast(half, dtype="float32", out=whole)
        for whole, *_ in found:
            whole.wait_to_read()

    def _of(self, arrays: Sequence[np.ndarray]) -> list[tuple[Any, np.ndarray, Any]]:
        places = [(array.ctypes.data, array.shape) for array in arrays]
        if not self._known.keys() >= {*places}:
            made = {}
            for place, array in zip(places, arrays, strict=True):
                copy = np.empty(array.shape, np.float16)
                made[place] = self._known.get(place) or (shared_with_mxnet(array), copy, shared_with_mxnet(copy))
            self._known = made
        return [self._known[place] for place in places]
