"""Model averaging: workers train their own copies for a while, then the mean of the model updates is applied,
w <- w + eps * sum_k (n_k / n) * (w_k - w), n_k the samples that worker k holds. When is up to the algorithm.

With momentum the mean is the gradient of an outer optimiser whose learning rate is eps (outer_momentum.py).

FedNova (Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS
2020, arXiv:2007.07481) normalises, so that who takes more steps does not draw the mean to its own samples:
w <- w + eps * tau_eff * sum_k (n_k / n) * (w_k - w) / tau_k, tau_eff = sum_k (n_k / n) * tau_k, tau_k the local
steps of worker k in the round. A worker without a complete step adds nothing to either sum. Equal tau_k give the plain
mean. (tau_k is the paper's norm of a_k where the local steps are those of plain SGD.)"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainer.context import Context
from trainer.engine import mx
from trainer.outer_momentum import OuterMomentum
from trainer.sync import SynchronousTrainer
from utils import GLOBAL_UPDATE


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
            normalise: by the workers' numbers of local steps (FedNova).
        """
        super().__init__(context)
        self._learning_rate = learning_rate
        self._global_learning_rate = global_learning_rate
        self._outer = outer or OuterMomentum()
        self._normalise = normalise
        self.numbers = self._share_of_steps()

    def _share_of_steps(self) -> list[float]:
        """This worker's part of tau_eff, where that is needed."""
        return [self.membership.sample_share * self.good_steps] if self._normalise else []

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
        hardly differ; after a hundred the model may be no better than chance (results/README.md).
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
        of_weights = share / max(self.good_steps, 1) if self._normalise else share
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
        self.numbers = [0.0 for _ in self.numbers] if is_missing else self._share_of_steps()
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
            effective_steps = self.numbers[0] / self.present
            means = [effective_steps * mean for mean in means]
        for weight, everywhere, direction in zip(
            self.parameters.weights, self._global_weights, self._outer.directions(means), strict=True
        ):
            everywhere += self._global_learning_rate * direction
            everywhere.copyto(weight)
        # Statistics are averaged: rate, momentum and normalisation are those of steps, and these take no steps.
        for everywhere, update in zip(self._global_statistics, updates[num_weights:], strict=True):
            everywhere += update
        self.parameters.set_statistics(self._global_statistics)
