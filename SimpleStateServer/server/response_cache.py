"""Rate-limited cache of rendered responses."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

MAX_KEYS = 256
LEAST_AGE_S = 0.5
SHARE = 1 / 20  # of the time for rendering


@dataclass(slots=True)
class _Entry:
    value: bytes
    made: float
    fresh_until: float


class ResponseCache:
    """Responses for readers. They are rendered in the loop that answers the workers, so their share of it is bounded: a
    response that took t seconds is not rendered again for 20 t, and all together take at most a twentieth of the time.
    A reader gets an older response instead of waiting. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[Hashable, _Entry] = {}
        self._idle_until = 0.0  # no cached response is rendered again before

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The result of `make`, perhaps an earlier one."""
        begin = self._clock()
        entry = self._entries.get(key)
        if entry is not None and (begin < entry.fresh_until or begin < self._idle_until):
            return entry.value
        value = make()
        end = self._clock()
        took = end - begin
        if len(self._entries) >= MAX_KEYS and key not in self._entries:
            del self._entries[min(self._entries, key=lambda each: self._entries[each].made)]
        self._entries[key] = _Entry(value, end, end + max(LEAST_AGE_S, took / SHARE))
        self._idle_until = max(self._idle_until, begin) + took / SHARE
        return value
