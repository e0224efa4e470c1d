"""Quorum merge, after Decoupled DiLoCo (Douillard et al., "Decoupled DiLoCo", 2026, arXiv:2604.21428): no worker waits
for another, and the updates of K workers are enough for a new global model.

Worker k takes H local steps and uploads delta_k = x_k - base_k. The server adds up what it has of each worker since the
last merge: D_k, of S_k samples in T_k steps. When at least K workers are in, and waiting for further ones would cost
something (--grace), it merges:

    Delta = sum_k weight_k * D_k / sum_k weight_k over those that are in, weight_k = S_k * (S_k / T_k)
    v <- beta * v + Delta;  w <- w + eps * (Delta + beta * v)

What comes later counts in the next merge, with its own weight. A worker takes w with its next upload, else it goes on
from its own x_k; its base is the model with which it goes on.

Whole models travel, the paper's are in fragments; and the mean is the plain weighed one. An update is weighed by N *
n_k / n, as in the other modes. BatchNorm's statistics are the weighed mean of the workers' own, without momentum.
"""

import numpy as np

from trainer.algorithms.buckets import Buckets
from trainer.algorithms.decoupled_optimizer import DecoupledOptimizer, Merging
from trainer.algorithms.wbsp import WBSPTrainer
from trainer.algorithms.whole_models import Keys
from trainer.context import Context


class DecoupledTrainer(WBSPTrainer):
    """A worker of WBSP with rounds of H steps: it waits for its own upload and for the answer to that."""

    packs_apart = True

    def __init__(self, context: Context, learning_rate: float, sync_every: int, settings: Merging) -> None:
        super().__init__(context, learning_rate, overlap=False)
        self._sync_every = sync_every  # H
        self._settings = settings
        self._num_weights = len(Buckets(self.parameters.weights))  # groups

    def optimizer(self, keys: Keys) -> DecoupledOptimizer:
        return DecoupledOptimizer(keys, self._num_weights, self._settings)

    def ready(self) -> bool:
        self.measure.next_step()  # each local step and the upload have log entries of their own, as local SGD's have
        return self.steps >= self._sync_every

    def update_of(self, model: list[np.ndarray], base: list[np.ndarray]) -> list[np.ndarray]:
        """Differences of weights, and the statistics as they are: a difference from old ones could make a variance
        negative."""
        statistics = [array.copy() for array in model[self._num_weights :]]  # a release is pulled into what is sent
        return [*super().update_of(model, base)[: self._num_weights], *statistics]


def build(context: Context) -> DecoupledTrainer:
    """From the flags."""
    config = context.config
    grace_s = config.grace if isinstance(config.grace, float) else None
    settings = Merging(config.quorum, grace_s, config.global_lr, config.outer_momentum)
    return DecoupledTrainer(context, config.local_lr, config.sync_every, settings)
