"""The open connections by address, the longest silent one first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Counter, Gauge

from server.serving.limits import ConnectionLimits

if TYPE_CHECKING:
    from server.serving.protocol import Connection


class Connections:
    """Closes the longest silent connections where new ones exceed the limits, so an active worker keeps its own.
    `number` counts the open connections, `closed` the closed ones by reason."""

    def __init__(self, limits: ConnectionLimits, number: Gauge, closed: Counter) -> None:
        self._limits = limits
        self._by_address: dict[str, dict[Connection, None]] = {}  # in the order in which they last spoke
        self._number = 0
        self._gauge = number
        self._closed = closed

    def __iter__(self) -> Iterator[Connection]:
        return (connection for of_address in list(self._by_address.values()) for connection in list(of_address))

    def __len__(self) -> int:
        return self._number

    def add(self, connection: Connection) -> None:
        """Adds a connection; where there are too many, another one is closed."""
        of_address = self._by_address.setdefault(connection.address, {})
        of_address[connection] = None
        self._count(+1)
        if len(of_address) > self._limits.connections_per_address:
            self.close(next(iter(of_address)), "too many from its address")
        elif self._number > self._limits.connections:
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
        self._closed.labels(why).inc()
        self.remove(connection)
        connection.close()

    def remove(self, connection: Connection) -> None:
        """Idempotent."""
        of_address = self._by_address.get(connection.address, {})
        if connection not in of_address:
            return
        del of_address[connection]
        if not of_address:
            del self._by_address[connection.address]
        self._count(-1)

    def _count(self, change: int) -> None:
        self._number += change
        self._gauge.set(self._number)
