"""Model averaging: workers train their own copies, then apply the mean of the model updates,
w <- w + eps * sum_k (n_k / n) * (w_k - w), where worker k has n_k of the n samples.

The negated mean is the gradient of an outer optimiser with learning rate eps and momentum (outer_momentum.py). FedNova
divides each update by its number of local steps (fednova.py).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from trainer.algorithms.batch_norm import with_estimated_statistics
from trainer.algorithms.fednova import Normalisation
from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.algorithms.summing import SynchronousTrainer
from trainer.context import Context
from trainer.engine import mx
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_UPDATE


class ModelAveragingTrainer(SynchronousTrainer):
    """Local SGD steps, then one aggregation. A subclass's `ready` says when a round's local steps end."""

    def __init__(
        self,
        context: Context,
        learning_rate: float,  # of the local steps
        global_learning_rate: float,
        outer: OuterMomentum | None = None,
        normalise: bool = False,  # FedNova
    ) -> None:
        super().__init__(context)
        self._learning_rate = learning_rate
        self._global_learning_rate = global_learning_rate  # eps
        self._outer = outer or OuterMomentum()
        self._norm = Normalisation(normalise, context.run.rule.momentum)
        self.numbers = self._norm.numbers(self.membership.sample_share)  # summed too (summing.py)

    def begin_round(self) -> None:
        self._norm.begin_round(self.stepper)

    def broadcast(self) -> None:
        super().broadcast()
        self.set_global_model()

    def set_global_model(self) -> None:
        self._global_weights = [weight.copy() for weight in self.parameters.weights]
        self._global_statistics = self.parameters.statistics()

    def shared_state(self) -> list[mx.nd.NDArray]:
        return [*self._global_weights, *self._global_statistics, *self._outer.arrays(self._global_weights)]

    def adopt(self, state: Sequence[mx.nd.NDArray]) -> None:  # `state` is the arrays of `shared_state`, filled
        self.parameters.replace(self._global_weights + self._global_statistics)

    def own_state(self) -> dict[str, Any]:
        return {"outer": self._outer.state()}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        self._outer.restore(state["outer"], self.parameters.weights)

    def local_step(self, batch: Batch) -> bool:
        is_complete = self.whole_step(batch, self._learning_rate)
        if is_complete and not self.step_is_bad:
            self._norm.add_step(self.schedule_factor)
        return is_complete

    def global_model(self) -> AbstractContextManager[None]:
        return with_estimated_statistics(self, self.context.config.estimate_statistics)

    def synchronize(self, wants_stop: bool) -> bool:
        self.measure.enter(GLOBAL_UPDATE)
        global_model = self._global_weights + self._global_statistics
        # `updates` are new arrays, so they have the default layout that the kvstore needs.
        share = self.membership.sample_share
        weights_share = share / self._norm.divisor  # FedNova's |a_k|
        shares = [weights_share] * len(self._global_weights) + [share] * len(self._global_statistics)
        updates = [
            (after - before) * factor
            for after, before, factor in zip(self.parameters.model(), global_model, shares, strict=True)
        ]
        all_skipped = bool(self.checks.steps.in_round and not self.good_steps)
        is_missing = all_skipped or not self.update_is_good(updates, largest=self.sums.largest)
        self.numbers = self._norm.numbers(0.0 if is_missing else share)
        stop = self.sum_over_workers(updates, GLOBAL_UPDATE, wants_stop, is_missing)
        if self.present:
            self._apply(updates)
        else:  # no worker's update was good
            self.parameters.replace(global_model)
        mx.nd.waitall()
        return stop

    def _apply(self, updates: Sequence[mx.nd.NDArray]) -> None:
        """Applies the summed updates to the global model; copies it to the local one."""
        num_weights = len(self._global_weights)
        if self.present != 1:  # the mean is over the workers with an update
            updates = [update / self.present for update in updates]
        means = self._norm.scaled(updates[:num_weights], self.numbers, self.present)
        for weight, global_weight, direction in zip(
            self.parameters.weights, self._global_weights, self._outer.directions(means), strict=True
        ):
            global_weight += self._global_learning_rate * direction
            global_weight.copyto(weight)
        # BatchNorm's statistics are just averaged: no eps, momentum or normalisation.
        for global_statistics, update in zip(self._global_statistics, updates[num_weights:], strict=True):
            global_statistics += update
        self.parameters.set_statistics(self._global_statistics)
