"""How a worker asks the state server after each local step: it waits for the answer, or it trains on until one comes.

The second way is the preprint's non-blocking query with delayed ACK (section 4.2): NOT READY is assumed until READY
arrives; then the running step is given up and what is complete is aggregated. So the training thread does not pay for
the round trips. A step can be given up only between its forward and its backward pass or after them, since MXNet runs
a pass to its end; so a worker waits for the answer after all where that is cheaper (`worthwhile_wait`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

from trainer.state_client import StateClient

# More questions than these are not under way at once: the newest waits, and says all that those before it would say.
MAX_UNDER_WAY = 16


FORWARD_SHARE = 1 / 3  # of a step's computation; the backward pass computes two gradients where it computes one value
LATENESS = 2.0  # how many times its usual round trip an answer may take to be waited for, at least
SILENCE_S = 0.25  # without an answer, at least, until the state server counts as away


def worthwhile_wait(step_s: float, round_trip_s: float, steps_per_round: int) -> float:
    """Seconds that a worker should wait for an answer before it begins another step.

    Whoever trains on acts upon READY only at the end of the pass that runs when it arrives: late by a part of its step,
    once a round. Whoever waits pays a round trip for every other answer of the round. The lesser is chosen: a straggler
    with its one step a round waits, and everybody would wait for it otherwise; a fast worker far away does not.

    Args:
        step_s: of this worker.
        round_trip_s: of a question and its answer.
        steps_per_round: local steps of this worker in a round.
    """
    if step_s <= 0:
        return 0.0
    rest = round_trip_s % step_s
    end_of_pass = FORWARD_SHARE * step_s if rest <= FORWARD_SHARE * step_s else step_s
    late_s = end_of_pass - rest
    if (steps_per_round - 1) * round_trip_s > late_s:
        return 0.0
    # A late answer is still cheaper than a forward pass.
    return max(LATENESS * round_trip_s, FORWARD_SHARE * step_s / steps_per_round)


class Queries(Protocol):
    """Both ways look the same to a trainer. Arguments as in StateClient."""

    waits: bool

    def report(self, round_: int, step_s: float, transmission_s: float, accuracy: float | None) -> None:
        """Tells that the worker is in the round."""

    def ask(self, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
        """Asks after a local step; returns whether it is known that the round's local steps are done."""

    def is_ready(self, round_: int) -> bool:
        """Whether it is known by now that the round's local steps are done."""

    def close(self) -> None:
        """Waits for what is under way."""


class BlockingQueries:
    """Waits for each answer, as the published programs do."""

    waits = True

    def __init__(self, client: StateClient) -> None:
        self._client = client
        self.report = client.report
        self.ask = client.query

    def is_ready(self, round_: int) -> bool:
        """Nothing is known that `ask` did not return."""
        return False

    def close(self) -> None:
        """Nothing is under way."""


class NonBlockingQueries:
    """Asks in threads of its own. Questions may overtake each other on the way; the server expects that.

    While the state server is away nobody can say when the round is over. Then a worker trains on for no more steps than
    in the round before, and waits: many steps on one global model would be too many for the others' updates.
    """

    waits = False

    def __init__(self, client: StateClient, max_under_way: int = MAX_UNDER_WAY) -> None:
        self._client = client
        self._pool = ThreadPoolExecutor(max_under_way, thread_name_prefix="query")
        self._max_under_way = max_under_way
        self._changed = threading.Condition()
        self._under_way = 0
        self._silent_since = 0.0  # the last answer, or the question after which nothing was under way before
        self._answers = 0
        self._next: Callable[[], None] | None = None
        self._round = 0
        self._steps = self._steps_before = 1  # local steps in this round and in the one before
        self._ready_round = -1  # in round 0, before training, nobody is ready
        self._failure: BaseException | None = None

    def report(self, round_: int, step_s: float, transmission_s: float, accuracy: float | None) -> None:
        """Tells that the worker is in the round. A question that overtakes it tells the same."""
        self._raise_failure()
        self._pool.submit(
            self._guarded, lambda: self._client.report(round_, self._delay(step_s), transmission_s, accuracy)
        )

    def ask(self, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
        """Asks, waits a little where that is worthwhile, and returns what is known by then."""
        self._raise_failure()
        if round_ != self._round:
            self._round, self._steps_before = round_, self._steps
        self._steps = steps
        answered = threading.Event()
        delay_s = self._delay(step_s)
        self._submit(lambda: self._query(round_, steps, delay_s, transmission_s, answered))
        answered.wait(worthwhile_wait(step_s, self._client.round_trip_s, max(steps, self._steps_before)))
        if steps >= self._steps_before:
            self._wait_while_away()
        return self.is_ready(round_)

    def _wait_while_away(self) -> None:
        """Where questions are under way and the state server has been silent for long, waits for its next answer."""
        limit_s = max(SILENCE_S, LATENESS * self._client.round_trip_s)
        with self._changed:
            if not self._under_way or time.monotonic() - self._silent_since < limit_s:
                return
            before = self._answers
            self._changed.wait_for(lambda: self._answers > before or not self._under_way or self._failure is not None)
        self._raise_failure()

    def is_ready(self, round_: int) -> bool:
        """Whether READY for this round has arrived. Late answers of earlier rounds do not count."""
        return self._ready_round >= round_

    def close(self) -> None:
        """Waits for what is under way, if there is an answer at all; what was not sent yet is of no use any more."""
        self._client.stop_waiting()
        with self._changed:
            self._next = None
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _delay(self, step_s: float) -> float:
        # Preprint, section 4.2: here c_k is the time of a batch plus a round trip: when the next answer can be here.
        return step_s + self._client.round_trip_s if step_s else 0.0

    def _query(self, round_: int, steps: int, step_s: float, transmission_s: float, answered: threading.Event) -> None:
        ready = self._client.query(round_, steps, step_s, transmission_s)
        with self._changed:
            if ready:
                self._ready_round = max(self._ready_round, round_)
            self._answers += 1
            self._silent_since = time.monotonic()
            self._changed.notify_all()
        answered.set()

    def _submit(self, question: Callable[[], None]) -> None:
        with self._changed:
            if self._under_way == self._max_under_way:
                self._next = question
                return
            if not self._under_way:
                self._silent_since = time.monotonic()
            self._under_way += 1
        self._pool.submit(self._send, question)

    def _send(self, question: Callable[[], None] | None) -> None:
        while question is not None:
            self._guarded(question)
            with self._changed:
                question, self._next = self._next, None
                if question is None:
                    self._under_way -= 1
                    self._changed.notify_all()

    def _guarded(self, task: Callable[[], None]) -> None:
        try:
            task()
        except BaseException as error:  # told to the training thread, which is the one that can end the job
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
