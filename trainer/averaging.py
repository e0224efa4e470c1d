"""Model averaging: workers train their own copies for a while, then the mean of the model updates is applied,
w <- w + eps * sum_k (n_k / n) * (w_k - w), n_k the samples that worker k holds. When is up to the algorithm."""

from __future__ import annotations

from trainer.context import Context
from trainer.engine import mx
from trainer.sync import SynchronousTrainer
from utils import GLOBAL_UPDATE


class ModelAveragingTrainer(SynchronousTrainer):
    """Local SGD steps, and one aggregation a round. Subclasses say when a round's steps are done."""

    def __init__(self, context: Context, learning_rate: float, global_learning_rate: float) -> None:
        """
        Args:
            learning_rate: of the local steps.
            global_learning_rate: eps.
        """
        super().__init__(context)
        self._learning_rate = learning_rate
        self._global_learning_rate = global_learning_rate

    def broadcast(self) -> None:
        """Also keeps the global model, which the local one departs from."""
        super().broadcast()
        self._global_weights = [weight.copy() for weight in self.parameters.weights]
        self._global_statistics = self.parameters.statistics()

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """A whole SGD step on the local weights, or nothing of it."""
        return self.whole_step(images, labels, self._learning_rate)

    def synchronize(self, wants_stop: bool) -> bool:
        """Sums the weighted model updates of all workers and adds them to the global model."""
        self.measure.enter(GLOBAL_UPDATE)
        # Weighted before they are summed; a difference is always in the default layout.
        local = self.parameters.model()
        updates = [
            (here - everywhere) * self.membership.sample_share
            for here, everywhere in zip(local, self._global_weights + self._global_statistics, strict=True)
        ]
        stop = self.sum_over_workers(updates, GLOBAL_UPDATE, wants_stop)
        num_weights = len(self._global_weights)
        for weight, everywhere, update in zip(
            self.parameters.weights, self._global_weights, updates[:num_weights], strict=True
        ):
            everywhere += self._global_learning_rate * update
            everywhere.copyto(weight)
        # Statistics are averaged: the global learning rate scales steps, and these take no steps.
        for everywhere, update in zip(self._global_statistics, updates[num_weights:], strict=True):
            everywhere += update
        self.parameters.set_statistics(self._global_statistics)
        mx.nd.waitall()
        return stop
