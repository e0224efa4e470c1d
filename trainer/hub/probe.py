"""Measures a worker and its way to the hub, in one round that trains nothing: steps of the job; then transfers, of each
worker alone, one after another, and of all at once. The round's log has what was found.

scripts/probe.py starts such a job (-m async-local with the hidden flag --probe), and makes a cluster file of its logs.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.context import Context
from trainer.hub.hub_trainer import HubTrainer
from trainer.hub.server_part import WANTS_STOP, Answer, Answers, Arrays, Message, Served
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE

NOTE = "probe"  # in the round's log
UNCOUNTED = 1  # the first step does not count: the optimizer makes its arrays, and three test steps came before
STEPS, STEPS_S = 20, 2.0  # so many steps, and for so long: workers of one host slow each other
FEWEST, MOST_S = 3, 10.0  # after so long so many are enough
STEP_SIZE = 1e-9
ALONE_S, MOST_ALONE_S, TOGETHER_S, TRIPS_S = 4.0, 0.4, 0.5, 0.2  # of all workers, of each, and of all at once
BUSY_S = 0.005  # of a processor, before a transfer of a worker alone: steps, too, use up a processor's quota
TRANSFERS = 3  # each way, of each alone, at the least
NUMBERS, PIECE_S = 1 << 14, 0.05  # a model that takes longer is not sent as a whole: from NUMBERS on four times as many
GIVES = "gives"  # in a message: the answer is to have the arrays that this worker sent last


@dataclass(frozen=True)
class Found:
    """What a worker has measured. Seconds of a transfer are those of a question with its answer."""

    steps_s: tuple[float, ...]
    round_trip_s: float  # without arrays
    model_bytes: int
    sent_bytes: int  # of a transfer: the model's, or less
    push_s: float
    pull_s: float
    push_together_s: float  # while all workers push
    pull_together_s: float


class EchoServer:
    """Answers each worker at once."""

    def __init__(self, job: Served) -> None:
        self._last: dict[int, Arrays] = {}  # by rank

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        if WANTS_STOP in message:  # the answer is on its way
            return {}
        if arrays:
            self._last[rank] = arrays
        return {rank: Answer({}, self._last[rank] if message[GIVES] else ())}

    def joined(self, rank: int) -> Answer:
        return Answer({})

    def lost(self, rank: int) -> Answers:
        return {}

    def state(self) -> dict[str, Any]:
        return {}


class ProbeTrainer(HubTrainer):
    """Its one round measures. The hub gets no model, so that pieces of it may travel."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._steps_s: list[float] = []
        self._since = 0.0  # when the steps began
        self._found: Found

    def shared_arrays(self) -> Arrays:
        return ()

    def broadcast(self) -> None:
        self.begin_at_hub()

    def begin_round(self) -> None:
        self._since = self.clock.now()

    def local_step(self, batch: Batch) -> bool:
        is_complete = self.whole_step(batch, STEP_SIZE)
        self._steps_s.append(self.step_s)
        return is_complete

    def ready(self) -> bool:
        self.measure.next_step()
        counted, elapsed_s = len(self._steps_s) - UNCOUNTED, self.clock.now() - self._since
        is_done = counted >= STEPS and elapsed_s >= STEPS_S
        return is_done or (counted >= FEWEST and (elapsed_s >= MOST_S or self.context.run.stop_requested()))

    def synchronize(self, wants_stop: bool) -> bool:
        self.measure.enter(GLOBAL_AGGREGATE)
        model = np.concatenate([array.reshape(-1) for array in self.parameters.model()], dtype=np.float32)
        for turn in range(self.hub.num_workers):
            self._meet(turn)
            if turn == self.hub.rank:
                seconds = min(MOST_ALONE_S, ALONE_S / self.hub.num_workers)
                trips_s = self._times((), False, TRIPS_S)
                piece = self._piece(model)
                pushes_s, pulls_s = self._times((piece,), False, seconds), self._times((), True, seconds)
        self._meet(self.hub.num_workers)
        push_together_s = statistics.fmean(self._times((piece,), False, TOGETHER_S, fewest=1, busy_s=0.0))
        self._meet(self.hub.num_workers + 1)
        self._found = Found(
            tuple(self._steps_s[UNCOUNTED:]),
            round_trip_s=statistics.fmean(trips_s),
            model_bytes=model.nbytes,
            sent_bytes=piece.nbytes,
            push_s=statistics.fmean(pushes_s),
            pull_s=statistics.fmean(pulls_s),
            push_together_s=push_together_s,
            pull_together_s=statistics.fmean(self._times((), True, TOGETHER_S, fewest=1, busy_s=0.0)),
        )
        return True

    def notes(self) -> dict[str, Any]:
        return {NOTE: dataclasses.asdict(self._found)}

    def _meet(self, number: int) -> None:
        """Waits until all workers are there."""
        self.context.peers.gather(f"{NOTE} {number}", None)

    def _piece(self, model: np.ndarray) -> np.ndarray:
        """As much of the model as takes long enough to be timed."""
        size = NUMBERS
        while size < model.size and self._time((model[:size],), False) < PIECE_S:
            size *= 4
        return model[:size]

    def _times(
        self, arrays: Arrays, gives: bool, seconds: float, fewest: int = TRANSFERS, busy_s: float = BUSY_S
    ) -> list[float]:
        """Of transfers, for so long. Their mean counts what a quota takes; a median does not."""
        until, found = self.clock.now() + seconds, list[float]()
        while len(found) < fewest or self.clock.now() < until:
            busy_until = time.thread_time() + busy_s
            while time.thread_time() < busy_until:
                pass
            found.append(self._time(arrays, gives))
        return found

    def _time(self, arrays: Arrays, gives: bool) -> float:
        begin = self.clock.now()
        self.ask({GIVES: gives}, arrays)
        return self.clock.now() - begin
