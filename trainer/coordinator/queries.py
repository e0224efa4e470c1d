"""A worker's questions to the state server: it waits for each answer, or trains until one comes.

The second way is the preprint's non-blocking query with delayed ACK (section 4.2): NOT READY is assumed until READY
arrives; then the worker gives up the running step and aggregates the complete ones. So the training thread does not pay
for the round trips. A step can be given up only between its forward and its backward pass or after them, since MXNet
runs a pass to its end; where waiting is cheaper, a worker waits after all (`worthwhile_wait`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

from trainer.clock import Clock, Task
from trainer.coordinator.client import StateClient
from trainer.emulation import FORWARD_SHARE
from utils import JobError

MAX_UNDER_WAY = 16  # messages at once; the question after the next step tells all that is left out

LATENESS = 2.0  # usual round trips that a worker waits for an answer, at least
SILENCE_S = 0.25  # without an answer, at least, until the state server counts as away


def worthwhile_wait(step_s: float, round_trip_s: float, steps_per_round: int) -> float:
    """Seconds that a worker should wait for an answer before it begins another step.

    Without a wait, READY takes effect only at the end of the pass that runs when it arrives: late by a part of a step,
    once a round. With waits, every other answer of the round costs a round trip. The lesser cost is chosen: a straggler
    with its one step a round waits, or all would wait for it; a fast worker with a slow link does not.
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


class Queries:
    """Asks whether a round's local steps are done, or how large batches are to be. Arguments of its methods as in
    StateClient.

    Without waiting, questions go beside the training; they may overtake each other, and the server expects that. While
    the state server is away, a worker does no more steps than in the round before, and waits: with more steps on one
    global model its update would be too large beside those of others.
    """

    def __init__(self, client: StateClient, clock: Clock, waits: bool, max_under_way: int = MAX_UNDER_WAY) -> None:
        """
        Args:
            waits: for each answer, as the published programs do.
        """
        self.waits = waits
        self._client = client
        self._clock = clock
        self._max_under_way = max_under_way
        self._under_way: list[Task[Any]] = []  # perhaps some that have ended
        self._batch_size: int | None = None
        self._round = 0
        self._steps = self._steps_before = 1  # local steps in this round and in the one before
        # Tasks beside the training write the following too.
        self._lock = clock.lock()
        self._unanswered = 0
        self._silent_since = 0.0  # the last answer, or the message before which nothing was under way
        self._news = clock.event()  # the next answer
        self._ready_round = -1  # round 0 is the time before training
        self._failure: Exception | None = None

    def report(self, round_: int, step_s: float, transmission_s: float, value: float | None) -> None:
        """Tells that the worker has entered the round. A question that overtakes the report tells the same."""
        delay_s, generation = self._delay(step_s), self._client.generation  # it is sent later, perhaps in another one
        self._send(round_, lambda: self._client.report(round_, delay_s, transmission_s, value, generation=generation))

    def ask(self, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
        """Asks after a local step; returns whether READY has arrived."""
        if round_ != self._round:
            self._round, self._steps_before = round_, self._steps
        self._steps = steps
        if self._unanswered < self._max_under_way:
            delay_s, generation = self._delay(step_s), self._client.generation
            question = self._send(
                round_, lambda: self._client.query(round_, steps, delay_s, transmission_s, generation)
            )
            if question is not None:
                self._wait_for(question, step_s, max(steps, self._steps_before))
        if steps >= self._steps_before:
            self._wait_while_away()
        self._raise_failure()
        return self.is_ready(round_)

    def is_ready(self, round_: int) -> bool:
        """Whether READY for this round has arrived. Late answers of earlier rounds do not count."""
        return self._ready_round >= round_

    def ask_batch_size(self, round_: int, step_s: float, samples: int, take_value: Callable[[], float | None]) -> None:
        """Tells of the step of a round and asks for the batch size, beside the training. While an earlier question is
        under way, this does nothing: the next one tells all.

        Args:
            take_value: returns the metric's newest value and clears it; called where a question begins.
        """
        if not self._under_way:
            question = partial(self._client.ask_batch_size, round_, step_s, samples, take_value())
            self._under_way.append(self._clock.start(question, "question"))

    def batch_size(self) -> int | None:
        """Samples of this worker's batches by the newest answer; None before the first.

        Raises:
            PeerLost: the state server has not answered within the client's patience.
            JobError: it refuses the question.
        """
        if self._under_way and self._under_way[0].done():
            self._batch_size = self._under_way.pop().result() or self._batch_size
        return self._batch_size

    def close(self) -> None:
        """Waits for the messages under way; none is sent again."""
        self._client.stop_waiting()
        for message in self._under_way:
            with contextlib.suppress(JobError):  # the job is over: the answer does not matter
                message.result()

    def _delay(self, step_s: float) -> float:
        # Preprint, section 4.2: without waiting c_k is the time of a batch plus a round trip, after which the next
        # answer can be here. 0: none was measured yet.
        return step_s if self.waits or not step_s else step_s + self._client.round_trip_s

    def _send(self, round_: int, message: Callable[[], bool | None]) -> Task[None] | None:
        """Sends a message and waits for its answer, or begins to do so and returns that."""
        self._raise_failure()
        with self._lock:
            if not self._unanswered:
                self._silent_since = self._clock.now()
            self._unanswered += 1
        if self.waits:
            self._until_answered(round_, message)
            self._raise_failure()
            return None
        self._under_way = [task for task in self._under_way if not task.done()]
        self._under_way.append(self._clock.start(lambda: self._until_answered(round_, message), "question"))
        return self._under_way[-1]

    def _until_answered(self, round_: int, message: Callable[[], bool | None]) -> None:
        ready, failure = None, None
        try:
            ready = message()
        except Exception as error:  # raised in the training thread, which can end the job
            failure = error
        with self._lock:
            self._unanswered -= 1
            self._silent_since = self._clock.now()
            self._failure = failure or self._failure
            if ready:
                self._ready_round = max(self._ready_round, round_)
            news, self._news = self._news, self._clock.event()
        news.set()

    def _wait_for(self, question: Task[None], step_s: float, steps_per_round: int) -> None:
        patience_s = worthwhile_wait(step_s, self._client.round_trip_s, steps_per_round)
        if patience_s:
            with contextlib.suppress(TimeoutError):
                question.result(patience_s)

    def _wait_while_away(self) -> None:
        """Waits for the next answer where the state server has left messages unanswered for long."""
        with self._lock:
            is_open, silent_s, news = self._unanswered, self._clock.now() - self._silent_since, self._news
        if is_open and silent_s >= max(SILENCE_S, LATENESS * self._client.round_trip_s):
            news.wait()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
