"""A transport on which the workers sum among themselves: no scheduler, no parameter server.

A thread beside the training one runs the tasks that use the group, one by one: gradients travel during the backward
pass.

Traffic counts the arrays' bytes on a worker's own link, without headers and barriers: those sent as pushed, those
received as pulled. A parameter server's traffic counts likewise, so the totals over all workers of both kinds of job
compare.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from config import FP16, UNCOMPRESSED
from trainer.clock import Clock, Result, Task
from trainer.collectives.compression import AS_IT_IS, Compression
from trainer.collectives.group import Group
from trainer.collectives.mesh import Moved
from trainer.engine import mx
from trainer.parameters import num_bytes, wait_for
from trainer.transport.counter import ByteCounter
from trainer.transport.flat import Buffer, buffers_of
from utils import PeerLost, SetupError


class CollectiveSums(ByteCounter):
    """SummedArrays over a collective."""

    def __init__(self, transport: CollectiveTransport, compression: Compression = AS_IT_IS) -> None:
        """
        Args:
            compression: none or fp16; another raises SetupError.
        """
        super().__init__(transport.size_of)
        if compression.kind not in (UNCOMPRESSED, FP16):
            _refuse(f"{compression.kind} compression")
        self.largest = compression.largest(transport.num_workers)
        self._compression = compression
        self._transport = transport
        self._buffers: list[Buffer] = []
        # Whether a barrier comes before each sum, so that its time holds no wait for the slowest worker. All workers
        # must agree: they do, since they run the same algorithm, which times the first sum or does not.
        self._meets = True
        self._is_first = True
        self._last_s = 0.0  # duration of the last timed sum on this worker
        self._summing: Task[float | None] | None = None

    def broadcast(self, arrays: Sequence[mx.nd.NDArray], exact: int = 0, source: int = 0) -> None:
        """As SummedArrays, with the values of rank `source`."""
        self.prepare(arrays, exact)
        group = self._transport.group

        def spread(buffer: Buffer, content: np.ndarray) -> Moved:
            return group.broadcast(content, buffer.num_bytes, source)

        self._transport.begin(lambda: self._each(spread, arrays), "broadcast").result()
        self.take_traffic()  # only the rounds' traffic counts

    def prepare(self, arrays: Sequence[mx.nd.NDArray], exact: int = 0) -> None:
        """Makes the buffers, as `broadcast` does first; a worker that comes to a running job calls it by itself."""
        num_as_halves = len(arrays) - exact if self._compression.kind == FP16 else 0
        self._buffers = buffers_of(arrays, self._transport.size_of, num_as_halves)

    @property
    def meets(self) -> bool:
        """Whether a barrier comes before each sum, on which all workers must agree."""
        return self._meets

    def continue_with(self, meets: bool) -> None:
        """Continues with other workers in the middle of a job.

        Args:
            meets: that of the workers that were there before.
        """
        self._meets, self._is_first = meets, False
        self.largest = self._compression.largest(self._transport.num_workers)

    def begin_sum(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        mine = list(arrays)
        self._summing = self._transport.begin(lambda: self._sum(mine), "sum")

    def _sum(self, arrays: Sequence[mx.nd.NDArray]) -> float | None:
        transport = self._transport

        def add_up(buffer: Buffer, content: np.ndarray) -> Moved:
            return transport.group.all_reduce(content, buffer.bytes_in_sum, buffer.num_halves)

        if not self._meets:
            self._each(add_up, arrays)
            return None
        wait_for(arrays)
        told_s = transport.group.barrier(self._last_s)
        begin = transport.clock.now()
        self._each(add_up, arrays)
        self._last_s = transport.clock.now() - begin
        return self._last_s if self._is_first else told_s

    def finish_sum(self, arrays: Sequence[mx.nd.NDArray], timed: bool = False) -> float | None:
        """As SummedArrays. Where the first sum was timed, all later ones are.

        Some workers have the sum before others, by their places in the schedule, and should not take that for a slow
        link. So all get the same time, the longest of the sum before; for the first sum each gets its own.
        """
        assert self._summing is not None, "begin_sum comes first"
        took_s = self._summing.result()
        if self._is_first:
            self._meets, self._is_first = timed, False
        return took_s if timed else None

    def _each(self, exchange: Callable[[Buffer, np.ndarray], Moved], arrays: Sequence[mx.nd.NDArray]) -> None:
        """Exchanges the buffers in turn, each as soon as its arrays are computed."""
        for buffer in self._buffers:
            self.count_moved(*exchange(buffer, buffer.take(arrays)))
        mx.nd.waitall()  # earlier operations may still read the arrays
        for buffer in self._buffers:
            buffer.give(arrays)


class CollectiveArrays:
    """The part of SharedArrays that needs no parameter server: `broadcast`. The rest raises SetupError."""

    def __init__(self, transport: CollectiveTransport) -> None:
        self._sums = CollectiveSums(transport)
        self.broadcast = self._sums.broadcast
        self.take_traffic = self._sums.take_traffic

    def define(self, arrays: Sequence[mx.nd.NDArray]) -> NoReturn:
        _refuse("arrays on one")

    def push(self, arrays: Sequence[mx.nd.NDArray]) -> NoReturn:
        _refuse("pushes")

    def wait_until_arrived(self, arrays: Sequence[mx.nd.NDArray]) -> NoReturn:
        _refuse("pushes")

    def pull(self, arrays: Sequence[mx.nd.NDArray], first: int = 0) -> NoReturn:
        _refuse("pulls")

    def wait(self, arrays: Sequence[mx.nd.NDArray]) -> NoReturn:
        _refuse("pulls")


def _refuse(what: str) -> NoReturn:
    raise SetupError(f"workers that sum among themselves have no parameter server for {what}: take --collective ps")


class CollectiveTransport:
    """One worker's transport over a group, of the kind SUM alone.

    Args:
        size_of: bytes that an array counts.
    """

    def __init__(
        self,
        group: Group,
        clock: Clock,
        size_of: Callable[[mx.nd.NDArray], int] = num_bytes,
    ) -> None:
        self.group = group
        self.clock = clock
        self.size_of = size_of
        self._last: Task[object] | None = None

    @property
    def rank(self) -> int:
        return self.group.rank

    @property
    def num_workers(self) -> int:
        return self.group.num_workers

    def go_over_to(self, group: Group) -> None:
        """Continues with these workers, once the last task with the former ones has failed or is done."""
        if self._last is not None:
            with contextlib.suppress(PeerLost):
                self._last.result()
        self._last, self.group = None, group

    def sums(self, compression: Compression = AS_IT_IS, first_key: int = 0) -> CollectiveSums:
        """As Transport; 2bit raises SetupError."""
        return CollectiveSums(self, compression)

    def arrays(self, first_key: int = 0) -> CollectiveArrays:
        return CollectiveArrays(self)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> NoReturn:
        _refuse("an optimizer")

    def barrier(self) -> None:
        self.begin(self.group.barrier, "barrier").result()

    def wait_all(self) -> None:
        if self._last is not None:
            self._last.result()
        mx.nd.waitall()

    def begin(self, work: Callable[[], Result], name: str) -> Task[Result]:
        """Starts a task that uses the group, beside the caller and after the tasks that were started before."""
        before = self._last

        def after_that() -> Result:
            if before is not None:
                before.result()
            return work()

        task = self.clock.start(after_that, f"{name} of worker {self.rank}")
        self._last = task
        return task
