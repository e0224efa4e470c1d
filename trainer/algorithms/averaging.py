"""Model averaging: workers train their own copies, then apply the mean of the model updates,
w <- w + eps * sum_k (n_k / n) * (w_k - w), where worker k has n_k of the n samples.

The negated mean is the gradient of an outer optimiser with learning rate eps and momentum (outer_momentum.py). FedNova
divides each update by its number of local steps (fednova.py).
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from trainer.algorithms.fednova import AccumulationNorm
from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.algorithms.summing import SynchronousTrainer
from trainer.batch_norm import with_estimated_statistics
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
        self._norm = AccumulationNorm(context.run.rule.momentum) if normalise else None
        self.numbers = self._norm_share()  # summed with the updates (summing.py)

    def _norm_share(self) -> list[float]:
        """This worker's term of FedNova's tau_eff, (n_k / n) * |a_k|; empty without FedNova."""
        return [] if self._norm is None else [self.membership.sample_share * self._norm.total]

    def begin_round(self) -> None:
        if self._norm is not None:
            self._norm.begin_round()
            self.stepper.reset()

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
        if self._norm is not None and is_complete and not self.step_is_bad:
            self._norm.add_step(self.schedule_factor)
        return is_complete

    def global_model(self) -> AbstractContextManager[None]:
        return with_estimated_statistics(self, self.context.config.estimate_statistics)

    def synchronize(self, wants_stop: bool) -> bool:
        self.measure.enter(GLOBAL_UPDATE)
        global_model = self._global_weights + self._global_statistics
        # `updates` are new arrays, so they have the default layout that the kvstore needs.
        share = self.membership.sample_share
        weights_share = share / ((self._norm.total if self._norm else 0.0) or 1.0)  # FedNova divides by |a_k|
        shares = [weights_share] * len(self._global_weights) + [share] * len(self._global_statistics)
        updates = [
            (after - before) * factor
            for after, before, factor in zip(self.parameters.model(), global_model, shares, strict=True)
        ]
        all_skipped = bool(self.checks.steps.in_round and not self.good_steps)
        is_missing = all_skipped or not self.update_is_good(updates, largest=self.sums.largest)
        self.numbers = [0.0 for _ in self.numbers] if is_missing else self._norm_share()
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
        means = updates[:num_weights]
        if self._norm is not None:
            effective_steps = self.numbers[0] / self.present
            means = [effective_steps * mean for mean in means]
        for weight, global_weight, direction in zip(
            self.parameters.weights, self._global_weights, self._outer.directions(means), strict=True
        ):
            global_weight += self._global_learning_rate * direction
            global_weight.copyto(weight)
        # BatchNorm's statistics are just averaged: no eps, momentum or normalisation.
        for global_statistics, update in zip(self._global_statistics, updates[num_weights:], strict=True):
            global_statistics += update
        self.parameters.set_statistics(self._global_statistics)
