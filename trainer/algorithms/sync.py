"""SSGD, bulk-synchronous (Chen et al., "Revisiting distributed synchronous SGD", 2016, arXiv:1604.00981):
after every step w <- w - eta * sum_k (n_k / n) * g_k, where worker k has gradient g_k and n_k of the n samples."""

from trainer.algorithms.summing import SynchronousTrainer
from trainer.context import Context
from trainer.engine import mx
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE


class SyncTrainer(SynchronousTrainer):
    """SSGD. Every rank applies the same sum to equal weights, so they stay equal and are not sent."""

    def __init__(self, context: Context, learning_rate: float) -> None:
        super().__init__(context)
        self._learning_rate = learning_rate

    def local_step(self, batch: Batch) -> bool:
        self._batch = batch
        self.compute_gradients(batch, self.membership.weight)  # times N * n_k / n; `divisor` is N
        self.gradients_are_good(self.sums.largest)
        return True

    def computed(self) -> None:
        self.step_s = self.emulation.step_age_s

    def exchange_failed(self) -> None:
        # The failed sum may have overwritten gradients, and this worker's weight may have changed.
        self.compute_gradients(self._batch, self.membership.weight)

    def synchronize(self, wants_stop: bool) -> bool:
        statistics = [flat * self.statistics_weight() for flat in self.parameters.statistics()]
        gradients = self.parameters.gradients
        stop = self.sum_over_workers([*gradients, *statistics], GLOBAL_AGGREGATE, wants_stop, self.step_is_bad)
        if divisor := self.divisor():  # 0: the gradients of all workers were bad
            self.take_step(self._learning_rate, divisor)
            self.parameters.set_statistics([flat / divisor for flat in statistics])
        mx.nd.waitall()
        return stop

    def statistics_weight(self) -> float:
        """Factor on this worker's BatchNorm statistics before the sum, which is then divided by `divisor`."""
        return self.membership.weight

    def divisor(self) -> float:
        """The number by which a sum over the workers is divided for the mean; 0: no worker had a good gradient."""
        return self.membership.num_workers * self.present


def build(context: Context) -> SyncTrainer:
    """From the flags."""
    return SyncTrainer(context, context.config.learning_rate)
