"""Local SGD with a fixed number of steps, also known as federated averaging (McMahan et al., "Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017, arXiv:1602.05629): every worker takes H steps, then
w <- w + sum_k (n_k / n) * (w_k - w) (averaging.py). The baseline that takes no account of the workers' speeds."""

from __future__ import annotations

from typing import Any

from trainer.averaging import ModelAveragingTrainer
from trainer.site import Site


class LocalSGDTrainer(ModelAveragingTrainer):
    """Model averaging after the same number of local steps everywhere."""

    def __init__(self, *averaging: Any, sync_every: int) -> None:
        """
        Args:
            averaging: as in ModelAveragingTrainer.
            sync_every: H, local steps a round.
        """
        super().__init__(*averaging)
        self._sync_every = sync_every

    def ready(self) -> bool:
        """After H steps. Each local step, and the aggregation, has an entry of its own in the logs, as ESync's have."""
        self.measure.next_step()
        return self.steps >= self._sync_every


def build(site: Site) -> LocalSGDTrainer:
    """From the flags."""
    return LocalSGDTrainer(*site.averaging, sync_every=site.config.sync_every)
