"""The network of a virtual cluster: each worker's link to the parameter server, and the server's own, which they share.

A transfer takes latency + bytes / rate. At each moment the transfers of one direction share what there is fairly (max-
min): nobody gets more than its own link carries, and what one leaves the others take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trainer.clock import Parked, VirtualClock


@dataclass(frozen=True)
class Link:
    """A worker's way to the parameter server, the same in both directions.

    Attributes:
        bytes_per_s: infinite: as fast as the server's.
        latency_s: of each transfer.
    """

    bytes_per_s: float = math.inf
    latency_s: float = 0.0


@dataclass(eq=False)
class _Flow:
    rank: int
    left: float  # bytes
    rate: float  # bytes/s
    parked: Parked


class Direction:
    """All transfers to the server, or all from it.

    Args:
        links: by rank.
        server_bytes_per_s: what the server's own link carries.
    """

    def __init__(self, clock: VirtualClock, links: Sequence[Link], server_bytes_per_s: float = math.inf) -> None:
        self._clock = clock
        self._links = links
        self._server = server_bytes_per_s
        self._flows: list[_Flow] = []
        self._since = clock.now()

    def transfer(self, rank: int, num_bytes: int) -> None:
        """Takes as long as the bytes take, beside the transfers of others."""
        link = self._links[rank]
        self._clock.sleep(link.latency_s)
        if not num_bytes or math.isinf(min(link.bytes_per_s, self._server)):
            return
        flow = _Flow(rank, float(num_bytes), 0.0, self._clock.parked())
        self._progress()
        self._flows.append(flow)
        self._share()
        while flow.left > 1e-6 * num_bytes:  # the rest is rounding
            self._clock.park(flow.parked, flow.left / flow.rate)
            self._progress()
        self._flows.remove(flow)
        self._share()

    def _progress(self) -> None:
        now = self._clock.now()
        for flow in self._flows:
            flow.left = max(0.0, flow.left - flow.rate * (now - self._since))
        self._since = now

    def _share(self) -> None:
        """Gives each flow its rate; whoever's has changed looks again when it will be done."""
        shares = fair_shares([self._of_own_link(flow) for flow in self._flows], self._server)
        for flow, rate in zip(self._flows, shares, strict=True):
            if rate != flow.rate:
                flow.rate = rate
                self._clock.unpark(flow.parked)

    def _of_own_link(self, flow: _Flow) -> float:
        beside = sum(other.rank == flow.rank for other in self._flows)
        return self._links[flow.rank].bytes_per_s / beside


def fair_shares(wanted: Sequence[float], capacity: float) -> list[float]:
    """Max-min fair shares: nobody gets more than it wants, and nobody could have more without another having less."""
    shares = [0.0] * len(wanted)
    left = capacity
    for position, index in enumerate(sorted(range(len(wanted)), key=wanted.__getitem__)):
        shares[index] = min(wanted[index], left / (len(wanted) - position))
        left -= shares[index]
    return shares
