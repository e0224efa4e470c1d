"""The sums of MXNet's distributed kvstore in the memory of one process, in virtual time.

They behave as `dist_sync` at the same calls. Transfers take the network's time, all arrays of a call together; the
server's own work takes none.

How pushes and pulls overlap was measured on links of 20 Mbit/s (results/network). A worker's pulls follow its own
pushes, although each key travels alone: its request for the first key queues on the connection behind the last push, so
both take as long together as one after the other. But a worker that has pushed early gets the sum of each key as soon
as the last worker's push of this key has arrived, while that worker still sends other keys. Here the sums begin to
arrive at such a worker with the first bytes of the last push, and its largest array comes once all pushes have arrived:
where both directions are equally fast, at most the other arrays can have arrived by then.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from esync.clock import Task
from trainer.simulation.network import Direction, WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.steps import sum_of
from trainer.transport.protocol import ByteCounter, SummedArrays, largest, num_bytes


class VirtualServer:
    """What all workers share: the network, and the sum under way."""

    def __init__(
        self,
        clock: VirtualClock,
        links: Sequence[WorkerLink],  # of the workers, by rank
        bytes_per_s: float = math.inf,  # of the server's own link, in each direction
        size_of: Callable[[np.ndarray], int] = num_bytes,  # bytes of an array in a transfer
    ) -> None:
        self.clock, self.size_of, self.num_workers = clock, size_of, len(links)
        self.up, self.down = Direction(clock, links, bytes_per_s), Direction(clock, links, bytes_per_s)
        self.numbers: list[float] = []  # on which all agree
        self.initial: list[np.ndarray] = []  # values of rank 0
        self.joined = 0  # workers that have come for them
        self.begun = self.complete = 0  # pushes whose first bytes have arrived; sums
        self.sum: list[np.ndarray] = []  # the last complete one
        self._arrived: list[Sequence[np.ndarray]] = []  # of the sum that is not complete

    def begin(self) -> None:
        """The first bytes of a worker's push have arrived."""
        self.begun += 1
        if self.begun % self.num_workers == 0:
            self.clock.changed()

    def arrive(self, arrays: Sequence[np.ndarray]) -> None:
        """A worker's push has arrived. Float16 arrays are added up in float32, as by MXNet's server."""
        self._arrived.append(arrays)
        if len(self._arrived) == self.num_workers:
            of_each = zip(*self._arrived, strict=True)
            self.sum = [
                sum_of([part.astype(np.float32, copy=False) for part in parts]).astype(parts[0].dtype, copy=False)
                for parts in of_each
            ]
            self.complete, self._arrived = self.complete + 1, []
            self.clock.changed()


class VirtualSums(ByteCounter):
    """SummedArrays of a worker."""

    largest = math.inf

    def __init__(self, server: VirtualServer, rank: int) -> None:
        super().__init__(server.size_of)
        self._server, self._rank = server, rank
        self._pushing: Task[None]
        self._num_pushed = 0

    def broadcast(self, arrays: Sequence[np.ndarray], exact: int = 0) -> None:
        server = self._server
        if self._rank == 0:
            server.initial = [array.copy() for array in arrays]
        server.joined += 1
        if server.joined == server.num_workers:  # else N workers would wake N times
            server.clock.changed()
        server.clock.wait_until(lambda: server.joined == server.num_workers)
        server.down.transfer(self._rank, self.count_pulled(arrays))
        for array, value in zip(arrays, server.initial, strict=True):
            array[...] = value
        self.take_traffic()

    def begin_sum(self, arrays: Sequence[np.ndarray]) -> None:
        server, size, sent = self._server, self.count_pushed(arrays), list(arrays)
        self._num_pushed += 1

        def push() -> None:
            server.up.travel(self._rank)
            server.begin()
            server.up.transfer(self._rank, size, latency_is_over=True)
            server.arrive(sent)

        self._pushing = server.clock.start(push, f"push of worker {self._rank}")

    def finish_sum(self, arrays: Sequence[np.ndarray], timed: bool = False) -> float | None:
        """As SummedArrays. Unless they are `timed`, sums arrive while later workers still push."""
        server, mine, size = self._server, self._num_pushed, self.count_pulled(arrays)
        self._pushing.result()  # the pull's requests queue behind this worker's push
        early = size - max(map(server.size_of, arrays)) if not timed and server.complete < mine else 0
        if early:
            server.clock.wait_until(lambda: server.begun >= mine * server.num_workers)
            server.down.transfer(self._rank, early)
        has_no_gap = bool(early) and server.complete >= mine
        server.clock.wait_until(lambda: server.complete >= mine)
        begin = server.clock.now()
        values = server.sum
        server.down.transfer(self._rank, size - early, latency_is_over=has_no_gap)
        for array, value in zip(arrays, values, strict=True):
            array[...] = value
        return server.clock.now() - begin if timed else None


class VirtualKVStore:
    """One worker's Transport."""

    def __init__(self, server: VirtualServer, rank: int) -> None:
        self._server, self.rank, self.num_workers = server, rank, server.num_workers

    def sums(self, as_halves: bool = False) -> SummedArrays:
        if as_halves:
            from trainer.transport.kvstore import HalvedSums  # and MXNet, which networks of PyTorch do without

            return HalvedSums(VirtualSums(self._server, self.rank), largest(self.num_workers))
        return VirtualSums(self._server, self.rank)

    def agree(self, numbers: Sequence[float]) -> list[float]:
        if self.rank == 0:
            self._server.numbers = list(numbers)
            self._server.clock.changed()
        self._server.clock.wait_until(lambda: bool(self._server.numbers))
        return self._server.numbers
