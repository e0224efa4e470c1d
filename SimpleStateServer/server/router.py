"""FIFO queue and message router: hands messages to their handlers in order, one at a time.

`manage.py serve` calls the router in its one event loop. There the loop's own list of what is ready is the FIFO queue:
a message is routed when its turn comes, and no handler ever waits, so the next one finds the table complete. Django's
`runserver` calls it from threads, which the lock lets in one after the other; in one loop the lock is always free.
"""

import threading
from collections.abc import Callable
from typing import Any

from server.handlers import Handlers
from server.messages import Beat, Join, Left, Message, PublishedReset, Query, Report, Reset, Response
from server.snapshot import Overview, Snapshot


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

    def snapshot(self, job: str | None = None) -> Snapshot | None:
        """One job, by default the latest; None where there is none."""
        with self._turn:
            return self._handlers.snapshot(job, self._clock())

    def cut_off(self) -> None:
        """This server is about to stop."""
        with self._turn:
            self._handlers.cut_off(self._clock())

    def overview(self) -> Overview:
        with self._turn:
            return self._handlers.overview(self._clock())
