"""FIFO queue and message router: one thread takes the messages in order and is the only one that touches the state."""

from __future__ import annotations

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
        handlers: own the state; called from the router's thread only.
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
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

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
        if self._thread is None:
            self._start()
        answer: Future[Any] = Future()
        self._queue.put((message, answer))
        return answer.result(ANSWER_TIMEOUT_S)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._route, name="router", daemon=True)
                self._thread.start()

    def _route(self) -> None:
        while True:
            message, answer = self._queue.get()
            try:
                answer.set_result(self._by_type[type(message)](message, self._clock()))
            except Exception as error:  # the sender is told; the next message must not suffer from this one
                answer.set_exception(error)
