"""Sums on a parameter server that travel as float16: MXNet's server, once multiple precision is on (kvstore.py), adds
up in float32 and rounds the sum, which all workers pull."""

from collections.abc import Sequence

import numpy as np

from trainer.transport.halves import Halves
from trainer.transport.protocol import SummedArrays

Arrays = Sequence[np.ndarray]


class HalvedSums:
    """SummedArrays."""

    def __init__(self, keyed: SummedArrays, largest: float) -> None:
        """`keyed` sums the arrays that travel, on the server; `largest` as SummedArrays."""
        self._keyed, self._halves, self.largest = keyed, Halves(), largest
        self.take_traffic = keyed.take_traffic
        self._num_halved = 0
        self._travelling: list[np.ndarray] = []

    def broadcast(self, arrays: Arrays, exact: int = 0) -> None:
        """As SummedArrays. The values travel as they are, under keys behind those of the sums."""
        self._num_halved = len(arrays) - exact
        self._keyed.broadcast([*map(np.zeros_like, self._encoded(arrays)), *arrays])

    def begin_sum(self, arrays: Arrays) -> None:
        self._travelling = self._encoded(arrays)
        self._keyed.begin_sum(self._travelling)

    def finish_sum(self, arrays: Arrays, timed: bool = False) -> float | None:
        took_s = self._keyed.finish_sum(self._travelling, timed)
        self._halves.decode(arrays[: self._num_halved])
        return took_s

    def _encoded(self, arrays: Arrays) -> list[np.ndarray]:
        return [*self._halves.encode(arrays[: self._num_halved]), *arrays[self._num_halved :]]
