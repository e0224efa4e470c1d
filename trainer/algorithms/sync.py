"""SSGD, bulk-synchronous (Chen et al., "Revisiting distributed synchronous SGD", 2016, arXiv:1604.00981):
after every step w <- w - eta * sum_k (n_k / n) * g_k, where worker k has gradient g_k and n_k of the n samples."""

from algorithm_row import Algorithm, OwnGradientSteps, end_of_head

ROW = Algorithm(
    name="sync",
    title="SSGD",
    paper="Chen et al., 2016, arXiv:1604.00981",
    settings=OwnGradientSteps,
    trainer="SyncTrainer",
    stem="Sync",
)
end_of_head(globals())

from esync.measure import GLOBAL_AGGREGATE
from trainer.algorithms.summing import SynchronousTrainer
from trainer.network import Batch


class SyncTrainer(SynchronousTrainer):
    """SSGD. Every rank applies the same sum to equal weights, so they stay equal and are not sent."""

    def local_step(self, batch: Batch) -> bool:
        self._batch = batch
        self.compute_gradients(batch, self.gradient_weight())
        self.gradients_are_good(self.sums.largest)
        return True

    def computed(self) -> None:
        self.step_s = self.emulation.step_age_s

    def exchange_failed(self) -> None:
        # The failed sum may have overwritten gradients, and this worker's weight may have changed.
        self.compute_gradients(self._batch, self.gradient_weight())

    def synchronize(self, wants_stop: bool) -> bool:
        weight = self.weight()
        statistics = [flat * weight for flat in self.parameters.statistics()]
        arrays = [*self.parameters.gradients, *statistics]
        stop = self.sum_over_workers(arrays, GLOBAL_AGGREGATE, wants_stop, 0.0 if self.step_is_bad else weight)
        if self.weight_of_all:  # else the gradients of all workers were bad
            self.take_step(num_batches=self.weight_of_all)
            self.parameters.set_statistics([flat / self.weight_of_all for flat in statistics])
        return stop

    def gradient_weight(self) -> float:
        """Factor on the gradients of the summed loss."""
        return self.membership.weight

    def weight(self) -> float:
        """This worker's weight in the mean. Its gradients are already multiplied by it."""
        return self.membership.weight
