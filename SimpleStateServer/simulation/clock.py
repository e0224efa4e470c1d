"""Virtual time: a queue of what happens when."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable


class TimeIsUp(Exception):
    """Something was still to happen after the simulation's limit: its workers train for ever, or for too long."""


class VirtualClock:
    """Does what it was asked to do, in the order of time; of what is due at one moment, what was asked for first.

    Args:
        started: the time it shows at first, in seconds.
    """

    def __init__(self, started: float = 0.0) -> None:
        self.now = started
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._asked = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Asks for something to be done later."""
        self._asked += 1
        heapq.heappush(self._due, (self.now + seconds, self._asked, action))

    def run(self, until: float = math.inf) -> None:
        """Lets time pass until nothing is left to happen.

        Raises:
            TimeIsUp: something would happen after `until`.
        """
        while self._due:
            time, _, action = heapq.heappop(self._due)
            if time > until:
                raise TimeIsUp(f"something is to happen at {time:.6g} s, after the limit of {until:.6g} s")
            self.now = time
            action()
