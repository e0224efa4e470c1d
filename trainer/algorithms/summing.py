"""The base of algorithms whose workers sum arrays at the end of a round, and numbers that travel with these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from algorithm_row import AlgorithmFlags
from esync.client import draw_job_number, job_id
from trainer.context import Context
from trainer.hub.sums import HubSums
from trainer.trainer import Trainer


class SynchronousTrainer(Trainer):
    """Sums arrays over all workers at the end of a round.

    The sum has extra numbers. All read the same sums, so all stop after the same round.
    """

    def __init__(self, context: Context, settings: AlgorithmFlags) -> None:
        super().__init__(context, settings)
        assert context.peers.transport is not None
        self.transport = context.peers.transport
        self.exchange = self.sums = self.transport.sums(context.run.as_halves)
        self._hub = self.sums if isinstance(self.sums, HubSums) else None
        # The algorithm's own extra numbers, of the same names in each round; each sum replaces them.
        self.numbers: dict[str, float] = {}

    def broadcast(self) -> None:
        statistics = self.parameters.statistics()
        self.sums.broadcast(*self.broadcast_arrays(statistics))
        self.parameters.set_statistics(statistics)
        self.set_global_model()
        if self._hub is not None and self._hub.taken is not None:  # this worker comes to a job at work
            self.rounds = self._take_over(*self._hub.taken)

    def begin_round(self) -> None:
        if self._hub is not None and self._hub.gives:
            said = {"rounds": self.rounds - 1, "seen": self.seen.of_all, "updates": self.stepper.updates}
            self._hub.give({**said, "newest": self.progress.newest}, self.shared_state())

    def end(self) -> None:
        if self._hub is not None and not self.has_left:
            self._hub.end()

    def join_job(self) -> None:
        """All workers agree on the job's name on the state server, which rank 0 draws."""
        number, membership = self.transport.agree(draw_job_number()), self.context.peers.membership()
        self.context.state.join(job_id(number), membership.rank, membership.num_workers, self.progress)

    def broadcast_arrays(self, statistics: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
        """The arrays in the order of their keys, as in `sum_over_workers`, and how many of the last are never
        compressed."""
        exact = [*statistics, np.zeros(len(self._numbers(False, 0.0)), np.float32)]
        return [*self.parameters.weights, *exact], len(exact)

    def set_global_model(self) -> None:
        """Called by `broadcast`, and in its place on a worker that joins a running job, where `adopt` follows."""

    def shared_state(self) -> list[np.ndarray]:
        """Arrays that are equal on all workers at the end of a round; a worker that is behind gets their content."""
        weights = self.parameters.weights
        return [*weights, *self.parameters.statistics(), *self.stepper.arrays(weights)]

    def adopt(self, state: Sequence[np.ndarray]) -> None:
        """Continues with another worker's content of `shared_state`, which is already in these arrays."""
        statistics = self.parameters.statistics()
        begin = len(self.parameters.weights)
        self.parameters.set_statistics(state[begin : begin + len(statistics)])

    def _take_over(self, said: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> int:
        """Continues with another worker's state; returns the rounds that it has done."""
        assert self._hub is not None
        self._hub.taken = None
        state = self.shared_state()
        for own, array in zip(state, arrays, strict=True):
            own[...] = array
        self.adopt(state)
        self.stepper.updates, self.seen.of_all, self.progress.newest = said["updates"], said["seen"], said["newest"]
        return int(said["rounds"])

    def exchange_failed(self) -> None:
        """Called before the sum is repeated with other workers."""

    def sum_over_workers(self, arrays: Sequence[np.ndarray], stage: str, wants_stop: bool, weight: float) -> bool:
        """Replaces each array by its sum over the workers, and `weight_of_all` and `numbers` by theirs; returns whether
        any worker wants to stop.

        Time counts for `stage` from now on. This worker's arrays are weighted; the mean over the workers is the sum
        divided by `weight_of_all`. With weight 0 it contributes zeros.
        """
        if not weight:
            for array in arrays:
                array[:] = 0
        mine = self._numbers(wants_stop, weight)
        numbers = np.array([*mine.values()], np.float32)
        self.computed()
        self.measure.enter(stage)
        self.clock.sleep(self.emulation.link_delay_s())  # first, so that no worker gets them too early
        self.sums.begin_sum([*arrays, numbers])
        self.take_sum([*arrays, numbers])
        of_all = dict(zip(mine, numbers.tolist(), strict=True))
        self.numbers = {name: of_all[name] for name in self.numbers}
        if self._hub is not None and self._hub.taken is not None:  # the others have gone on without this worker
            begun, self.rounds = self.rounds, self._take_over(*self._hub.taken)
            self.measure.skip(self.rounds - begun)
        self.pauses, self.weight_of_all = bool(of_all.get("pause")), of_all["weight"]
        if "samples" in of_all:
            self.seen.update(self.seen.of_all + round(of_all["samples"]), self.seen.own)
        return bool(of_all["stop"])

    def _numbers(self, wants_stop: bool, weight: float) -> dict[str, float]:
        """What this worker adds to the sum of this round beside the arrays, under the same names on all workers."""
        numbers = {"stop": float(wants_stop), "weight": weight, **self.numbers}
        if not self.context.run.rule.schedule.is_constant:
            numbers["samples"] = float(self.seen.own)
        if (pause := self.company.wants_pause) is not None:  # the job survives losses
            numbers["pause"] = float(pause)
        return numbers

    def computed(self) -> None:
        """Called when the arrays of the sum are computed and under way."""

    def take_sum(self, arrays: Sequence[np.ndarray]) -> None:
        """Waits for the sums, and notes the seconds until they came back, if these are timed."""
        delay_s = self.emulation.link_delay_s()
        self.clock.sleep(delay_s)
        took_s = self.sums.finish_sum(arrays, self.is_timed())
        if took_s is not None:
            self.transmission.add(took_s + delay_s)

    def is_timed(self) -> bool:
        """Whether to time the transfer of this round."""
        return False
