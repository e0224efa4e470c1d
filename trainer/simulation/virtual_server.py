"""A parameter server and its workers in the memory of one process, in virtual time.

It does what MXNet's distributed kvstore does with the same calls. Transfers take the time that the network says, all
arrays of a call together; what the server does with them takes none.

How the two ways overlap was measured on links of 20 Mbit/s (results/network). A worker's pulls come
behind its own pushes, although each key travels alone: its request for the first key queues on the connection behind
the last push, so both take as long together as one after the other. But a worker that has pushed early gets the sum of
each key as soon as the last worker's push of it is there, while that one still sends the others. Here, such a worker
begins to get its sums with the first bytes of the last one's push, and its largest array comes once all pushes have
arrived: where both ways are equally fast, no more than the others can be there by then.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence

from algorithms import TransportKind
from config import TWO_BIT
from trainer.clock import Task, VirtualClock
from trainer.collectives.compression import AS_IT_IS, Compression, in_two_bits
from trainer.engine import mx
from trainer.parameters import num_bytes
from trainer.simulation.network import Direction, Link
from trainer.transport.counter import ByteCounter
from trainer.transport.encoded import EncodedSums, encoded
from trainer.transport.two_bit import TwoBits
from utils import PeerLost


class MemoryServer:
    """What all workers share: the values by key, and the network.

    Args:
        kind: whether it sums, or tells an optimizer of each push.
        links: of the workers, by rank.
        bytes_per_s: what the server's own link carries in each direction.
        size_of: bytes that an array counts on its way.
    """

    def __init__(
        self,
        clock: VirtualClock,
        kind: TransportKind,
        links: Sequence[Link],
        bytes_per_s: float = math.inf,
        size_of: Callable[[mx.nd.NDArray], int] = num_bytes,
    ) -> None:
        self.clock = clock
        self.size_of = size_of
        self.num_workers = len(links)
        self.sums = kind is TransportKind.SUM
        self.up = Direction(clock, links, bytes_per_s)
        self.down = Direction(clock, links, bytes_per_s)
        self.values: dict[int, mx.nd.NDArray] = {}
        self.versions: dict[int, int] = {}  # how many sums are complete, by key
        self._begun: dict[int, int] = {}  # how many pushes have begun, of all workers, by their first key
        self._arrived: dict[int, list[mx.nd.NDArray]] = {}  # parts of the sum that is not complete, by key
        self._apply: Callable[[int, mx.nd.NDArray, mx.nd.NDArray], None] = _add
        self._at_barrier = 0
        self._barriers = 0
        self._lost: int | None = None
        self._news = clock.event()  # the next sum that all have begun or done, barrier, or lost worker

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """As on a parameter server: a copy of it is told of each array that arrives. Its time is virtual."""
        of_server = pickle.loads(pickle.dumps(optimizer))
        of_server.clock = self.clock
        self._apply = mx.optimizer.get_updater(of_server)

    def define(self, key: int, array: mx.nd.NDArray) -> None:
        """Gives a key its first value; a key that has one keeps it."""
        if key not in self.values:
            # As on a parameter server, which is told no shapes.
            self.values[key] = array.copy() if self.sums else array.reshape(-1).copy()
            self.versions[key] = 0

    def begin(self, key: int) -> None:
        """The first bytes are here of what a worker adds to the sums from this key on."""
        self._begun[key] = self._begun.get(key, 0) + 1
        if self._begun[key] % self.num_workers == 0:
            self._tell_waiting()

    def all_have_begun(self, key: int, times: int) -> bool:
        """Whether that holds for all workers, so often."""
        return self._begun.get(key, 0) >= times * self.num_workers

    def arrive(self, key: int, array: mx.nd.NDArray) -> None:
        """An array has arrived: adds it to its sum, or tells the optimizer."""
        if not self.sums:
            self._apply(key, array.reshape(-1), self.values[key])
            return
        parts = self._arrived.setdefault(key, [])
        parts.append(array)
        if len(parts) == self.num_workers:
            self.values[key] = _sum_of(parts)
            self.versions[key] += 1
            del self._arrived[key]
            self._tell_waiting()

    def value(self, key: int) -> mx.nd.NDArray:
        """The value as it is now, for the way to a worker. A sum is never written to again; an optimizer's value is."""
        return self.values[key] if self.sums else self.values[key].copy()

    def barrier(self) -> None:
        """Waits until all workers are here."""
        self._at_barrier += 1
        if self._at_barrier == self.num_workers:
            self._at_barrier = 0
            self._barriers += 1
            self._tell_waiting()
            return
        passed = self._barriers
        self.wait_until(lambda: self._barriers > passed)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for complete sums or barriers, or for all to begin one; raises PeerLost if a worker is gone before.

        It is looked at after those alone, not after each array that arrives: with a thousand workers that would be a
        million looks a round.
        """
        while not condition():
            if self._lost is not None:
                raise PeerLost(f"worker {self._lost} was lost")
            self._news.wait()

    def lose(self, rank: int) -> None:
        """This worker is gone without having taken leave."""
        self._lost = rank
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        news, self._news = self._news, self.clock.event()
        news.set()


def _sum_of(parts: Sequence[mx.nd.NDArray]) -> mx.nd.NDArray:
    """Added up in float32, also of float16 arrays: as MXNet's server does where it is told of multiple precision."""
    return mx.nd.add_n(*(part.astype("float32", copy=False) for part in parts)).astype(parts[0].dtype, copy=False)


