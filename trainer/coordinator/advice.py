"""Sync-Switch's questions to the state server: what it says is good for more than the step that it was asked about."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from trainer.coordinator.client import StateClient


class Advice:
    """Asks after a step in a thread of its own, where an answer is good for more than the step that it followed.

    One message is under way at a time. What a worker would say meanwhile is not said; but an accuracy is kept.
    """

    def __init__(self, client: StateClient) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="advice")
        self._under_way: Future[tuple[bool, str] | None] | None = None
        self._in_step = True
        self.reason = ""  # of the latest answer, in words
        self._accuracy: float | None = None  # that was not told yet

    def tell(
        self, round_: int, steps: int, step_s: float, transmission_s: float, accuracy: float | None = None
    ) -> None:
        """Tells that this worker is in the round, and asks nothing. Arguments as in StateClient."""
        self._begin(self._tell, accuracy, round_, steps, step_s, transmission_s)

    def ask(self, round_: int, step_s: float, transmission_s: float) -> None:
        """Asks after the step of round `round_`. Arguments as in StateClient."""
        self._begin(self._ask, None, round_, step_s, transmission_s)

    def in_step(self, patience_s: float) -> bool:
        """Whether this worker is to stay in step with the others, by the latest answer that comes in time."""
        if self._under_way is not None:
            try:
                answer = self._under_way.result(patience_s)
            except FutureTimeout:
                return self._in_step
            self._in_step, self.reason = answer or (self._in_step, self.reason)
            self._under_way = None
        return self._in_step

    def close(self) -> None:
        """Waits for what is under way, if there is an answer at all."""
        self._client.stop_waiting()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, say: Callable[..., tuple[bool, str] | None], accuracy: float | None, *about: Any) -> None:
        self._accuracy = self._accuracy if accuracy is None else accuracy
        self.in_step(0)
        if self._under_way is None:
            self._under_way = self._pool.submit(say, self._accuracy, *about)
            self._accuracy = None

    def _tell(self, accuracy: float | None, round_: int, steps: int, step_s: float, transmission_s: float) -> None:
        self._client.report(round_, step_s, transmission_s, accuracy, steps)

    def _ask(self, accuracy: float | None, round_: int, step_s: float, transmission_s: float) -> tuple[bool, str]:
        if accuracy is not None:
            self._client.report(round_, step_s, transmission_s, accuracy)
        return self._client.query_why(round_, 1, step_s, transmission_s)
