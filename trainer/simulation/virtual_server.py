"""A parameter server and its workers in the memory of one process, in virtual time.

It behaves as MXNet's distributed kvstore at the same calls. Transfers take the network's time, all arrays of a call
together; the server's own work takes none.

How pushes and pulls overlap was measured on links of 20 Mbit/s (results/network). A worker's pulls
follow its own pushes, although each key travels alone: its request for the first key queues on the connection behind
the last push, so both take as long together as one after the other. But a worker that has pushed early gets the sum of
each key as soon as the last worker's push of this key has arrived, while that worker still sends other keys. Here the
sums begin to arrive at such a worker with the first bytes of the last push, and its largest array comes once all pushes
have arrived: where both directions are equally fast, at most the other arrays can have arrived by then.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from algorithms import TransportKind
from config import TWO_BIT
from trainer.clock import Task
from trainer.collectives.compression import AS_IT_IS, Compression, in_two_bits
from trainer.pieces import sum_of
from trainer.runtime.unpickling import optimizer_in
from trainer.simulation.network import Direction, WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.transport.counter import ByteCounter, num_bytes
from trainer.transport.encoded import EncodedSums, encoded
from trainer.transport.two_bit import TwoBits
from utils import PeerLost

if TYPE_CHECKING:
    from trainer.algorithms.server_optimizer import ServerOptimizer


class MemoryServer:
    """The values by key and the network, which all workers share."""

    def __init__(
        self,
        clock: VirtualClock,
        kind: TransportKind,  # it sums pushes, or gives each to an optimizer
        links: Sequence[WorkerLink],  # of the workers, by rank
        bytes_per_s: float = math.inf,  # of the server's own link, in each direction
        size_of: Callable[[np.ndarray], int] = num_bytes,  # bytes of an array in a transfer
    ) -> None:
        self.clock = clock
        self.size_of = size_of
        self.num_workers = len(links)
        self.sums = kind is TransportKind.SUM
        self.up = Direction(clock, links, bytes_per_s)
        self.down = Direction(clock, links, bytes_per_s)
        self.values: dict[int, np.ndarray] = {}
        self.versions: dict[int, int] = {}  # complete sums by key
        self._begun: dict[int, int] = {}  # pushes of all workers that have begun, by their first key
        self._arrived: dict[int, list[np.ndarray]] = {}  # parts of the sum that is not complete, by key
        self._pushed: Callable[[int, np.ndarray, np.ndarray], None] = _add
        self._at_barrier = 0
        self._barriers = 0
        self._lost: int | None = None
        self._news = clock.event()  # set when all workers have begun a sum or done one, at a barrier, at a loss

    def set_optimizer(self, optimizer: ServerOptimizer) -> None:
        """A copy of the optimizer gets each array that arrives, as on a parameter server. Its time is virtual."""
        of_server = optimizer_in(pickle.dumps(optimizer, 0))
        of_server.clock = self.clock
        self._pushed = of_server.pushed

    def define(self, key: int, array: np.ndarray) -> None:
        """Gives a key its first value; a key that has one keeps it."""
        if key not in self.values:
            # A parameter server's optimizer gets no shapes.
            self.values[key] = array.copy() if self.sums else array.reshape(-1).copy()
            self.versions[key] = 0

    def begin(self, key: int) -> None:
        """The first bytes have arrived of a worker's push from this key on."""
        self._begun[key] = self._begun.get(key, 0) + 1
        if self._begun[key] % self.num_workers == 0:
            self._tell_waiting()

    def all_have_begun(self, key: int, times: int) -> bool:
        """Whether each worker has begun this push that many times."""
        return self._begun.get(key, 0) >= times * self.num_workers

    def arrive(self, key: int, array: np.ndarray) -> None:
        """Adds an array that has arrived to its sum, or gives it to the optimizer."""
        if not self.sums:
            self._pushed(key, self.values[key], array.reshape(-1))
            return
        parts = self._arrived.setdefault(key, [])
        parts.append(array)
        if len(parts) == self.num_workers:
            self.values[key] = _sum_of(parts)
            self.versions[key] += 1
            del self._arrived[key]
            self._tell_waiting()

    def value(self, key: int) -> np.ndarray:
        """The present value, to be sent. A sum is never written to again; an optimizer's value is, so it is copied."""
        return self.values[key] if self.sums else self.values[key].copy()

    def barrier(self) -> None:
        self._at_barrier += 1
        if self._at_barrier == self.num_workers:
            self._at_barrier = 0
            self._barriers += 1
            self._tell_waiting()
            return
        passed = self._barriers
        self.wait_until(lambda: self._barriers > passed)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for a condition on sums or barriers; raises PeerLost if a worker is gone before.

        The condition is checked when all workers have begun or done a sum or a barrier, not after each array that
        arrives: a thousand workers would make a million checks a round.
        """
        while not condition():
            if self._lost is not None:
                raise PeerLost(f"worker {self._lost} was lost")
            self._news.wait()

    def lose(self, rank: int) -> None:
        """The worker is gone: workers that wait for it get PeerLost."""
        self._lost = rank
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        news, self._news = self._news, self.clock.event()
        news.set()


def _sum_of(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Adds up in float32, also float16 arrays, as MXNet's server with multiple precision."""
    return sum_of([part.astype(np.float32, copy=False) for part in parts]).astype(parts[0].dtype, copy=False)


