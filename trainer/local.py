"""Standalone SGD on one device, the yardstick of the others: w <- w - eta * g, g of the summed loss."""

from __future__ import annotations

from trainer.base import Job, Trainer
from trainer.engine import mx
from utils import LOCAL_UPDATE


class LocalTrainer(Trainer):
    """No other process; a round is one step."""

    def __init__(self, job: Job, step_size: float) -> None:
        super().__init__(job)
        self._step_size = step_size

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """A whole SGD step."""
        self.compute_gradients(images, labels)
        mx.nd.waitall()
        self.measure.enter(LOCAL_UPDATE)
        self.parameters.sgd_step(self._step_size)
        mx.nd.waitall()
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """There is nobody to agree with."""
        return wants_stop
