"""The open connections by address, the longest silent one first, and what they share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from server.answers import MAX_BODY_BYTES, Answer, Request
from server.traffic import Traffic

if TYPE_CHECKING:
    from server.serving.protocol import Connection


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds on what clients may use of this server."""

    connections: int = 10_000  # open at a time; beyond, the longest silent one closes, of the address with the most
    # Likewise, of one address. A worker that does not wait for answers keeps up to 16.
    connections_per_address: int = 4_096
    # Seconds in which a request must arrive, from its first byte to its last, and an answer be taken
    request_s: float = 10.0
    # Seconds without a request after which a connection is closed; workers open another one unasked
    idle_s: float = 300.0
    head_bytes: int = 16 * 1024  # of a request's line and headers
    headers: int = 100  # number of them
    body_bytes: int = MAX_BODY_BYTES


class Connections:
    """Closes the longest silent connections where new ones exceed the limits, so an active worker keeps its own.

    Args:
        limits: bounds of requests and connections.
        traffic: counts them.
        answer: answers a request.
    """

    def __init__(self, limits: ConnectionLimits, traffic: Traffic, answer: Callable[[Request], Answer]) -> None:
        self.limits, self.answer, self.traffic = limits, answer, traffic
        self.date = ""  # of now, for the answers' heads
        self.accepting: set[asyncio.Task[Any]] = set()  # connections that are being set up; a loop keeps none itself
        self._by_address: dict[str, dict[Connection, None]] = {}  # in the order in which they last spoke
        self._number = 0

    def __iter__(self) -> Iterator[Connection]:
        return (connection for of_address in list(self._by_address.values()) for connection in list(of_address))

    def __len__(self) -> int:
        return self._number

    def add(self, connection: Connection) -> None:
        """Adds a connection; where there are too many, another one is closed."""
        of_address = self._by_address.setdefault(connection.address, {})
        of_address[connection] = None
        self._count(+1)
        if len(of_address) > self.limits.connections_per_address:
            self.close(next(iter(of_address)), "too many from its address")
        elif self._number > self.limits.connections:
            self.close_one("too many")

    def spoke(self, connection: Connection) -> None:
        of_address = self._by_address[connection.address]
        del of_address[connection]
        of_address[connection] = None

    def close_one(self, why: str) -> None:
        """Closes the longest silent connection of the address with the most connections."""
        if self._by_address:
            most = max(self._by_address.values(), key=lambda of_address: len(of_address))
            self.close(next(iter(most)), why)

    def close(self, connection: Connection, why: str) -> None:
        self.traffic.connections_closed.labels(why).inc()
        self.remove(connection)
        connection.close()

    def remove(self, connection: Connection) -> None:
        """Idempotent."""
        of_address = self._by_address.get(connection.address, {})
        if connection in of_address:
            del of_address[connection]
            if not of_address:
                del self._by_address[connection.address]
            self._count(-1)

    def _count(self, change: int) -> None:
        self._number += change
        self.traffic.connections.set(self._number)
