"""Model averaging: workers train their own copies for a while, then the mean of the model updates is applied,
w <- w + eps * sum_k (n_k / n) * (w_k - w), n_k the samples that worker k holds. The algorithm decides when.

With momentum the mean is the gradient of an outer optimiser whose learning rate is eps (outer_momentum.py). FedNova
divides each worker's update by the reach of its steps (fednova.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from trainer.algorithms.fednova import StepReach
from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.algorithms.summing import SynchronousTrainer
from trainer.batch_norm import with_estimated_statistics
from trainer.context import Context
from trainer.engine import mx
from trainer.run_logs.measure import GLOBAL_UPDATE


class ModelAveragingTrainer(SynchronousTrainer):
    """Local SGD steps, and one aggregation a round. Subclasses say when a round's steps are done."""

    def __init__(
        self,
        context: Context,
        learning_rate: float,
        global_learning_rate: float,
        outer: OuterMomentum | None = None,
        normalise: bool = False,
    ) -> None:
        """
        Args:
            learning_rate: of the local steps.
            global_learning_rate: eps.
            outer: momentum of the global weights; by default there is none.
            normalise: FedNova.
        """
        super().__init__(context)
        self._learning_rate = learning_rate
        self._global_learning_rate = global_learning_rate
        self._outer = outer or OuterMomentum()
        self._reach = StepReach(context.run.rule.momentum) if normalise else None
        self.numbers = self._share_of_reach()

    def _share_of_reach(self) -> list[float]:
        """This worker's part of tau_eff."""
        return [] if self._reach is None else [self.membership.sample_share * self._reach.total]

    def begin_round(self) -> None:
        if self._reach is not None:
            self._reach.begin_round()
            self.stepper.begin_anew()

    def broadcast(self) -> None:
        super().broadcast()
        self.come_late()

    def come_late(self) -> None:
        self._global_weights = [weight.copy() for weight in self.parameters.weights]
        self._global_statistics = self.parameters.statistics()

    def shared_state(self) -> list[mx.nd.NDArray]:
        return [*self._global_weights, *self._global_statistics, *self._outer.arrays(self._global_weights)]

    def adopt(self, state: Sequence[mx.nd.NDArray]) -> None:
        self.parameters.replace(self._global_weights + self._global_statistics)

    def own_state(self) -> dict[str, Any]:
        return {"outer": self._outer.state()}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        self._outer.restore(state["outer"], self.parameters.weights)

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        factor = self.schedule_factor
        is_complete = self.whole_step(images, labels, self._learning_rate)
        if self._reach is not None and is_complete and not self.step_is_bad:
            self._reach.add_step(factor)
        return is_complete

    def global_model(self) -> AbstractContextManager[None]:
        return with_estimated_statistics(self, self.context.config.estimate_statistics)

    def synchronize(self, wants_stop: bool) -> bool:
        """Sums the weighted model updates of all workers and adds them to the global model."""
        self.measure.enter(GLOBAL_UPDATE)
        before = self._global_weights + self._global_statistics
        # Weighted before they are summed; a difference is always in the default layout.
        share = self.membership.sample_share
        of_weights = share / ((self._reach.total if self._reach else 0.0) or 1.0)
        shares = [of_weights] * len(self._global_weights) + [share] * len(self._global_statistics)
        updates = [
            (here - there) * factor for here, there, factor in zip(self.parameters.model(), before, shares, strict=True)
        ]
        all_were_skipped = bool(self.checks.steps.in_round and not self.good_steps)
        is_missing = all_were_skipped or not self.update_is_good(updates, largest=self.sums.largest)
        self.numbers = [0.0 for _ in self.numbers] if is_missing else self._share_of_reach()
        stop = self.sum_over_workers(updates, GLOBAL_UPDATE, wants_stop, is_missing)
        if self.present:
            self._apply(updates)
        else:  # no worker's update was good
            self.parameters.replace(before)
        mx.nd.waitall()
        return stop

    def _apply(self, updates: Sequence[mx.nd.NDArray]) -> None:
        """Adds the summed updates of weights and statistics to the global model, which the local one now is.

        Where those of some workers are missing, the means are the others'.
        """
        num_weights = len(self._global_weights)
        if self.present != 1:
            updates = [update / self.present for update in updates]
        means = updates[:num_weights]
        if self._reach is not None:
            effective_reach = self.numbers[0] / self.present
            means = [effective_reach * mean for mean in means]
        for weight, everywhere, direction in zip(
            self.parameters.weights, self._global_weights, self._outer.directions(means), strict=True
        ):
            everywhere += self._global_learning_rate * direction
            everywhere.copyto(weight)
        # Statistics are averaged: rate, momentum and normalisation are those of steps, and these take no steps.
        for everywhere, update in zip(self._global_statistics, updates[num_weights:], strict=True):
            everywhere += update
        self.parameters.set_statistics(self._global_statistics)
