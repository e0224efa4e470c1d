"""Workers that send to each other in the memory of one process, in virtual time.

Each worker has one duplex link. A message from one to another crosses both links: it takes the latency of both, and its
bytes at the rate of the slower. In an exchange a worker sends one message and receives one, so no direction of a link
is shared. As over TCP, a message that the kernels of both hosts hold (`HELD`) flows as soon as it is sent, one after
the other, and its sender goes on. A larger message flows when both sides are there, since a receiver that does not read
yet soon stops the sender; its latency is over by then if it was sent early enough.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from esync.clock import Event
from trainer.collectives.mesh import MeshGroup, Parcel
from trainer.collectives.schedules import ScheduleMaker
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.transport.collective import CollectiveTransport
from trainer.transport.protocol import num_bytes
from utils import PeerLost

HELD = 1 << 20  # bytes of a message that the kernels take before the receiver reads


@dataclass
class _End:
    """One side of a message."""

    parcel: Parcel
    since_s: float
    met: Event  # the other side is there
    adds: bool = False  # the receiver adds it to its piece
    done_s: float = math.inf  # when this side goes on
    arrives_s: float | None = None  # of a sender, when the receiver's kernel holds all of it; None: the kernels do not


@dataclass
class _Channel:
    """Messages from one worker to another of which only one side is there."""

    sent: deque[_End] = field(default_factory=deque)
    awaited: deque[_End] = field(default_factory=deque)
    free_s: float = 0.0  # when the next message can flow


class MemoryNetwork:
    """The links of all workers, by rank; `bytes_per_s` is the limit of each."""

    def __init__(self, clock: VirtualClock, links: Sequence[WorkerLink], bytes_per_s: float = math.inf) -> None:
        self.clock = clock
        self.links = links
        self._most = bytes_per_s
        self._channels: dict[tuple[int, int], _Channel] = defaultdict(_Channel)
        self._lost: int | None = None

    def send(self, rank: int, to: int, parcel: Parcel) -> _End:
        """Begins to send. A message that the kernels do not hold flows when its second side is there."""
        now, channel = self.clock.now(), self._channels[rank, to]
        end = _End(parcel, now, self.clock.event())
        if parcel.num_bytes <= HELD:
            takes_s, latency_s = self._times(rank, to, parcel)
            channel.free_s = max(now, channel.free_s) + takes_s
            end.done_s, end.arrives_s = now, channel.free_s + latency_s
        if channel.awaited:
            self._flow(rank, to, end, channel.awaited.popleft())
        else:
            if end.arrives_s is not None:
                end.parcel = Parcel(parcel.array.copy(), parcel.num_bytes)
            channel.sent.append(end)
        return end

    def receive(self, source: int, rank: int, parcel: Parcel, adds: bool) -> _End:
        end = _End(parcel, self.clock.now(), self.clock.event(), adds)
        channel = self._channels[source, rank]
        if channel.sent:
            self._flow(source, rank, channel.sent.popleft(), end)
        else:
            channel.awaited.append(end)
        return end

    def _flow(self, source: int, to: int, sender: _End, receiver: _End) -> None:
        """Moves the content, now that both sides are there: neither looks at it before its own `done_s`."""
        if sender.arrives_s is not None:
            receiver.done_s = max(sender.arrives_s, receiver.since_s)
        else:
            takes_s, latency_s = self._times(source, to, sender.parcel)
            self._channels[source, to].free_s = sender.done_s = self.clock.now() + takes_s
            receiver.done_s = max(sender.since_s + latency_s, receiver.since_s) + takes_s
        content, target = sender.parcel.array, receiver.parcel.array
        if receiver.adds:
            target += content
        else:
            target[:] = content
        sender.met.set()
        receiver.met.set()

    def _times(self, source: int, to: int, parcel: Parcel) -> tuple[float, float]:
        """Seconds that a message flows, and the latency of each byte."""
        links = self.links[source], self.links[to]
        rate = min(self._most, *(link.bytes_per_s for link in links))
        return parcel.num_bytes / rate, sum(link.latency_s for link in links)

    def wait(self, end: _End) -> None:
        """Waits until this side goes on; raises PeerLost if a worker is gone."""
        if self._lost is None and math.isinf(end.done_s):
            end.met.wait()
        if math.isinf(end.done_s):
            raise PeerLost(f"worker {self._lost} was lost")

    def lose(self, rank: int) -> None:
        """The worker is gone: incomplete and later messages fail."""
        self._lost = rank
        for channel in self._channels.values():
            for end in (*channel.sent, *channel.awaited):
                end.met.set()


class MemoryMesh:
    """One worker's place in a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        self.network = network
        self.rank = rank
        self.num_workers = len(network.links)

    def exchange(self, to: int | None, out: Parcel, source: int | None, into: Parcel, adds: bool) -> None:
        network, ends = self.network, []
        if to is not None:
            ends.append(network.send(self.rank, to, out))
        if source is not None:
            ends.append(network.receive(source, self.rank, into, adds))
        for end in ends:
            network.wait(end)
        network.clock.sleep(max((end.done_s for end in ends), default=0.0) - network.clock.now())


def in_memory(
    network: MemoryNetwork, algorithm: ScheduleMaker, rank: int, size_of: Callable[[np.ndarray], int] = num_bytes
) -> CollectiveTransport:
    """A worker's transport over the virtual network."""
    return CollectiveTransport(MeshGroup(MemoryMesh(network, rank), algorithm), network.clock, size_of)
