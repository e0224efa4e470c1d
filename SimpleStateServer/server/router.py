"""FIFO queue and message router: hands messages to their handlers in order, one at a time.

`manage.py serve` calls the router in its one event loop. There the loop's own list of what is ready is the FIFO queue:
a message is routed when its turn comes, and no handler ever waits, so the next one finds the table complete. Django's
`runserver` calls it from threads, which the lock lets in one after the other; in one loop the lock is always free.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from server.handlers import Handlers
from server.messages import Beat, Join, Left, Message, PublishedReset, Query, Report, Reset, Response

Read = TypeVar("Read")


class Router:
    """Hands each message to its handler; nothing else touches the state. The handlers own the state. The clock,
    monotonic seconds, is read when a message's turn comes, so time never goes back between messages."""

    def __init__(self, handlers: Handlers, clock: Callable[[], float]) -> None:
        self._handlers = handlers
        self._clock = clock
        self._by_type: dict[type, Callable[[Any, float], Response]] = {
            Reset: handlers.reset,
            PublishedReset: handlers.reset,
            Report: handlers.report,
            Query: handlers.query,
            **dict.fromkeys((Join, Beat, Left), handlers.rendezvous.handle),
        }
        self._turn = threading.Lock()

    def ask(self, message: Message) -> Response:
        """The answer to a message. Raises Conflict or BadMessage as the handler says."""
        with self._turn:
            return self._by_type[type(message)](message, self._clock())

    def read(self, look: Callable[[Handlers, float], Read]) -> Read:
        """What `look` makes of the state and the time of its turn. No message is handled meanwhile."""
        with self._turn:
            return look(self._handlers, self._clock())
