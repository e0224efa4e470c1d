"""Model averaging: workers train their own copies for a while, then the mean of the model updates is applied,
w <- w + eps * sum_k (n_k / n) * (w_k - w), n_k the samples that worker k holds. When is up to the algorithm.

With momentum the mean is the gradient of an outer optimiser whose learning rate is eps (outer_momentum.py).

FedNova (Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS
2020, arXiv:2007.07481) normalises, so that who takes more steps does not draw the mean to its own samples:
w <- w + eps * tau_eff * sum_k (n_k / n) * (w_k - w) / |a_k|, tau_eff = sum_k (n_k / n) * |a_k|. The vector a_k says how
much of each gradient of the round is in w_k - w, in units of the step size; |a_k| is the sum of its entries: of plain
SGD the number of local steps tau_k, of momentum mu (tau_k - mu * (1 - mu^tau_k) / (1 - mu)) / (1 - mu), and a step to
which a schedule gives the factor f counts f times. So a_k knows gradients of its own round alone: with FedNova the
velocity begins anew in each round, as in the paper. Weight decay is a part of the loss. A worker without a complete
step adds nothing to either sum. Equal |a_k| give the plain mean."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.algorithms.sync import SynchronousTrainer
from trainer.context import Context
from trainer.engine import mx
from trainer.run_logs.round_log import GLOBAL_UPDATE


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
            normalise: by how far each worker's local steps go (FedNova).
        """
        super().__init__(context)
        self._learning_rate = learning_rate
        self._global_learning_rate = global_learning_rate
        self._outer = outer or OuterMomentum()
        self._normalise = normalise
        self._reach = 0.0  # |a_k| of the round so far
        self._velocity = 0.0  # that gradients of 1 in all its steps would have made
        self.numbers = self._share_of_reach()

    def _share_of_reach(self) -> list[float]:
        """This worker's part of tau_eff, where that is needed."""
        return [self.membership.sample_share * self._reach] if self._normalise else []

    def begin_round(self) -> None:
        """As Trainer says."""
        self._reach = self._velocity = 0.0
        if self._normalise:
            self.stepper.begin_anew()

    def take_step(self, learning_rate: float, num_batches: float = 1) -> None:
        """As Trainer says; counts how far it goes."""
        rule = self.context.rule
        self._velocity = rule.momentum * self._velocity + 1.0
        self._reach += rule.schedule.factor(self.seen.total) * self._velocity
        super().take_step(learning_rate, num_batches)

    def broadcast(self) -> None:
        """Also keeps the global model, which the local one departs from."""
        super().broadcast()
        self._keep_global()

    def _keep_global(self) -> None:
        self._global_weights = [weight.copy() for weight in self.parameters.weights]
        self._global_statistics = self.parameters.statistics()

    def come_late(self) -> None:
        """As Trainer says; the global model is still to come."""
        super().come_late()
        self._keep_global()

    def shared_state(self) -> list[mx.nd.NDArray]:
        """The global model and its velocities; a worker's local ones are its own."""
        return [*self._global_weights, *self._global_statistics, *self._outer.arrays(self._global_weights)]

    def adopt(self, state: Sequence[mx.nd.NDArray]) -> None:
        """As SynchronousTrainer says."""
        self.parameters.replace(self._global_weights + self._global_statistics)

    def own_state(self) -> dict[str, Any]:
        """The outer optimiser's velocity."""
        return {"outer": self._outer.state()}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        """As Trainer says."""
        self._outer.restore(state["outer"], self.parameters.weights)

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """A whole SGD step on the local weights, or nothing of it."""
        return self.whole_step(images, labels, self._learning_rate)

    @contextlib.contextmanager
    def global_model(self) -> Iterator[None]:
        """With statistics of its own, where the flags ask for them; training goes on with those that were averaged.

        A mean of running variances is not the variance under the mean of the weights. After a few steps a round the two
        hardly differ; after a hundred the model may be no better than chance (results/reproduction/README.md).
        """
        batches = self.context.config.estimate_statistics
        averaged = self.parameters.statistics() if batches else []
        for batch in self.context.batches.look(batches if averaged else 0):
            self._passes.forward(*self.context.feed(batch))
            self._passes.backward(1.0)  # moves the statistics, and no weights
            self.wait_for_gradients()
        try:
            yield
        finally:
            self.parameters.set_statistics(averaged)

    def synchronize(self, wants_stop: bool) -> bool:
        """Sums the weighted model updates of all workers and adds them to the global model."""
        self.measure.enter(GLOBAL_UPDATE)
        # Weighted before they are summed; a difference is always in the default layout.
        share = self.membership.sample_share
        of_weights = share / (self._reach or 1.0) if self._normalise else share
        num_weights, num_statistics = len(self._global_weights), len(self._global_statistics)
        updates = [
            (here - everywhere) * factor
            for here, everywhere, factor in zip(
                self.parameters.model(),
                self._global_weights + self._global_statistics,
                [of_weights] * num_weights + [share] * num_statistics,
                strict=True,
            )
        ]
        is_missing = self._is_missing(updates)
        self.numbers = [0.0 for _ in self.numbers] if is_missing else self._share_of_reach()
        stop = self.sum_over_workers(updates, GLOBAL_UPDATE, wants_stop, is_missing)
        if self.present:
            self._apply(updates)
        else:  # nobody's was any good
            self.parameters.replace(self._global_weights + self._global_statistics)
        mx.nd.waitall()
        return stop

    def _is_missing(self, updates: Sequence[mx.nd.NDArray]) -> bool:
        """Whether this worker has nothing to give: all of its steps were skipped, or its update is not finite."""
        return bool(self.checks.steps.in_round and not self.good_steps) or not self.update_is_good(
            updates, largest=self._shared.largest
        )

    def _apply(self, updates: Sequence[mx.nd.NDArray]) -> None:
        """Adds the summed updates to the global model, and goes on from there.

        Args:
            updates: of weights and statistics; where those of some workers are missing, the means are the others'.
        """
        num_weights = len(self._global_weights)
        if self.present != 1:
            updates = [update / self.present for update in updates]
        means = updates[:num_weights]
        if self._normalise:
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
