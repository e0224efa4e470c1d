"""Bounds on what clients may use of this server."""

from __future__ import annotations

import resource
from dataclasses import dataclass

SPARE_FILES = 64  # open files besides the connections
LEAST_CONNECTIONS = 16  # a worker keeps up to so many


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of connections and requests.

    Attributes:
        connections: open at a time; beyond, the longest silent one closes, of the address with the most.
        connections_per_address: likewise, of one address. A worker that does not wait for answers keeps up to 16.
        request_s: seconds in which a request must arrive, from its first byte to its last, and an answer be taken.
        idle_s: seconds without a request after which a connection is closed; workers open another one unasked.
        head_bytes: of a request's line and headers.
        headers: number of them.
        body_bytes: of a request's body.
    """

    connections: int = 10_000
    connections_per_address: int = 4_096
    request_s: float = 10.0
    idle_s: float = 300.0
    head_bytes: int = 16 * 1024
    headers: int = 100
    body_bytes: int = 64 * 1024


def allowed_connections(wanted: int) -> int:
    """How many connections this process can have open, after raising its limit of open files; may be negative."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < target:
        soft = target if hard == resource.RLIM_INFINITY else min(target, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - SPARE_FILES)
