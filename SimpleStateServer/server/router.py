"""FIFO queue and message router: messages are taken in order, one at a time, and nothing else touches the state.

There is no thread of the router's own: a thread that has queued a message takes the router's turn if it is free, and
routes until the queue is empty. Handing each message to another thread and waiting for it would cost two switches of
threads a query, about as much as all the rest of the query. No thread ever waits for the turn.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from server.handlers import Handlers, Snapshot
from server.messages import Query, Report, Reset, Response

ANSWER_TIMEOUT_S = 10.0  # a handler takes microseconds; whoever waits this long should be told instead of hanging

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inspect:
    """Asks for a snapshot; it never comes over the wire."""


class Router:
    """Takes messages from any thread and answers them in the order in which they came.

    Args:
        handlers: own the state; called by whoever has the router's turn, so by one thread at a time.
        clock: seconds, monotonic. It is read when a message's turn comes, so time never goes back between messages.
    """

    def __init__(self, handlers: Handlers, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._queue: queue.SimpleQueue[tuple[Any, Future[Any]]] = queue.SimpleQueue()
        self._by_type: dict[type, Callable[[Any, float], Any]] = {
            Reset: handlers.reset,
            Report: handlers.report,
            Query: handlers.query,
            Inspect: lambda _message, now: handlers.snapshot(now),
        }
        self._turn = threading.Lock()

    def ask(self, message: Reset | Report | Query) -> Response:
        """Queues a message and waits for its answer.

        Raises:
            Conflict, BadMessage: as the handler says.
            concurrent.futures.TimeoutError: no answer within ANSWER_TIMEOUT_S.
        """
        response: Response = self._submit(message)
        return response

    def snapshot(self) -> Snapshot:
        """The state after every message that was queued before."""
        snapshot: Snapshot = self._submit(Inspect())
        return snapshot

    def _submit(self, message: Any) -> Any:
        answer: Future[Any] = Future()
        self._queue.put((message, answer))
        # Whoever holds the turn also routes what was queued meanwhile. It looks again after it gave the turn back, so
        # a message that was queued by a thread that did not get the turn cannot stay behind.
        while not self._queue.empty() and self._turn.acquire(blocking=False):
            try:
                self._route()
            finally:
                self._turn.release()
        return answer.result(ANSWER_TIMEOUT_S)

    def _route(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                message, answer = self._queue.get_nowait()
                try:
                    answer.set_result(self._by_type[type(message)](message, self._clock()))
                except Exception as error:  # the sender is told; the next message must not suffer from this one
                    answer.set_exception(error)
