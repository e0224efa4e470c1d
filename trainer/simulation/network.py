"""The network of a virtual cluster: each worker's link to the parameter server, and the server's own, which they share.

A transfer takes latency + bytes / rate. Workers that send in one direction at a time share the server's link by max-min
fairness: none gets more than its own link carries, and the others take the rest. Transfers of one worker in one
direction follow one another.

Flows on equally fast links always have the same rate, so they form one class: one number says how many bytes each of
them has been sent, and only the flow that will end first sets an alarm. So a transfer costs no more among a thousand
others.
"""

import heapq
import itertools
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trainer.simulation.virtual_clock import VirtualClock, VirtualEvent

ROUNDING = 1e-6  # of a transfer's bytes; less are none


@dataclass(frozen=True)
class WorkerLink:
    """A worker's link to the parameter server, the same in both directions."""

    bytes_per_s: float = math.inf  # infinite: limited by the server's link alone
    latency_s: float = 0.0  # of each transfer


@dataclass
class _Class:
    """The flows on links of one speed."""

    link: float  # bytes/s of each link
    rate: float = 0.0  # bytes/s that each flow has now
    served: float = 0.0  # bytes that a flow would have been sent since the class began
    # A heap: the `served` at which each is done, its number, and its worker is to look
    flows: list[tuple[float, int, VirtualEvent]] = field(default_factory=list)
    alarm: tuple[int, float] | None = None  # the flow and the rate for which it is set

    @property
    def first(self) -> int:
        """Number of the flow that will end first."""
        return self.flows[0][1]


class Direction:
    """All transfers to the server, or all from it. `links` are by rank; the server's own link carries
    `server_bytes_per_s`."""

    def __init__(self, clock: VirtualClock, links: Sequence[WorkerLink], server_bytes_per_s: float = math.inf) -> None:
        self._clock = clock
        self._links = links
        self._server = server_bytes_per_s
        self._classes: dict[float, _Class] = {}  # by the speed of their links; none is empty
        self._queues: dict[int, deque[VirtualEvent]] = defaultdict(deque)  # transfers that wait for their turn, by rank
        self._numbers = itertools.count()
        self._since = clock.now()

    def transfer(self, rank: int, num_bytes: int, latency_is_over: bool = False) -> None:
        """Takes the time of the bytes beside the transfers of others. `latency_is_over`: it has passed, or the bytes
        follow those of another transfer closely."""
        link = self._links[rank]
        if not latency_is_over:
            self.travel(rank)
        if not num_bytes or math.isinf(min(link.bytes_per_s, self._server)):
            return
        queue, turn = self._queues[rank], VirtualEvent(self._clock)
        queue.append(turn)
        if queue[0] is not turn:
            turn.wait()
        self._flow(link.bytes_per_s, num_bytes)
        queue.popleft()
        if queue:
            queue[0].set()

    def travel(self, rank: int) -> None:
        """Takes the latency of this worker's link, after which the first byte arrives."""
        self._clock.sleep(self._links[rank].latency_s)

    def _flow(self, link: float, num_bytes: int) -> None:
        self._progress()
        group = self._classes.setdefault(link, _Class(link))
        number, has_changed = next(self._numbers), VirtualEvent(self._clock)
        heapq.heappush(group.flows, (group.served + num_bytes, number, has_changed))
        self._share()
        while group.first != number or not self._is_done(group, num_bytes):
            patience_s = None
            if group.first == number:
                group.alarm = number, group.rate
                patience_s = (group.flows[0][0] - group.served) / group.rate
            has_changed.clear()
            has_changed.wait(patience_s)
            self._progress()
        heapq.heappop(group.flows)
        if not group.flows:
            del self._classes[link]
        self._share()

    def _is_done(self, group: _Class, num_bytes: int) -> bool:
        left, now = group.flows[0][0] - group.served, self._clock.now()
        return left <= ROUNDING * num_bytes or now + left / group.rate <= now

    def _progress(self) -> None:
        now = self._clock.now()
        for group in self._classes.values():
            group.served += group.rate * (now - self._since)
        self._since = now

    def _share(self) -> None:
        """Gives each class its rate; wakes the flows for which the alarm is wrong now."""
        groups = list(self._classes.values())
        shares = fair_shares([group.link for group in groups], self._server, [len(group.flows) for group in groups])
        for group, rate in zip(groups, shares, strict=True):
            group.rate = rate
            if group.alarm != (group.first, rate):
                group.flows[0][2].set()


def fair_shares(wanted: Sequence[float], capacity: float, counts: Sequence[int]) -> list[float]:
    """Max-min fair shares: no flow gets more than it wants, and none could get more without another getting less. Of
    flows of each kind there are `counts`; each takes at most what is `wanted`, and gets its kind's share."""
    shares = [0.0] * len(wanted)
    left, flows = capacity, sum(counts)
    for index in sorted(range(len(wanted)), key=wanted.__getitem__):
        shares[index] = min(wanted[index], left / flows)
        left -= shares[index] * counts[index]
        flows -= counts[index]
    return shares
