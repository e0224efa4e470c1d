"""MXNet's distributed kvstore as a transport.

What it does to arrays (measured on MXNet 1.9.1):

- It takes default-layout arrays only. Gradients are; weights are not after an inference forward pass on the CPU,
  until the next training pass; the result of `a - b` always is.
- A pull also overwrites the array that was pushed last under the key. So only arrays are pushed whose content
  may be lost, and the pull goes into the same array, which saves a copy.
- Issuing all pushes, then all pulls, then waiting once takes two thirds of the time of waiting for each key.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from config import FP16
from trainer.collectives.compression import AS_IT_IS, Compression, in_two_bits
from trainer.engine import mx
from trainer.parameters import wait_for
from trainer.transport.counter import ByteCounter
from trainer.transport.encoded import EncodedSums, encoded

MULTIPLE_PRECISION = 1  # a command: float16 arrays are added up in float32


class KVStoreArrays(ByteCounter):
    """SharedArrays, and SummedArrays: `dist_sync` without an optimizer gives back the sum of all pushes."""

    largest = math.inf

    def __init__(
        self,
        store: Any,
        first_key: int = 0,
        size_pushed: Callable[[int], int] = lambda size: size,
        is_defined: bool = False,
    ) -> None:
        super().__init__(size_pushed=size_pushed)
        self._store = store
        self._first_key = first_key
        self._is_defined = is_defined

    def define(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        if not self._is_defined:
            self._store.init(list(range(self._first_key, self._first_key + len(arrays))), list(arrays))

    def broadcast(self, arrays: Sequence[mx.nd.NDArray], exact: int = 0) -> None:
        self.define(arrays)
        self.pull(arrays)
        mx.nd.waitall()
        self.take_traffic()  # only the rounds' traffic counts

    def push(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        for index, array in enumerate(arrays):
            self._store.push(self._first_key + index, array, priority=-index)
        self.count_pushed(arrays)

    def wait_until_arrived(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """The kvstore reads the arrays themselves until the server has acknowledged them."""
        for array in arrays:
            mx.base.check_call(mx.base._LIB.MXNDArrayWaitToWrite(array.handle))

    def pull(self, arrays: Sequence[mx.nd.NDArray], first: int = 0) -> None:
        for index, array in enumerate(arrays, start=first):
            self._store.pull(self._first_key + index, out=array, priority=-index)
        self.count_pulled(arrays)

    def wait(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        wait_for(arrays)

    def begin_sum(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        self.push(arrays)

    def finish_sum(self, arrays: Sequence[mx.nd.NDArray], timed: bool = False) -> float | None:
        """As SummedArrays. Times the pull, which has as many bytes as the push and waits for no worker: the kvstore
        acknowledges a push only when all workers have pushed."""
        if timed:
            mx.nd.waitall()
        begin = time.monotonic()
        self.pull(arrays)
        mx.nd.waitall()
        return time.monotonic() - begin if timed else None


class KVStoreTransport:
    """A worker of a real cluster. `store` is `mx.kv.create("dist_sync")` or "dist_async". A worker that rejoins a
    cluster at work finds the keys and the optimizer there, and no other one waits at a barrier."""

    def __init__(self, store: Any, rejoins: bool = False) -> None:
        self.store = store
        self._rejoins = rejoins
        self.rank: int = store.rank
        self.num_workers: int = store.num_workers

    def sums(self, compression: Compression = AS_IT_IS, first_key: int = 0) -> KVStoreArrays | EncodedSums:
        if compression == AS_IT_IS:
            return self.arrays(first_key)
        if compression.kind == FP16:
            if self.rank == 0:
                self.store._send_command_to_servers(MULTIPLE_PRECISION, "")
            return encoded(self.arrays(first_key), compression, self.num_workers)
        # Decimals, not an exponent: MXNet parses those to the same float32 as Python.
        text = f"{compression.threshold:.6f}"
        self.store.set_gradient_compression({"type": "2bit", "threshold": text})
        return encoded(KVStoreArrays(self.store, first_key, in_two_bits), compression, self.num_workers)

    def arrays(self, first_key: int = 0) -> KVStoreArrays:
        return KVStoreArrays(self.store, first_key, is_defined=self._rejoins)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        if not self._rejoins:
            self.store.set_optimizer(optimizer)

    def barrier(self) -> None:
        if not self._rejoins:
            self.store._barrier()

    def wait_all(self) -> None:
        mx.nd.waitall()
