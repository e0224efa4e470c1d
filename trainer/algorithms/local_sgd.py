"""Local SGD with a fixed number of steps, also known as federated averaging (McMahan et al., "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017, arXiv:1602.05629): every worker takes H steps, then
w <- w + sum_k (n_k / n) * (w_k - w) (averaging.py). The baseline that ignores the workers' speeds. With Nesterov's
momentum as the outer optimiser it is DiLoCo (arXiv:2311.08105) except for the local steps, which are AdamW's there."""

from algorithm_row import Algorithm, FixedAveraging, end_of_head

ROW = Algorithm(
    name="local-sgd",
    title="Local SGD",
    paper="McMahan et al., AISTATS 2017, arXiv:1602.05629",
    settings=FixedAveraging,
    trainer="LocalSGDTrainer",
    stem="LocalSGD",
)
end_of_head(globals())

from trainer.algorithms.averaging import ModelAveragingTrainer
from trainer.context import Context


class LocalSGDTrainer(ModelAveragingTrainer):
    """Model averaging after the same number of local steps on each worker."""

    def __init__(self, context: Context, settings: FixedAveraging) -> None:
        super().__init__(context, settings)
        self.local_steps = settings.sync_every  # H