def _add(key: int, array: mx.nd.NDArray, value: mx.nd.NDArray) -> None:
    value += array


class MemoryArrays(ByteCounter):
    """SharedArrays and SummedArrays of a MemoryServer."""

    largest = math.inf

    def __init__(self, transport: MemoryTransport, first_key: int, two_bits: TwoBits | None = None) -> None:
        """
        Args:
            two_bits: compresses what is pushed.
        """
        super().__init__(transport.server.size_of, *([in_two_bits] if two_bits else []))
        self._two_bits = two_bits
        self._transport = transport
        self._server = transport.server
        self._first_key = first_key
        self._pushing: Task[None] | None = None  # the last; pushes of one worker arrive one after the other
        self._pulling: Task[None] | None = None
        self._num_pushed: dict[int, int] = {}  # by key
        self._pull_s = 0.0  # that the last one travelled

    def define(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """As SharedArrays says."""
        if self._transport.rank == 0:
            for key, array in enumerate(arrays, self._first_key):
                self._server.define(key, array)
        self._server.barrier()

    def broadcast(self, arrays: Sequence[mx.nd.NDArray], exact: int = 0) -> None:
        """As SharedArrays and SummedArrays say."""
        self.define(arrays)
        self.pull(arrays)
        self.wait(arrays)
        self.take_traffic()

    def push(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """As SharedArrays says."""
        sent = list(arrays)  # not copied: nobody writes to them before they have arrived
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

    def wait_until_arrived(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """As SharedArrays says."""
        if self._pushing is not None:
            self._pushing.result()

    def pull(self, arrays: Sequence[mx.nd.NDArray], first: int = 0) -> None:
        """As SharedArrays says."""
        self._begin_pull(arrays, first, overlaps=False)

    def _begin_pull(self, arrays: Sequence[mx.nd.NDArray], first: int, overlaps: bool) -> None:
        """
        Args:
            overlaps: with the pushes of the workers that are later than this one; their sums are what is pulled.
        """
        size, rank, before = self.count_pulled(arrays), self._transport.rank, self._pulling
        keys = range(self._first_key + first, self._first_key + first + len(arrays))
        pushed = dict(self._num_pushed) if self._server.sums else {}
        mine, server = self._pushing, self._server
        largest = max(map(server.size_of, arrays)) if overlaps else 0

        def all_there() -> bool:
            return all(server.versions[key] >= pushed.get(key, 0) for key in keys)

        def work() -> None:
            if before is not None:
                before.result()
            if mine is not None:  # the pull's requests come behind what was pushed, and a worker sees that
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
                (value if server.sums else value.reshape(array.shape)).copyto(array)

        self._pulling = self._transport.begin(work, "pull")

    def wait(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """As SharedArrays says."""
        if self._pulling is not None:
            self._pulling.result()

    def begin_sum(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """As SummedArrays says."""
        self.push(arrays)

    def finish_sum(self, arrays: Sequence[mx.nd.NDArray], timed: bool = False) -> float | None:
        """As SummedArrays says."""
        self._begin_pull(arrays, 0, overlaps=not timed)
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
        """As Transport says."""
        if compression == AS_IT_IS:
            return self.arrays(first_key)
        two_bits = TwoBits(compression.threshold) if compression.kind == TWO_BIT else None
        return encoded(MemoryArrays(self, first_key, two_bits), compression, self.num_workers)

    def arrays(self, first_key: int = 0) -> MemoryArrays:
        """As Transport says."""
        return MemoryArrays(self, first_key)

    def set_optimizer(self, optimizer: mx.optimizer.Optimizer) -> None:
        """As Transport says."""
        self.server.set_optimizer(optimizer)

    def barrier(self) -> None:
        """As Transport says."""
        self.server.barrier()

    def begin(self, work: Callable[[], None], name: str) -> Task[None]:
        """Begins a transfer beside the worker."""
        self._begun = [task for task in self._begun if not task.done()]
        task = self.server.clock.start(work, f"{name} of worker {self.rank}")
        self._begun.append(task)
        return task

    def wait_all(self) -> None:
        """As Transport says."""
        for task in self._begun:
            task.result()
