"""Rate-limited cache of rendered responses."""

from collections.abc import Callable, Hashable

MAX_KEYS = 256
LEAST_AGE_S = 0.5
SHARE = 1 / 20  # of the time for rendering


class ResponseCache:
    """Responses for readers. They are rendered in the loop that answers the workers, so their share of it is bounded: a
    response that took t seconds is not rendered again for 20 t, and all together take at most a twentieth of the time.
    A reader gets an older response instead of waiting. `clock`: seconds, monotonic."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._found: dict[Hashable, tuple[bytes, float]] = {}  # each until when it is fresh; the oldest first
        self._idle_until = 0.0  # no cached response is rendered again before

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The result of `make`, perhaps an earlier one."""
        begin = self._clock()
        value, fresh_until = self._found.get(key, (b"", 0.0))
        if key in self._found and begin < max(fresh_until, self._idle_until):
            return value
        value = make()
        end = self._clock()
        took = end - begin
        self._found.pop(key, None)
        self._found[key] = value, end + max(LEAST_AGE_S, took / SHARE)
        if len(self._found) > MAX_KEYS:
            del self._found[next(iter(self._found))]
        self._idle_until = max(self._idle_until, begin) + took / SHARE
        return value
