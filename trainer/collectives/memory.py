"""Workers that send to each other in the memory of one process, in virtual time.

Each worker has one link, both ways, and a message from one to another crosses both links: it takes the latency of both,
and its bytes at the rate of the slower. In an exchange a worker sends one message and receives one, so nobody shares a
way of a link. A message flows when both sides are there, as over TCP, where a receiver that does not read yet soon
stops the sender; its latency is over by then if it was sent early enough.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.clock import Event, VirtualClock
from trainer.collectives.mesh import Parcel
from trainer.transport.network import Link
from utils import PeerLost


@dataclass
class _End:
    """One side of a message."""

    parcel: Parcel
    since_s: float
    met: Event  # the other side is there
    adds: bool = False  # of a receiver
    done_s: float = math.inf


@dataclass
class _Way:
    """Messages from one worker to another of which only one side is there."""

    sent: deque[_End] = field(default_factory=deque)
    awaited: deque[_End] = field(default_factory=deque)


class MemoryNetwork:
    """The links of all workers.

    Args:
        links: by rank.
        bytes_per_s: that no link exceeds.
    """

    def __init__(self, clock: VirtualClock, links: Sequence[Link], bytes_per_s: float = math.inf) -> None:
        self.clock = clock
        self.links = links
        self._most = bytes_per_s
        self._ways: dict[tuple[int, int], _Way] = defaultdict(_Way)
        self._lost: int | None = None

    def send(self, rank: int, to: int, parcel: Parcel) -> _End:
        """Begins to send; whoever is second lets the message flow."""
        end = _End(parcel, self.clock.now(), self.clock.event())
        way = self._ways[rank, to]
        if way.awaited:
            self._flow(rank, to, end, way.awaited.popleft())
        else:
            way.sent.append(end)
        return end

    def receive(self, source: int, rank: int, parcel: Parcel, adds: bool) -> _End:
        """Begins to receive."""
        end = _End(parcel, self.clock.now(), self.clock.event(), adds)
        way = self._ways[source, rank]
        if way.sent:
            self._flow(source, rank, way.sent.popleft(), end)
        else:
            way.awaited.append(end)
        return end

    def _flow(self, source: int, to: int, sender: _End, receiver: _End) -> None:
        """Both sides are there: neither looks at the content before its own end, so it is moved now."""
        links = self.links[source], self.links[to]
        rate = min(self._most, *(link.bytes_per_s for link in links))
        latency_s = sum(link.latency_s for link in links)
        takes_s = sender.parcel.num_bytes / rate
        sender.done_s = self.clock.now() + takes_s
        receiver.done_s = max(sender.since_s + latency_s, receiver.since_s) + takes_s
        content, target = sender.parcel.array, receiver.parcel.array
        if receiver.adds:
            target += content
        else:
            target[:] = content
        sender.met.set()
        receiver.met.set()

    def wait(self, end: _End) -> None:
        """Waits until the other side is there; raises PeerLost if a worker is gone."""
        if self._lost is None:
            end.met.wait()
        if math.isinf(end.done_s):
            raise PeerLost(f"worker {self._lost} was lost")

    def lose(self, rank: int) -> None:
        """This worker is gone without having taken leave."""
        self._lost = rank
        for way in self._ways.values():
            for end in (*way.sent, *way.awaited):
                end.met.set()


class MemoryMesh:
    """One worker's place in a MemoryNetwork."""

    def __init__(self, network: MemoryNetwork, rank: int) -> None:
        self.network = network
        self.rank = rank
        self.num_workers = len(network.links)

    def exchange(self, to: int | None, out: Parcel, source: int | None, into: Parcel, adds: bool) -> None:
        """As Mesh says."""
        network, ends = self.network, []
        if to is not None:
            ends.append(network.send(self.rank, to, out))
        if source is not None:
            ends.append(network.receive(source, self.rank, into, adds))
        for end in ends:
            network.wait(end)
        network.clock.sleep(max((end.done_s for end in ends), default=0.0) - network.clock.now())
