"""SSGD, bulk-synchronous (Chen et al., "Revisiting distributed synchronous SGD", 2016, arXiv:1604.00981):
w <- w - eta * (sum of the workers' gradients) / N, after every step."""

from __future__ import annotations

from collections.abc import Sequence

from trainer.context import Context
from trainer.engine import mx
from trainer.loop import Trainer
from trainer.parameters import array_of
from trainer.run_logs.round_log import GLOBAL_AGGREGATE
from trainer.transport.collective import CollectiveSums


class SynchronousTrainer(Trainer):
    """What SSGD and ESync share: at the end of a round the kvstore (dist_sync) sums over all workers.

    A few numbers travel with the arrays (beside.py): all read the same sums, so all stop after the same round. An
    algorithm that has `numbers` of its own sets this worker's before each sum, as many as before `broadcast`, and finds
    the sums over the workers there.
    """

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.transport = context.shared
        self.exchange = self._shared = self.transport.sums(context.compression)
        self.numbers: list[float] = []

    def broadcast(self) -> None:
        """Weights, auxiliary parameters and the vote get their keys in this order, here and in `sum_over_workers`."""
        statistics = self.parameters.statistics()
        exact = self._exact(statistics)
        self._shared.broadcast([*self.parameters.weights, *exact], exact=len(exact))
        self.parameters.set_statistics(statistics)

    def _exact(self, statistics: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        """What is summed beside weights or gradients, and never compressed."""
        return [*statistics, mx.nd.zeros_like(array_of(self.beside(False, self.numbers).packed()))]

    # ------------------------------------------------------------------------- what a worker that comes late takes over

    def come_late(self) -> None:
        """In place of `broadcast`, on a worker that comes to a job at work."""
        exact = self._exact(self.parameters.statistics())
        self._among_workers.prepare([*self.parameters.weights, *exact], exact=len(exact))

    def shared_state(self) -> list[mx.nd.NDArray]:
        """What is the same on all workers at the end of a round; writing into these arrays changes it."""
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
        """The workers of a new generation are connected and know each other's reports.

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
        mine = self.beside(wants_stop, self.numbers, is_missing)
        beside = array_of(mine.packed())
        everything = [*arrays, beside]
        self.send(self._shared.begin_sum, everything, stage)
        self.take_sum(everything)
        sums = mine.unpacked(beside.asnumpy().tolist())
        self.numbers = list(sums.numbers)
        return self.take_beside(sums)

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
