"""SSGD, bulk-synchronous (Chen et al., "Revisiting distributed synchronous SGD", 2016, arXiv:1604.00981):
w <- w - eta * (sum of the workers' gradients) / N, after every step."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trainer.bad_numbers import present
from trainer.context import Context
from trainer.engine import mx
from trainer.loop import Trainer
from trainer.parameters import array_of
from trainer.survival import Survival
from trainer.transport.collective import CollectiveSums
from utils import GLOBAL_AGGREGATE, LEFT, Measure, PeerLost, logged_rounds, read_rounds


class SynchronousTrainer(Trainer):
    """What SSGD and ESync share: at the end of a round the kvstore (dist_sync) sums over all workers.

    One number more travels with the arrays: how many workers want to stop. All read the same sum, so all stop after the
    same round. Another one says whose part is missing (bad_numbers.py). Where the step size follows the samples, theirs
    of the round are one more. `numbers` travel with it: an algorithm that has some sets this worker's before each sum,
    as many as before `broadcast`, and finds the sums over the workers there.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.transport = context.shared
        self.exchange = self._shared = self.transport.sums(context.compression)
        self.numbers: list[float] = []
        self.present = 1.0  # share of the last sum that was not missing; 0: nobody had anything to give
        self.survival = Survival(self)
        self._pauses = False  # all have agreed to come together anew

    def broadcast(self) -> None:
        """Weights, auxiliary parameters and the vote get their keys in this order, here and in `sum_over_workers`."""
        statistics = self.parameters.statistics()
        exact = self._exact(statistics)
        self._shared.broadcast([*self.parameters.weights, *exact], exact=len(exact))
        self.parameters.set_statistics(statistics)

    def _exact(self, statistics: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        """What is summed beside weights or gradients, and never compressed."""
        return [*statistics, mx.nd.zeros_like(self._vote(False, False))]

    # ------------------------------------------------------------------------------ where others are lost, or come

    def come_together(self) -> None:
        """A worker that comes to a job at work gets its model, and evaluates or not as all of them agree. Where others
        are lost before all are ready, those that are left come together once more."""
        is_at_work = self.survival.begin()
        while not is_at_work:
            try:
                super().come_together()
            except PeerLost:
                if not self.survival.is_broken:
                    raise
                is_at_work = self.survival.begin_again()
            else:
                break
        if self.survival.is_on and self.context.keeper is not None:
            self.context.keeper.set_aside(self.rounds)  # it may have one that is later than the job

    def open_measure(self, folder: Path) -> Measure:
        """As Trainer says; rounds and seconds of a job at work are those of the others."""
        if self.job_age_s is None:
            measure = super().open_measure(folder)
        else:
            self.progress.go_on(list(read_rounds(folder, logging.warning)), self.is_evaluator)  # before it was lost
            measure = Measure(folder, self.clock.now, self.rounds, self.job_age_s, as_lines=self.context.logs_lines)
        if self.survival.is_on:
            self.survival.missed = self.rounds - max([0, *logged_rounds(folder, logging.warning)])
        return measure

    @property
    def job_age_s(self) -> float | None:
        """As Trainer says."""
        return self.survival.job_age_s

    def agree(self, wants_stop: bool) -> bool:
        """Exchanges with the other workers, and with those that are left where some are lost meanwhile."""
        while True:
            try:
                agreed = self.synchronize(wants_stop)
            except PeerLost:
                if not self.survival.is_broken:
                    raise
                if self.survival.regroup():
                    return self.survival.is_over
                self.exchange_failed()
            else:
                break
        self.survival.finished(self.rounds)
        if self._pauses and not agreed:
            self.survival.pause()
            if self.has_left:
                self.finished = LEFT
                return True
        return agreed

    def part(self) -> None:
        """As Trainer says."""
        self.survival.part()

    def notes(self) -> dict[str, Any]:
        """Who has come, and who is gone."""
        return self.survival.notes()

    def come_late(self) -> None:
        """In place of `broadcast`, on a worker that comes to a job at work."""
        exact = self._exact(self.parameters.statistics())
        self._among_workers.prepare([*self.parameters.weights, *exact], exact=len(exact))

    def shared_state(self) -> list[mx.nd.NDArray]:
        """What is the same on all workers at the end of a round; who writes into these arrays changes it."""
        weights = self.parameters.weights
        return [*weights, *self.parameters.statistics(), *self.stepper.arrays(weights)]

    def adopt(self, state: Sequence[mx.nd.NDArray]) -> None:
        """Goes on with what another worker has written into `shared_state`."""
        statistics = self.parameters.statistics()
        begin = len(self.parameters.weights)
        self.parameters.set_statistics(state[begin : begin + len(statistics)])

    @property
    def sums_meet(self) -> bool:
        """As CollectiveSums.meets."""
        return self._among_workers.meets

    @property
    def _among_workers(self) -> CollectiveSums:
        """The sums, where workers make them without a parameter server."""
        assert isinstance(self._shared, CollectiveSums)
        return self._shared

    def go_on_with(self, meets: bool, job: str, generation: int) -> None:
        """The workers of a new generation are connected and know each other's words.

        Args:
            meets: as CollectiveSums.meets.
            job: its name on the state server, where it has one.
        """
        self._among_workers.go_on(meets)

    def exchange_failed(self) -> None:
        """The sum will be made once more, with other workers."""

    # ------------------------------------------------------------------------------------------------------ the sum

    def sum_over_workers(
        self, arrays: Sequence[mx.nd.NDArray], stage: str, wants_stop: bool, is_missing: bool = False
    ) -> bool:
        """Replaces each array by its sum over the workers; returns whether any of them wants to stop.

        Arrays leave as soon as they are computed, so gradients travel while the backward pass still runs. Time counts
        for `stage` from when the last of them was computed.

        Args:
            is_missing: this worker has nothing to give; then zeros go in place of the arrays' content.
        """
        if is_missing:
            for array in arrays:
                array[:] = 0
        vote = self._vote(wants_stop, is_missing)
        everything = [*arrays, vote]
        self.send(self._shared.begin_sum, everything, stage)
        self.take_sum(everything)
        num_votes, *self.numbers = vote.asnumpy().tolist()
        if self.survival.is_on:
            self._pauses = self.numbers.pop() > 0
        if self.checks.are_made:
            self.present = present(self.membership.counted_of_all, self.numbers.pop())
        if self._tells_samples:
            self.seen.told(self.seen.of_all + round(self.numbers.pop()), self.seen.own)
        return bool(num_votes)

    @property
    def _tells_samples(self) -> bool:
        return not self.context.rule.schedule.is_constant

    def _vote(self, wants_stop: bool, is_missing: bool) -> mx.nd.NDArray:
        samples = [float(self.seen.own)] if self._tells_samples else []
        missing = [float(self.membership.counted * is_missing)] if self.checks.are_made else []
        pauses = [float(self.survival.wants_pause)] if self.survival.is_on else []
        return array_of(np.array([float(wants_stop), *self.numbers, *samples, *missing, *pauses], np.float32))

    def take_sum(self, arrays: Sequence[mx.nd.NDArray]) -> float | None:
        """Waits for what was sent, of all workers; returns how long that took to come back, where it is timed."""
        delay_s = self.link_delay()
        self.clock.sleep(delay_s)
        took_s = self._shared.finish_sum(arrays, self.is_timed())
        return None if took_s is None else took_s + delay_s

    def is_timed(self) -> bool:
        """Whether the transfer of this round is timed."""
        return False


class SyncTrainer(SynchronousTrainer):
    """SSGD. Every rank applies the same sum to the same weights, so they stay equal without being sent."""

    def __init__(self, context: Context, learning_rate: float) -> None:
        super().__init__(context)
        self._learning_rate = learning_rate

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """The gradient."""
        self._batch = images, labels
        self.compute_gradients(images, labels, self.membership.weight)
        self.gradients_are_good(self._shared.largest)
        return True

    def exchange_failed(self) -> None:
        """The gradients hold a part of the sum that failed, and their weight may be another one now."""
        self.compute_gradients(*self._batch, self.membership.weight)

    def synchronize(self, wants_stop: bool) -> bool:
        """Sums the gradients and steps; averages BatchNorm's statistics. Where all were bad nothing changes."""
        statistics = [flat * self.statistics_weight() for flat in self.parameters.statistics()]
        gradients = self.parameters.gradients
        stop = self.sum_over_workers([*gradients, *statistics], GLOBAL_AGGREGATE, wants_stop, self.step_is_bad)
        if divisor := self.divisor():
            self.take_step(self._learning_rate, divisor)
            self.parameters.set_statistics([flat / divisor for flat in statistics])
        mx.nd.waitall()
        return stop

    def statistics_weight(self) -> float:
        """What this worker counts in the mean of BatchNorm's statistics, times the divisor of that mean."""
        return self.membership.weight

    def divisor(self) -> float:
        """What makes a mean of the sums over the workers."""
        return self.membership.num_workers * self.present


def build(context: Context) -> SyncTrainer:
    """From the flags."""
    return SyncTrainer(context, context.config.learning_rate)
