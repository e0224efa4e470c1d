"""Measures a worker and its ways to the servers, in rounds that train nothing: rounds of one step of the job and a
message; in the last one transfers, of each worker alone, one after another, and of all at once. Its log has what was
found.

scripts/probe.py starts such a job (-m async-local with the hidden flag --probe), and makes a cluster file of its logs.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from algorithm_row import AlgorithmFlags
from esync.measure import GLOBAL_AGGREGATE
from trainer.context import Context
from trainer.hub.hub_trainer import HubTrainer
from trainer.hub.server_part import WANTS_STOP, Answer, Answers, Arrays, Message, Served, ServerPart
from trainer.network import Batch

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
    rest_s: float  # of a round beside its step, with a message to the hub without arrays
    round_trip_s: float  # of such a message
    state_server_s: float  # of a message to the state server
    sent_bytes: int  # of a transfer: the model's, or less
    push_s: float
    pull_s: float
    push_together_s: float  # while all workers push
    pull_together_s: float


class EchoServer(ServerPart):
    """Answers each worker at once."""

    def __init__(self, job: Served, settings: AlgorithmFlags) -> None:
        self._last: dict[int, Arrays] = {}  # by rank

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        if WANTS_STOP in message:  # the answer is on its way
            return {}
        if arrays:
            self._last[rank] = arrays
        return {rank: Answer({}, self._last[rank] if message[GIVES] else ())}

    def joined(self, rank: int) -> Answer:
        return Answer({})


class ProbeTrainer(HubTrainer):
    """The hub gets no model, so that pieces of it may travel."""

    def __init__(self, context: Context, settings: AlgorithmFlags) -> None:
        super().__init__(context, settings)
        self.learning_rate = STEP_SIZE
        self._steps_s: list[float] = []
        self._rests_s: list[float] = []
        self._since = self._ended = 0.0  # when the first round has begun, and the last step has ended
        self._found: Found | None = None

    def shared_arrays(self) -> Arrays:
        return ()

    def broadcast(self) -> None:
        self.begin_at_hub()

    def begin_round(self) -> None:
        now = self.clock.now()
        if self._steps_s:
            self._rests_s.append(now - self._ended)
        else:
            self._since = now

    def local_step(self, batch: Batch) -> bool:
        is_complete = self.whole_step(batch)
        self._steps_s.append(self.step_s)
        self._ended = self.clock.now()
        return is_complete

    def _is_done(self) -> bool:
        """Whether there were enough steps."""
        counted, elapsed_s = len(self._steps_s) - UNCOUNTED, self.clock.now() - self._since
        is_done = counted >= STEPS and elapsed_s >= STEPS_S
        return is_done or (counted >= FEWEST and (elapsed_s >= MOST_S or self.context.run.stop_requested()))

    def synchronize(self, wants_stop: bool) -> bool:
        self.measure.enter(GLOBAL_AGGREGATE)
        if not self._is_done():
            self.ask({GIVES: False}, ())
            return False
        model = np.concatenate([array.reshape(-1) for array in self.parameters.model()], dtype=np.float32)
        times_s: dict[str, float] = {}  # of Found
        for turn in range(self.hub.num_workers):
            self._meet(turn)
            if turn == self.hub.rank:
                seconds = min(MOST_ALONE_S, ALONE_S / self.hub.num_workers)
                times_s["round_trip_s"] = self._mean_s(partial(self.ask, {GIVES: False}, ()), TRIPS_S)
                times_s["state_server_s"] = self._mean_s(self._tell_state_server, TRIPS_S)
                piece = self._piece(model)
                push, pull = partial(self.ask, {GIVES: False}, (piece,)), partial(self.ask, {GIVES: True}, ())
                times_s["push_s"] = self._mean_s(push, seconds)
                times_s["pull_s"] = self._mean_s(pull, seconds)
        self._meet(self.hub.num_workers)
        times_s["push_together_s"] = self._mean_s(push, TOGETHER_S, fewest=1, busy_s=0.0)
        self._meet(self.hub.num_workers + 1)
        times_s["pull_together_s"] = self._mean_s(pull, TOGETHER_S, fewest=1, busy_s=0.0)
        rest_s = statistics.fmean(self._rests_s[UNCOUNTED:])
        self._found = Found(tuple(self._steps_s[UNCOUNTED:]), rest_s=rest_s, sent_bytes=piece.nbytes, **times_s)
        return True

    def notes(self) -> dict[str, Any]:
        return {NOTE: dataclasses.asdict(self._found)} if self._found is not None else {}

    def _meet(self, number: int) -> None:
        """Waits until all workers are there."""
        self.context.peers.gather(f"{NOTE} {number}", None)

    def _piece(self, model: np.ndarray) -> np.ndarray:
        """As much of the model as takes long enough to be timed."""
        size = NUMBERS
        while size < model.size:
            begin = self.clock.now()
            self.ask({GIVES: False}, (model[:size],))
            if self.clock.now() - begin >= PIECE_S:
                break
            size *= 4
        return model[:size]

    def _mean_s(
        self, transfer: Callable[[], object], seconds: float, fewest: int = TRANSFERS, busy_s: float = BUSY_S
    ) -> float:
        """Of transfers, for so long. The mean counts what a quota takes; a median does not."""
        until, found = self.clock.now() + seconds, list[float]()
        while len(found) < fewest or self.clock.now() < until:
            busy_until = time.thread_time() + busy_s
            while time.thread_time() < busy_until:
                pass
            begin = self.clock.now()
            transfer()
            found.append(self.clock.now() - begin)
        return statistics.fmean(found)

    def _tell_state_server(self) -> None:
        self.context.state.send(self.context.state.note(self.rounds, self.steps, self.step_s, 0.0))