def _add(key: int, value: np.ndarray, array: np.ndarray) -> None:
    value += array


class MemoryArrays(ByteCounter):
    """SharedArrays and SummedArrays of a MemoryServer."""

    largest = math.inf

    def __init__(self, transport: MemoryTransport, first_key: int, two_bits: TwoBits | None = None) -> None:
        """`two_bits` compresses pushes."""
        super().__init__(transport.server.size_of, *([in_two_bits] if two_bits else []))
        self._two_bits = two_bits
        self._transport = transport
        self._server = transport.server
        self._first_key = first_key
        self._pushing: Task[None] | None = None  # the last; pushes of one worker arrive one after the other
        self._pulling: Task[None] | None = None
        self._num_pushed: dict[int, int] = {}  # by key
        self._pull_s = 0.0  # transfer time of the last pull

    def define(self, arrays: Sequence[np.ndarray]) -> None:
        if self._transport.rank == 0:
            for key, array in enumerate(arrays, self._first_key):
                self._server.define(key, array)
        self._server.barrier()

    def broadcast(self, arrays: Sequence[np.ndarray], exact: int = 0) -> None:
        self.define(arrays)
        self.pull(arrays)
        self.wait(arrays)
        self.take_traffic()

    def push(self, arrays: Sequence[np.ndarray]) -> None:
        sent = list(arrays)  # not copied: they do not change before they have arrived
        size, rank, before = self.count_pushed(arrays), self._transport.rank, self._pushing
        keys = range(self._first_key, self._first_key + len(sent))
        if self._two_bits is not None:
            sent = list(map(self._two_bits.compress, keys, sent))
        for key in keys:
            self._num_pushed[key] = self._num_pushed.get(key, 0) + 1

        def work() -> None:
            if before is not None:
                before.result()
            self._server.up.travel(rank)
            if self._server.sums:
                self._server.begin(keys.start)
            self._server.up.transfer(rank, size, latency_is_over=True)
            for key, array in zip(keys, sent, strict=True):
                self._server.arrive(key, array)
            self._server.clock.changed()

        self._pushing = self._transport.begin(work, "push")

    def wait_until_arrived(self, arrays: Sequence[np.ndarray]) -> None:
        if self._pushing is not None:
            self._pushing.result()

    def pull(self, arrays: Sequence[np.ndarray], overlaps: bool = False) -> None:
        """As SharedArrays. With `overlaps` sums arrive while later workers still push."""
        size, rank, before = self.count_pulled(arrays), self._transport.rank, self._pulling
        keys = range(self._first_key, self._first_key + len(arrays))
        pushed = dict(self._num_pushed) if self._server.sums else {}
        mine, server = self._pushing, self._server
        largest = max(map(server.size_of, arrays)) if overlaps else 0

        def all_there() -> bool:
            return all(server.versions[key] >= pushed.get(key, 0) for key in keys)

        def work() -> None:
            if before is not None:
                before.result()
            if mine is not None:  # the pull's requests queue behind this worker's pushes
                mine.result()
            early = size - largest if overlaps and not all_there() else 0
            if early:
                server.wait_until(lambda: server.all_have_begun(keys.start, pushed[keys.start]))
                server.down.transfer(rank, early)
            no_gap = bool(early) and all_there()
            server.wait_until(all_there)
            begin = server.clock.now()
            values = [server.value(key) for key in keys]
            server.down.transfer(rank, size - early, latency_is_over=no_gap)
            self._pull_s = server.clock.now() - begin
            for array, value in zip(arrays, values, strict=True):
                array[...] = value if server.sums else value.reshape(array.shape)

        self._pulling = self._transport.begin(work, "pull")

    def wait(self, arrays: Sequence[np.ndarray]) -> None:
        if self._pulling is not None:
            self._pulling.result()

    def begin_sum(self, arrays: Sequence[np.ndarray]) -> None:
        self.push(arrays)

    def finish_sum(self, arrays: Sequence[np.ndarray], timed: bool = False) -> float | None:
        self.pull(arrays, overlaps=not timed)
        self.wait(arrays)
        return self._pull_s if timed else None


class MemoryTransport:
    """One worker's place at a MemoryServer."""

    def __init__(self, server: MemoryServer, rank: int) -> None:
        self.server = server
        self.rank = rank
        self.num_workers = server.num_workers
        self._begun: list[Task[None]] = []

    def sums(self, compression: Compression = AS_IT_IS, first_key: int = 0) -> MemoryArrays | EncodedSums:
        if compression == AS_IT_IS:
            return self.arrays(first_key)
        two_bits = TwoBits(compression.threshold) if compression.kind == TWO_BIT else None
        return encoded(MemoryArrays(self, first_key, two_bits), compression, self.num_workers)

    def arrays(self, first_key: int = 0) -> MemoryArrays:
        return MemoryArrays(self, first_key)

    def set_optimizer(self, optimizer: ServerOptimizer) -> None:
        self.server.set_optimizer(optimizer)

    def barrier(self) -> None:
        self.server.barrier()

    def begin(self, work: Callable[[], None], name: str) -> Task[None]:
        """Begins a transfer beside the worker."""
        self._begun = [task for task in self._begun if not task.done()]
        task = self.server.clock.start(work, f"{name} of worker {self.rank}")
        self._begun.append(task)
        return task

    def wait_all(self) -> None:
        for task in self._begun:
            task.result()
