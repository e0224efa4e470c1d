"""Model averaging: workers train their own copies, then apply the mean of the model updates,
w <- w + eps * sum_k (n_k / n) * (w_k - w), where worker k has n_k of the n samples. The sum is over the workers whose
update is good, and is divided by the sum of their weights n_k / n.

The negated mean is the gradient of an outer optimiser with learning rate eps and momentum (outer_momentum.py). FedNova
divides each update by its number of local steps (fednova.py).
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from algorithm_row import Averaging
from esync.measure import GLOBAL_UPDATE
from trainer.algorithms.fednova import Normalisation
from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.algorithms.summing import SynchronousTrainer
from trainer.context import Context
from trainer.network import Batch
from trainer.steps import pieces


class ModelAveragingTrainer(SynchronousTrainer):
    """Local SGD steps, then one aggregation. A subclass's `ready` says when a round's local steps end."""

    def __init__(self, context: Context, settings: Averaging, normalise: bool = False) -> None:
        """`normalise`: FedNova."""
        super().__init__(context, settings)
        self._settings = settings
        self.global_learning_rate = settings.global_lr  # eps
        self.global_weights: list[np.ndarray] = []  # w, between two rounds the same on all workers
        self.global_statistics: list[np.ndarray] = []  # BatchNorm's
        self._outer = OuterMomentum(settings.outer_momentum, bool(settings.outer_nesterov))
        self._norm = Normalisation(normalise, context.run.rule.momentum)
        self.numbers = self._norm.numbers(0.0)  # before the first sum their names alone matter
        self._updates: list[np.ndarray] = []  # of the round; kept, since new memory takes time

    def begin_round(self) -> None:
        super().begin_round()
        self._norm.begin_round(self.stepper)

    def set_global_model(self) -> None:
        self.global_weights = [weight.copy() for weight in self.parameters.weights]
        self.global_statistics = self.parameters.statistics()

    def shared_state(self) -> list[np.ndarray]:
        return [*self.global_weights, *self.global_statistics, *self._outer.arrays(self.global_weights)]

    def adopt(self, state: Sequence[np.ndarray]) -> None:  # `state` is the arrays of `shared_state`, filled
        self.parameters.replace(self.global_weights + self.global_statistics)

    def own_state(self) -> dict[str, Any]:
        return {"outer": self._outer.velocities}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        self._outer.velocities = state["outer"]

    def local_step(self, batch: Batch) -> bool:
        is_complete = self.whole_step(batch)
        if is_complete and not self.step_is_bad:
            self._norm.add_step(self.schedule_factor)
        return is_complete

    @contextlib.contextmanager
    def global_model(self) -> Iterator[None]:
        """With --estimate-statistics, BatchNorm's running statistics are the averaged model's own meanwhile.

        A mean of running variances is not the variance under the mean of the weights. With a few steps a round the two
        hardly differ; with a hundred the model may be no better than chance (results/reproduction/README.md). Training
        continues with the averaged ones.
        """
        batches = self._settings.estimate_statistics
        averaged = self.parameters.statistics() if batches else []
        for batch in self.context.task.batches.look(batches if averaged else 0):
            self.passes.forward(batch)
            self.passes.backward()  # moves the statistics, and no weights
            self.wait_for_gradients()
        try:
            yield
        finally:
            self.parameters.set_statistics(averaged)

    def synchronize(self, wants_stop: bool) -> bool:
        self.measure.enter(GLOBAL_UPDATE)
        global_model = self.global_weights + self.global_statistics
        num_weights, share = len(self.global_weights), self.membership.share  # this worker's weight in the mean
        self._compute_updates(global_model, share)
        # A round of ESync may have no complete step, which is not a skipped one.
        all_skipped = self.steps and self.steps == self.checks.steps.in_round
        if all_skipped or not self.update_is_good(self._updates, largest=self.sums.largest):
            share = 0.0
        self.numbers = self._norm.numbers(share)
        stop = self.sum_over_workers(self._updates, GLOBAL_UPDATE, wants_stop, share)
        if self.weight_of_all:  # else no worker's update was good
            divisor = self._norm.divisor_of_all(self.weight_of_all, self.numbers)
            updates, statistics = self._updates[:num_weights], self._updates[num_weights:]
            self._outer.step(self.global_weights, updates, self.global_learning_rate, divisor)
            # BatchNorm's statistics are just averaged: no eps, momentum or normalisation.
            for of_all, update in zip(self.global_statistics, statistics, strict=True):
                of_all += update / self.weight_of_all
        self.parameters.replace(global_model)  # which undoes the local steps of a round without a good update
        return stop

    def _compute_updates(self, global_model: Sequence[np.ndarray], share: float) -> None:
        """(n_k / n) * (w_k - w), of weights over FedNova's |a_k|."""
        num_weights = len(self.global_weights)
        factors = [share / self._norm.divisor] * num_weights + [share] * (len(global_model) - num_weights)
        if not self._updates:
            self._updates = [np.empty_like(array) for array in global_model]
        arrays = zip(self._updates, self.parameters.model(), global_model, factors, strict=True)
        for update, after, before, factor in arrays:
            for out, own, w in pieces(update, after, before):
                np.subtract(own, w, out=out)
                out *= factor
