"""A transport on which the workers add up among themselves: no scheduler, no parameter server.

One task after the other uses the group, beside the training thread: gradients travel while the backward pass runs.

Traffic is what a worker's own link carries of the arrays: bytes sent count as pushed, bytes received as pulled, once
each, without headers and meetings. So it is on a parameter server, where what one worker sends to another is pushed by
the one and pulled by the other: the sums of both kinds of job over all workers compare.
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
            compression: none or fp16; raises SetupError for another.
        """
        super().__init__(transport.size_of)
        if compression.kind not in (UNCOMPRESSED, FP16):
            _refuse(f"{compression.kind} compression")
        self.largest = compression.largest(transport.num_workers)
        self._compression = compression
        self._transport = transport
        self._buffers: list[Buffer] = []
        # Whether the workers meet before each sum, so that what follows is no wait for the last of them. All must do
        # the same, and does whoever asks for the time of the first sum: all workers of a job run the same algorithm.
        self._meets = True
        self._is_first = True
        self._last_s = 0.0  # that the last timed sum took here
        self._summing: Task[float | None] | None = None

    def broadcast(self, arrays: Sequence[mx.nd.NDArray], exact: int = 0, source: int = 0) -> None:
        """As SummedArrays says; the values of rank `source`."""
        self.prepare(arrays, exact)
        group = self._transport.group

        def spread(buffer: Buffer, content: np.ndarray) -> Moved:
            return group.spread(content, buffer.num_bytes, source)

        self._transport.begin(lambda: self._each(spread, arrays), "broadcast").result()
        self.take_traffic()  # the rounds' traffic is what is asked for

    def prepare(self, arrays: Sequence[mx.nd.NDArray], exact: int = 0) -> None:
        """What `broadcast` does before it sends: whoever comes to a job at work has to do that alone."""
        num_as_halves = len(arrays) - exact if self._compression.kind == FP16 else 0
        self._buffers = buffers_of(arrays, self._transport.size_of, num_as_halves)

    @property
    def meets(self) -> bool:
        """Whether the workers meet before each sum, which all must know."""
        return self._meets

    def go_on(self, meets: bool) -> None:
        """From now on with other workers, in the middle of a job.

        Args:
            meets: as those who were there before have it.
        """
        self._meets, self._is_first = meets, False
        self.largest = self._compression.largest(self._transport.num_workers)

    def begin_sum(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """As SummedArrays says."""
        mine = list(arrays)
        self._summing = self._transport.begin(lambda: self._sum(mine), "sum")

    def _sum(self, arrays: Sequence[mx.nd.NDArray]) -> float | None:
        transport = self._transport

        def add_up(buffer: Buffer, content: np.ndarray) -> Moved:
            return transport.group.add_up(content, buffer.bytes_in_sum, buffer.num_halves)

        if not self._meets:
            self._each(add_up, arrays)
            return None
        wait_for(arrays)
        told_s = transport.group.meet(self._last_s)
        begin = transport.clock.now()
        self._each(add_up, arrays)
        self._last_s = transport.clock.now() - begin
        return self._last_s if self._is_first else told_s

    def finish_sum(self, arrays: Sequence[mx.nd.NDArray], timed: bool = False) -> float | None:
        """As SummedArrays says. Where the first sum was to be timed, all later ones are.

        A sum begins when the last worker is there, and some have it before others, by their places in the schedule. So
        that nobody takes that for a slow link of its own, all are told the same: the longest time of the sum before;
        of the first one, their own.
        """
        assert self._summing is not None, "begin_sum comes first"
        took_s = self._summing.result()
        if self._is_first:
            self._meets, self._is_first = timed, False
        return took_s if timed else None

    def _each(self, exchange: Callable[[Buffer, np.ndarray], Moved], arrays: Sequence[mx.nd.NDArray]) -> None:
        """Exchanges one buffer after the other, each as soon as its arrays are computed."""
        for buffer in self._buffers:
            self.count_moved(*exchange(buffer, buffer.take(arrays)))
        mx.nd.waitall()  # until nothing that was begun before reads them any more
        for buffer in self._buffers:
            buffer.give(arrays)


class CollectiveArrays:
    """The part of SharedArrays that workers can do without a parameter server: rank 0's values go to all."""

    def __init__(self, transport: CollectiveTransport) -> None:
        self._sums = CollectiveSums(transport)
        self.broadcast = self._sums.broadcast
        self.take_traffic = self._sums.take_traffic

    def define(self, arrays: Sequence[mx.nd.NDArray]) -> NoReturn:
        """There is nowhere to; raises SetupError."""
        _refuse("arrays on one")

    def push(self, arrays: Sequence[mx.nd.NDArray]) -> NoReturn:
        """There is nowhere to; raises SetupError."""
        _refuse("pushes")

    def wait_until_arrived(self, arrays: Sequence[mx.nd.NDArray]) -> NoReturn:
        """Nothing can be pushed; raises SetupError."""
        _refuse("pushes")

    def pull(self, arrays: Sequence[mx.nd.NDArray], first: int = 0) -> NoReturn:
        """There is nowhere to pull from; raises SetupError."""
        _refuse("pulls")

    def wait(self, arrays: Sequence[mx.nd.NDArray]) -> NoReturn:
        """Nothing can be pulled; raises SetupError."""
        _refuse("pulls")


def _refuse(what: str) -> NoReturn:
    raise SetupError(f"workers that sum among themselves have no parameter server for {what}: take --collective ps")


class CollectiveTransport:
    """One worker's place in a group; the kind SUM alone.

    Args:
        size_of: bytes that an array counts on its way.
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
        """As Transport says."""
        return self.group.rank

    @property
    def num_workers(self) -> int:
        """As Transport says."""
        return self.group.num_workers

    def go_over_to(self, group: Group) -> None:
        """From now on with these workers; what was under way with those before has failed or is done."""
        if self._last is not None:
            with contextlib.suppress(PeerLost):
                self._last.result()
        self._last, self.group = None, group

    def sums(self, compression: Compression = AS_IT_IS, first_key: int = 0) -> CollectiveSums:
        """As Transport says; 2bit raises SetupError."""
        return CollectiveSums(self, compression)

    def arrays(self, first_key: int = 0) -> CollectiveArrays:
        """As Transport says; `broadcast` alone."""
        return CollectiveArrays(self)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> NoReturn:
        """There is nowhere to; raises SetupError."""
        _refuse("an optimizer")

    def barrier(self) -> None:
        """As Transport says."""
        self.begin(self.group.meet, "barrier").result()

    def wait_all(self) -> None:
        """As Transport says."""
        if self._last is not None:
            self._last.result()
        mx.nd.waitall()

    def begin(self, work: Callable[[], Result], name: str) -> Task[Result]:
        """Begins what uses the group, beside the caller and after what was begun before."""
        before = self._last

        def after_that() -> Result:
            if before is not None:
                before.result()
            return work()

        task = self.clock.start(after_that, f"{name} of worker {self.rank}")
        self._last = task
        return task
