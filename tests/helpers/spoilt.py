"""Workers of a cluster in memory some of whose gradients are spoilt on purpose, and what SSGD makes of the others."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from memory_cluster import batch, gradient

from trainer.context import Context
from trainer.draws import Draws
from trainer.jobs.gluon import GluonPasses, cross_entropy
from trainer.trainer import Trainer

ETA = 0.5
ZERO = np.zeros((2, 4))
WARM_UP = 3  # passes before the first step
MOST = 3


class Spoilt(GluonPasses):
    """Some of the backward passes leave what is not finite in the gradient of the last layer, as an overflow does."""

    def __init__(self, network: Any, steps: Collection[int], what: float) -> None:
        """
        Args:
            steps: which, counted from 1 without the warm-up.
        """
        super().__init__(network, cross_entropy(), Draws(network.seed), lambda: 0)
        self._steps = steps
        self._what = what
        self._done = -WARM_UP

    def backward(self) -> None:
        super().backward()
        self._done += 1
        if self._done in self._steps:
            self._network.gradients[-1][0, 1] = self._what


def spoil(
    build: Callable[[Context], Trainer], steps: Collection[int], rank: int = 1, what: float = float("nan")
) -> Callable[[Context], Trainer]:
    """Builds trainers that look at their numbers; one worker's gradients are spoilt in these of its steps."""

    def spoilt(context: Context) -> Trainer:
        context.run.max_bad_steps = MOST
        if context.peers.membership().rank == rank:
            context.task.passes = lambda trainer: Spoilt(context.task.network, steps, what)
        return build(context)

    return spoilt


def weighed(weight: np.ndarray, samples: dict[int, int], num_workers: int, total: int) -> list[np.ndarray]:
    """The gradients of some workers, by rank with their samples, as SSGD weighs them."""
    return [num_workers * count / total * gradient(weight, batch(rank)) for rank, count in samples.items()]


def mean_of_local_steps(ranks: Sequence[int], steps: int) -> np.ndarray:
    """The mean of the weights of some workers after so many steps of their own, from zero on their first batches."""
    owns = []
    for rank in ranks:
        own = ZERO
        for _ in range(steps):
            own = own - ETA * gradient(own, batch(rank))
        owns.append(own)
    return sum(owns, ZERO) / len(owns)
