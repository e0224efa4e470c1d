"""MXNet's distributed kvstore as a transport.

What it does to arrays (measured on MXNet 1.9.1):

- It takes arrays of its own kind. Here they share their memory with numpy's (engine.shared_with_mxnet), so nothing is
  copied, and a caller has to wait for what it gave to a push or a pull.
- A pull also overwrites the array that was pushed last under the key. So only arrays are pushed whose content
  may be lost, and the pull goes into the same array, which saves a copy.
- Issuing all pushes, then all pulls, then waiting once takes two thirds of the time of waiting for each key.
"""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from trainer.engine import array_of, memory_of, mx, shared_with_mxnet
from trainer.transport.protocol import ByteCounter, SummedArrays, largest

NUMBERS_KEY = 1_000_000  # far from the model's own keys
MULTIPLE_PRECISION = 1  # a command: float16 arrays are added up in float32


class KVStoreArrays(ByteCounter):
    """Arrays of which number i has the key `first_key + i`. They are SummedArrays: `dist_sync` without an optimizer
    gives back the sum of all pushes."""

    largest = math.inf

    def __init__(self, store: Any, first_key: int = 0) -> None:
        super().__init__()
        self._store = store
        self._first_key = first_key
        # MXNet's arrays of the last push and of the last pull, with their memory: to make one takes 30 us.
        self._pushed: list[tuple[Any, mx.nd.NDArray]] = []
        self._pulled: list[tuple[Any, mx.nd.NDArray]] = []

    def _in_mxnet(self, arrays: Sequence[np.ndarray]) -> list[tuple[Any, mx.nd.NDArray]]:
        """MXNet's arrays of this memory, those of before where they are known."""
        known = dict([*self._pushed, *self._pulled])
        places = ((array.ctypes.data, array.shape, array.dtype) for array in arrays)
        return [
            (place, known[place] if place in known else shared_with_mxnet(array))
            for place, array in zip(places, arrays, strict=True)
        ]

    def broadcast(self, arrays: Sequence[np.ndarray], exact: int = 0) -> None:
        # Copies, since the kvstore keeps them, and an inference pass may move the network's own memory.
        keys = list(range(self._first_key, self._first_key + len(arrays)))
        self._store.init(keys, list(map(array_of, arrays)))
        self.pull(arrays)
        self.wait(arrays)
        self.take_traffic()  # only the rounds' traffic counts

    def push(self, arrays: Sequence[np.ndarray]) -> None:
        self._pushed = self._in_mxnet(arrays)
        for index, (_, array) in enumerate(self._pushed):
            self._store.push(self._first_key + index, array, priority=-index)
        self.count_pushed(arrays)

    def pull(self, arrays: Sequence[np.ndarray]) -> None:
        self._pulled = self._in_mxnet(arrays)
        for index, (_, array) in enumerate(self._pulled):
            self._store.pull(self._first_key + index, out=array, priority=-index)
        self.count_pulled(arrays)

    def wait(self, arrays: Sequence[np.ndarray]) -> None:
        for _, array in self._pulled:
            array.wait_to_read()

    def begin_sum(self, arrays: Sequence[np.ndarray]) -> None:
        self.push(arrays)

    def finish_sum(self, arrays: Sequence[np.ndarray], timed: bool = False) -> float | None:
        """As SummedArrays. Times the pull, which has as many bytes as the push and waits for no worker: the kvstore
        acknowledges a push only when all workers have pushed."""
        if timed:
            for _, array in self._pushed:  # the kvstore reads it until the server has acknowledged it
                mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))
        begin = time.monotonic()
        self.pull(arrays)
        self.wait(arrays)
        return time.monotonic() - begin if timed else None


class HalvedSums:
    """SummedArrays that travel as float16: MXNet's server, once multiple precision is on, adds up in float32 and rounds
    the sum, which all workers pull. MXNet's cast takes half of numpy's time."""

    def __init__(self, keyed: SummedArrays, largest: float) -> None:
        """`keyed` sums the arrays that travel, on the server; `largest` as SummedArrays."""
        self._keyed, self.largest = keyed, largest
        self.take_traffic = keyed.take_traffic
        self._num_halved = 0
        self._travelling: list[np.ndarray] = []
        # By an array's memory: MXNet's array of it, its float16 copy, and the copy's memory. Mostly each round has the
        # arrays of the one before.
        self._known: dict[Any, tuple[Any, Any, np.ndarray]] = {}

    def broadcast(self, arrays: Sequence[np.ndarray], exact: int = 0) -> None:
        """As SummedArrays. The values travel as they are, under keys behind those of the sums."""
        self._num_halved = len(arrays) - exact
        self._keyed.broadcast([*map(np.zeros_like, self._encoded(arrays)), *arrays])

    def begin_sum(self, arrays: Sequence[np.ndarray]) -> None:
        self._travelling = self._encoded(arrays)
        self._keyed.begin_sum(self._travelling)

    def finish_sum(self, arrays: Sequence[np.ndarray], timed: bool = False) -> float | None:
        took_s = self._keyed.finish_sum(self._travelling, timed)
        halved = self._halved(arrays)
        for whole, half, _ in halved:
            mx.nd.cast(half, dtype="float32", out=whole)
        for whole, *_ in halved:
            whole.wait_to_read()
        return took_s

    def _encoded(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What travels in their place, which holds until the next call."""
        halved = self._halved(arrays)
        for whole, half, _ in halved:
            mx.nd.cast(whole, dtype="float16", out=half)
        for _, half, _ in halved:
            half.wait_to_read()
        return [*(copy for *_, copy in halved), *arrays[self._num_halved :]]

    def _halved(self, arrays: Sequence[np.ndarray]) -> list[tuple[Any, Any, np.ndarray]]:
        found = {}
        for array in arrays[: self._num_halved]:
            place = array.ctypes.data, array.shape
            found[place] = self._known.get(place) or _with_a_half(array)
        self._known = found
        return list(found.values())


def _with_a_half(array: np.ndarray) -> tuple[Any, Any, np.ndarray]:
    half = mx.nd.empty(array.shape, dtype="float16")
    return shared_with_mxnet(array), half, memory_of(half).reshape(array.shape)


class KVStoreTransport:
    """A worker of a real cluster. `store` is `mx.kv.create("dist_sync")`."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.rank: int = store.rank
        self.num_workers: int = store.num_workers

    def sums(self, as_halves: bool = False) -> KVStoreArrays | HalvedSums:
        if not as_halves:
            return KVStoreArrays(self.store)
        if self.rank == 0:
            self.store._send_command_to_servers(MULTIPLE_PRECISION, "")
        return HalvedSums(KVStoreArrays(self.store), largest(self.num_workers))

    def agree(self, numbers: Sequence[float]) -> list[float]:
        agreed = np.array(numbers, np.float32)
        KVStoreArrays(self.store, NUMBERS_KEY).broadcast([agreed])
        return agreed.tolist()
