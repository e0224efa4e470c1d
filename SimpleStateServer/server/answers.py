"""Requests to this server and their answers, independent of the HTTP server: JSON, and JSON errors that say what to
do."""

import json
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

from server.errors import BadMessage, Conflict

MAX_BODY_BYTES = 64 * 1024  # of a request; more is answered with 413
JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

# Of ResponseCache:
MAX_KEYS = 256
LEAST_AGE_S = 0.5
SHARE = 1 / 20  # of the time for rendering


@dataclass(slots=True)
class Request:
    """A request that has arrived."""

    address: str  # of the sender
    method: str = ""  # in upper case
    target: bytes = b""  # path and query as sent
    # By lower-case name; one that comes twice has its values joined by commas
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | bytearray = b""  # all of it
    keeps_alive: bool = True  # the connection stays open after the answer

    @property
    def path(self) -> str:
        """The target without its query."""
        path = self.target.partition(b"?")[0]
        return (unquote_to_bytes(path) if b"%" in path else path).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, body and headers of an HTTP response; its length is the body's."""

    status: int = 200
    body: bytes = b""
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


def json_answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """An answer with a JSON value."""
    return Answer(status, json.dumps(value).encode(), JSON, headers or {})


def refused(problem: BadMessage | Conflict) -> tuple[int, dict[str, Any]]:
    """HTTP status and JSON of a refused message."""
    if isinstance(problem, BadMessage):
        return 400, {"error": str(problem), "field": problem.field}
    return 409, {"error": str(problem), "code": problem.code}


def error(text: str, status: int, headers: Mapping[str, str] | None = None) -> Answer:
    """A JSON error: what is wrong and what to do."""
    return json_answer({"error": text}, status, headers)


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
