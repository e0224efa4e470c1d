"""How a worker asks how large its batches are to be, under a rule that decides on that: once a round, and beside the
training, which never waits for the answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from trainer.clock import Clock, Task
from trainer.coordinator.client import StateClient
from utils import JobError


class BatchSizeQuestions:
    """One question at a time is under way; a round that begins with none answered has the size of the one before."""

    def __init__(self, client: StateClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._under_way: Task[int | None] | None = None
        self._size: int | None = None

    def ask(self, round_: int, step_s: float, samples: int, take_accuracy: Callable[[], float | None]) -> None:
        """Begins to tell of the step of a round and to ask. Where the question before is still under way the next one
        does it.

        Args:
            take_accuracy: of what is told once; called where a question begins.
        """
        if self._under_way is None:
            accuracy = take_accuracy()
            self._under_way = self._clock.start(
                lambda: self._client.ask_batch_size(round_, step_s, samples, accuracy), "question"
            )

    def newest(self) -> int | None:
        """Samples of this worker's batches, by the last answer that has come; None before the first.

        Raises:
            PeerLost: the state server has not answered for as long as the client is patient.
            JobError: it refuses the question.
        """
        if self._under_way is not None and self._under_way.done():
            answered, self._under_way = self._under_way, None
            self._size = answered.result() or self._size
        return self._size

    def close(self) -> None:
        """Waits for a question that is under way, if there is an answer at all."""
        self._client.stop_waiting()
        if self._under_way is not None:
            with contextlib.suppress(JobError):  # the job is over, and nobody needs the answer
                self._under_way.result()
