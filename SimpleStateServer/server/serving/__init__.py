"""The one event loop of `manage.py serve`: bytes from connections become requests, and answers go back.

Everything is answered in the loop, since nothing that answers ever waits. So a connection that sends half a request, or
nothing, costs its memory alone; and that is bounded (connections.py).
"""

from dataclasses import dataclass


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
