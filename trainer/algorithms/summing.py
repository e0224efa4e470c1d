"""The base of algorithms whose workers sum arrays at the end of a round, and numbers that travel with these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from esync.client import draw_job_number, job_id
from trainer.context import Context
from trainer.hub.sums import HubSums
from trainer.trainer import Trainer


@dataclass(frozen=True)
class Piggyback:
    """One worker's numbers, or their sums. None does not travel."""

    stop: float  # 1: this worker wants all to stop
    weight: float  # of this worker in the mean; 0: its arrays are zeros
    numbers: tuple[float, ...] = ()  # the algorithm's own
    samples: float | None = None  # trained on by this worker; None with a constant step size
    pause: float | None = None  # 1: this worker wants all to regroup; None in a job that does not survive losses

    def packed(self) -> np.ndarray:
        """Float32 (length,), of the same length on all workers of a job."""
        known = (each for each in (self.samples, self.pause) if each is not None)
        return np.array([self.stop, self.weight, *self.numbers, *known], np.float32)

    def unpacked(self, sums: Sequence[float]) -> Piggyback:
        """The sums from an array of the form of `packed`. Raises ValueError if the array has another length."""
        names = [name for name in ("samples", "pause") if getattr(self, name) is not None]
        stop, weight, *rest = sums
        numbers, known = rest[: len(self.numbers)], rest[len(self.numbers) :]
        return replace(self, stop=stop, weight=weight, numbers=tuple(numbers), **dict(zip(names, known, strict=True)))


class SynchronousTrainer(Trainer):
    """Sums arrays over all workers at the end of a round.

    The sum has extra numbers (Piggyback). All read the same sums, so all stop after the same round.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert context.peers.transport is not None
        self.transport = context.peers.transport
        self.exchange = self.sums = self.transport.sums(context.run.as_halves)
        self._hub = self.sums if isinstance(self.sums, HubSums) else None
        self.numbers: list[float] = []  # the algorithm's extra ones, of constant length; each sum replaces them

    def broadcast(self) -> None:
        statistics = self.parameters.statistics()
        self.sums.broadcast(*self.broadcast_arrays(statistics))
        self.parameters.set_statistics(statistics)
        if self._hub is not None and self._hub.taken is not None:  # this worker comes to a job at work
            self.set_global_model()
            self.rounds = self._take_over(*self._hub.taken)

    def begin_round(self) -> None:
        if self._hub is not None and self._hub.gives:
            said = {"rounds": self.rounds - 1, "seen": self.seen.of_all, "updates": self.stepper.updates}
            self._hub.give({**said, "newest": self.evaluated.newest}, self.shared_state())

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
        numbers = self._piggyback(False, 0.0).packed()
        exact = [*statistics, np.zeros_like(numbers)]
        return [*self.parameters.weights, *exact], len(exact)

    def set_global_model(self) -> None:
        """Called in place of `broadcast` on a worker that joins a running job; `adopt` follows."""

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
        self.stepper.updates, self.seen.of_all, self.evaluated.newest = said["updates"], said["seen"], said["newest"]
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
        mine = self._piggyback(wants_stop, weight)
        numbers = mine.packed()
        self.computed()
        self.measure.enter(stage)
        self.clock.sleep(self.emulation.link_delay_s())  # first, so that no worker gets them too early
        self.sums.begin_sum([*arrays, numbers])
        self.take_sum([*arrays, numbers])
        of_all = mine.unpacked(numbers.tolist())
        self.numbers = list(of_all.numbers)
        if self._hub is not None and self._hub.taken is not None:  # the others have gone on without this worker
            begun, self.rounds = self.rounds, self._take_over(*self._hub.taken)
            self.measure.skip(self.rounds - begun)
        self.pauses, self.weight_of_all = bool(of_all.pause), of_all.weight
        if of_all.samples is not None:
            self.seen.update(self.seen.of_all + round(of_all.samples), self.seen.own)
        return bool(of_all.stop)

    def _piggyback(self, wants_stop: bool, weight: float) -> Piggyback:
        """This worker's numbers for the sum of this round."""
        return Piggyback(
            float(wants_stop),
            weight,
            tuple(self.numbers),
            None if self.context.run.rule.schedule.is_constant else float(self.seen.own),
            None if (pause := self.company.wants_pause) is None else float(pause),
        )

    def computed(self) -> None:
        """Called when the arrays of the sum are computed and under way."""

    def take_sum(self, arrays: Sequence[np.ndarray]) -> float | None:
        """Waits for the sums; returns the seconds until they came back, None if not timed."""
        delay_s = self.emulation.link_delay_s()
        self.clock.sleep(delay_s)
        took_s = self.sums.finish_sum(arrays, self.is_timed())
        return None if took_s is None else took_s + delay_s

    def is_timed(self) -> bool:
        """Whether to time the transfer of this round."""
        return False
