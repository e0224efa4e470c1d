"""A transport over collectives: no scheduler, no parameter server.

Background threads run the collective operations, one at a time.

Traffic counts the arrays' bytes on a worker's own link, without headers and barriers: sent bytes as pushed, received
ones as pulled. A parameter server's traffic counts likewise, so totals over all workers are comparable.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from esync.clock import Clock, Result, Task
from trainer.collectives.mesh import Group, Moved
from trainer.transport.flat import Buffer, buffers_of
from trainer.transport.protocol import ByteCounter, largest, num_bytes
from utils import PeerLost


class CollectiveSums(ByteCounter):
    """SummedArrays over a collective."""

    def __init__(self, transport: CollectiveTransport, as_halves: bool = False) -> None:
        super().__init__(transport.size_of)
        self.largest = largest(transport.num_workers, as_halves)
        self._as_halves, self._transport = as_halves, transport
        self._buffers: list[Buffer] = []
        # Whether a barrier precedes each sum, so that its time excludes the wait for the slowest worker. It must be
        # equal on all workers: it precedes the first sum, and later ones if the algorithm times the first.
        self.meets = True
        self._is_first = True
        self._last_s = 0.0  # duration of the last timed sum on this worker
        self._summing: Task[float | None] | None = None

    def broadcast(self, arrays: Sequence[np.ndarray], exact: int = 0, source: int = 0) -> None:
        """As SummedArrays, with the values of rank `source`."""
        self.prepare(arrays, exact)
        group = self._transport.group

        def spread(buffer: Buffer, content: np.ndarray) -> Moved:
            return group.broadcast(content, buffer.num_bytes, source)

        self._transport.begin(lambda: self._each(spread, arrays), "broadcast").result()
        self.take_traffic()  # only the rounds' traffic counts

    def prepare(self, arrays: Sequence[np.ndarray], exact: int = 0) -> None:
        """Makes the buffers; a worker that joins a running job calls it in place of `broadcast`."""
        num_as_halves = len(arrays) - exact if self._as_halves else 0
        self._buffers = buffers_of(arrays, self._transport.size_of, num_as_halves)

    def continue_with(self, meets: bool) -> None:
        """Continues with the workers of a new generation. `meets` is that of the earlier workers."""
        self.meets, self._is_first = meets, False
        self.largest = largest(self._transport.num_workers, self._as_halves)

    def begin_sum(self, arrays: Sequence[np.ndarray]) -> None:
        mine = list(arrays)
        self._summing = self._transport.begin(lambda: self._sum(mine), "sum")

    def _sum(self, arrays: Sequence[np.ndarray]) -> float | None:
        transport = self._transport

        def add_up(buffer: Buffer, content: np.ndarray) -> Moved:
            return transport.group.all_reduce(content, buffer.bytes_in_sum, buffer.num_halves)

        if not self.meets:
            self._each(add_up, arrays)
            return None
        longest_s = transport.group.barrier(self._last_s)
        begin = transport.clock.now()
        self._each(add_up, arrays)
        self._last_s = transport.clock.now() - begin
        return self._last_s if self._is_first else longest_s

    def finish_sum(self, arrays: Sequence[np.ndarray], timed: bool = False) -> float | None:
        """As SummedArrays. If the first sum was not timed, no later one can be.

        The schedule completes the sum on some workers earlier, which says nothing about their links. So all get the
        same time, the longest of the sum before; only after the first sum each gets its own.
        """
        assert self._summing is not None, "begin_sum comes first"
        took_s = self._summing.result()
        if self._is_first:
            self.meets, self._is_first = timed, False
        return took_s if timed else None

    def _each(self, exchange: Callable[[Buffer, np.ndarray], Moved], arrays: Sequence[np.ndarray]) -> None:
        """Exchanges the buffers in turn."""
        for buffer in self._buffers:
            self.count_moved(*exchange(buffer, buffer.take(arrays)))
        for buffer in self._buffers:
            buffer.give(arrays)


class CollectiveTransport:
    """One worker's transport, of TransportKind.SUM only. `size_of` tells an array's bytes of traffic."""

    def __init__(self, group: Group, clock: Clock, size_of: Callable[[np.ndarray], int] = num_bytes) -> None:
        self.clock = clock
        self.size_of = size_of
        self._last: Task[object] | None = None
        self.go_over_to(group)

    def go_over_to(self, group: Group) -> None:
        """Switches to a group, once the last task of the one before has failed or is done."""
        if self._last is not None:
            with contextlib.suppress(PeerLost):
                self._last.result()
        self._last, self.group = None, group
        self.rank, self.num_workers = group.rank, group.num_workers

    def sums(self, as_halves: bool = False) -> CollectiveSums:
        return CollectiveSums(self, as_halves)

    def agree(self, numbers: Sequence[float]) -> list[float]:
        agreed = np.array(numbers, np.float32)
        CollectiveSums(self).broadcast([agreed])
        return agreed.tolist()

    def barrier(self) -> None:
        self.begin(self.group.barrier, "barrier").result()

    def gather(self, label: str, value: Any) -> list[Any]:
        """As Gather."""
        content, group = json.dumps(value).encode(), self.group
        return list(map(json.loads, self.begin(lambda: group.all_gather(content), label).result()))

    def begin(self, work: Callable[[], Result], name: str) -> Task[Result]:
        """Starts a background task that uses the group; it runs after all tasks started before."""
        before = self._last

        def in_turn() -> Result:
            if before is not None:
                before.result()
            return work()

        task = self.clock.start(in_turn, f"{name} of worker {self.rank}")
        self._last = task
        return task
