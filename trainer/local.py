"""Standalone SGD on one device, the yardstick of the others: w <- w - eta * g, g of the summed loss."""

from __future__ import annotations

from trainer.base import Job, Trainer
from trainer.engine import mx
from trainer.site import Site


class LocalTrainer(Trainer):
    """No other process; a round is one step."""

    def __init__(self, job: Job, step_size: float) -> None:
        super().__init__(job)
        self._step_size = step_size

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """A whole SGD step."""
        return self.whole_sgd_step(images, labels, self._step_size)

    def synchronize(self, wants_stop: bool) -> bool:
        """There is nobody to agree with."""
        return wants_stop


def build(site: Site) -> LocalTrainer:
    """From the flags."""
    return LocalTrainer(site.job, site.config.learning_rate)
