"""A worker's questions to the state server: it waits for each answer, or trains until one comes.

The second way is the preprint's non-blocking query with delayed ACK (section 4.2): NOT READY is assumed until READY
arrives; then the worker gives up the running step and aggregates the complete ones. So the training thread does not pay
for the round trips. A step can be given up only between its forward and its backward pass or after them, since MXNet
runs a pass to its end; where waiting is cheaper, a worker waits after all (`worthwhile_wait`).
"""

from __future__ import annotations

import contextlib
import logging
import math
from concurrent.futures import TimeoutError as FutureTimeout
from functools import partial
from typing import Any

from esync.base import JobError, PeerLost
from esync.client import StateClient
from esync.clock import Clock, Task
from esync.protocol import Message

FORWARD_SHARE = 1 / 3  # of a step's computation; the backward pass computes two gradients where it computes one value
MAX_UNDER_WAY = 16  # messages at once; the question after the next step tells all that is left out

LATENESS = 2.0  # usual round trips that a worker waits for an answer, at least
SILENCE_S = 0.25  # without an answer, at least, until a worker does no more steps than in the round before
AWAY_S = 1.0  # likewise, until it goes on without the state server


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
    StateClient.note.

    Without waiting, questions go beside the training; they may overtake each other, and the server expects that.

    While the state server is away, each worker goes on with as many local steps a round as in the last one that ended
    by an answer, sends nothing new, and tells its progress once the server answers again.
    """

    def __init__(self, client: StateClient, clock: Clock, waits: bool) -> None:
        """`waits`: for each answer, as the published programs do."""
        self.waits = waits
        self._client = client
        self._clock = clock
        self._under_way: list[Task[Any]] = []  # perhaps some that have ended
        self._batch_size: int | None = None
        self._round = 0
        self._steps = self._steps_before = 1  # local steps in this round and in the last one that ended by READY
        self._is_alone = False  # the round before ended without an answer
        # Tasks beside the training write the following too.
        self._lock = clock.lock()
        self._num_open = 0  # messages without an answer yet
        self._untold: Message | None = None  # the newest state that was noted while messages had no answer
        self._silent_since = 0.0  # the last answer, or the message before which nothing was under way
        self._news = clock.event()  # the next answer
        self._ready_round = -1  # round 0 is the time before training
        self._failure: Exception | None = None

    def report(self, round_: int, step_s: float, transmission_s: float) -> None:
        """Tells that the worker has entered the round. A question that overtakes the report tells the same."""
        state = self._client.note(round_, 0, self._delay(step_s), transmission_s)
        if not (self._silent_s() >= AWAY_S and self._passed_on(state)):
            self._send(state)

    def ask(self, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
        """Asks after a local step; returns whether READY has arrived, or the worker aggregates without it."""
        if round_ != self._round:
            if self.is_ready(self._round):
                self._steps_before = self._steps
            self._round = round_
        self._steps = steps
        state = partial(self._client.note, round_, steps, self._delay(step_s), transmission_s)
        if self._silent_s() < AWAY_S and self._num_open < MAX_UNDER_WAY:
            question = self._send(state(asks=True))
            wait_s = worthwhile_wait(step_s, self._client.round_trip_s, max(steps, self._steps_before))
            if question is not None and wait_s:
                with contextlib.suppress(FutureTimeout):
                    question.result(wait_s)
        is_away = steps >= self._steps_before and self._is_away()
        self._raise_failure()
        if self.is_ready(round_):
            if self._is_alone:
                logging.info("the state server decides again")
            self._is_alone = False
            return True
        if steps < self._steps_before or not (self._client.is_refused or (is_away and self._passed_on(state()))):
            return False
        if not self._is_alone:
            why = "takes none of its messages" if self._client.is_refused else "does not answer"
            steps_before = self._steps_before
            logging.warning("this worker goes on with %d local step(s) a round: the state server %s", steps_before, why)
        self._is_alone = True
        return True

    def is_ready(self, round_: int) -> bool:
        """Whether READY for this round has arrived. Late answers of earlier rounds do not count."""
        return self._ready_round >= round_

    def ask_batch_size(self, round_: int, step_s: float, samples: int) -> None:
        """Tells of the step of a round and asks for the batch size, beside the training. While an earlier question is
        under way, this does nothing: the next one tells all."""
        if not self._under_way:
            state = self._client.note(round_, 1, step_s, 0.0, samples, asks=True)
            self._under_way.append(self._clock.start(partial(self._client.send, state, math.inf), "question"))

    def batch_size(self) -> int | None:
        """Samples of this worker's batches by the newest answer; None before the first. Raises JobError if the state
        server refuses the question."""
        if self._under_way and self._under_way[0].done():
            size = self._under_way.pop().result().get("batch_size")
            self._batch_size = size if isinstance(size, int) and size > 0 else self._batch_size
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

    def _silent_s(self) -> float:
        """Seconds since the last answer, or since there is a message without one; 0: there is none."""
        with self._lock:
            silent_s = self._clock.now() - self._silent_since if self._num_open else 0.0
        return silent_s if silent_s >= LATENESS * self._client.round_trip_s else 0.0

    def _is_away(self) -> bool:
        """Waits for the next answer where the state server is late; returns whether it is away."""
        news = self._news
        if SILENCE_S <= (silent_s := self._silent_s()) < AWAY_S:
            news.wait(AWAY_S - silent_s)
        return self._silent_s() >= AWAY_S

    def _passed_on(self, state: Message) -> bool:
        """Leaves a state for the messages under way to tell; returns whether there is one."""
        with self._lock:
            self._untold = state if self._num_open else None
            return self._num_open > 0

    def _send(self, message: Message) -> Task[Any] | None:
        """Sends a message and waits for its answer, or begins to do so and returns that."""
        self._raise_failure()
        with self._lock:
            if not self._num_open:
                self._silent_since = self._clock.now()
            self._num_open += 1
        if self.waits and self._until_answered(message, 0.0):
            self._raise_failure()
            return None
        self._under_way = [task for task in self._under_way if not task.done()]
        self._under_way.append(self._clock.start(lambda: self._until_answered(message), "question"))
        return None if self.waits else self._under_way[-1]

    def _until_answered(self, message: Message, patience_s: float = math.inf) -> bool:
        """Sends a message, and what was noted meanwhile; returns whether it was answered within the patience.

        A failure is raised in the training thread, which can end the job.
        """
        round_, asks, ready, failure = message["status"]["round"], message["msg_type"] == "QUERY", False, None
        while True:
            try:
                ready = (self._client.send(message, patience_s).get("action") == "SYNC" and asks) or ready
            except Exception as error:
                if not patience_s and isinstance(error, PeerLost):
                    return False
                failure = error
            with self._lock:
                self._silent_since = self._clock.now()
                if patience_s and self._untold is not None and failure is None:
                    message, self._untold, asks = self._untold, None, False
                    continue
                self._num_open -= 1
                self._failure = failure or self._failure
                if ready:
                    self._ready_round = max(self._ready_round, round_)
                news, self._news = self._news, self._clock.event()
            news.set()
            return True

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
