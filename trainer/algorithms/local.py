"""Standalone SGD on one device, the baseline: w <- w - eta * g, g the gradient of the summed loss."""

from algorithm_row import Algorithm, OwnGradientSteps, end_of_head

ROW = Algorithm(
    name="local",
    title="Standalone",
    settings=OwnGradientSteps,
    trainer="LocalTrainer",
    is_distributed=False,
    stem="Local",
)
end_of_head(globals())

from trainer.network import Batch
from trainer.trainer import Trainer


class LocalTrainer(Trainer):
    """A round is one step; there are no other processes."""

    def local_step(self, batch: Batch) -> bool:
        return self.whole_step(batch)

    def synchronize(self, wants_stop: bool) -> bool:
        return wants_stop
