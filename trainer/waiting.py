"""Waiting for what stands in the kvstore, which tells nobody of a change: it has to be looked at again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORTEST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.01
SHARE = 0.05  # of the time waited so far: a long wait is looked at less often, and still ends at most 5 % late


def wait_until(condition: Callable[[], bool]) -> None:
    """Looks until the condition holds."""
    begin = time.monotonic()
    while not condition():
        time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, SHARE * (time.monotonic() - begin))))
