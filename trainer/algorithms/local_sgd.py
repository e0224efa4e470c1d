"""Local SGD with a fixed number of steps, also known as federated averaging (McMahan et al., "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017, arXiv:1602.05629): every worker takes H steps, then
w <- w + sum_k (n_k / n) * (w_k - w) (averaging.py). The baseline that ignores the workers' speeds. With Nesterov's
momentum as the outer optimiser it is DiLoCo (arXiv:2311.08105) except for the local steps, which are AdamW's there."""

from trainer.algorithms.averaging import ModelAveragingTrainer
from trainer.algorithms.outer_momentum import OuterMomentum
from trainer.context import Context


class LocalSGDTrainer(ModelAveragingTrainer):
    """Model averaging after the same number of local steps on each worker."""

    def __init__(
        self,
        context: Context,
        learning_rate: float,
        global_learning_rate: float,
        sync_every: int,
        outer: OuterMomentum | None = None,
    ) -> None:
        super().__init__(context, learning_rate, global_learning_rate, outer)
        self._sync_every = sync_every  # H

    def ready(self) -> bool:
        self.measure.next_step()  # each local step and the aggregation have log entries of their own, as ESync's have
        return self.steps >= self._sync_every


def build(context: Context) -> LocalSGDTrainer:
    """From the flags."""
    config = context.config
    outer = OuterMomentum.from_config(config)
    return LocalSGDTrainer(context, config.local_lr, config.global_lr, config.sync_every, outer)
