"""Ringmaster ASGD (Maranjyan, Tyurin and Richtárik, "Ringmaster ASGD: The first asynchronous SGD with optimal time
complexity", ICML 2025, arXiv:2501.16168): w <- w - eta * g as in ASGD, if the gradient's delay is below R; else it is
dropped. In both cases the worker takes the newest weights and goes on.

The delay of a gradient is the number of gradients that were applied between the last answer to its worker and its
arrival: 0 for a lone worker. A schedule follows the samples of the gradients that were applied. A worker whose step
takes as long as R gradients of the others never counts.
"""

from trainer.algorithms.asynchronous import AsyncServer, Settings
from trainer.hub.server_part import Answer, Arrays, Served


class RingmasterServer(AsyncServer):
    """The number of steps is the version of the weights."""

    def __init__(self, job: Served, settings: Settings) -> None:
        super().__init__(job, settings)
        self._max_delay = settings.max_delay  # R
        self._versions: dict[int, int] = {}  # by rank, of what the worker got last

    def use(self, rank: int, gradient: Arrays) -> bool:
        if self.num_steps - self._versions[rank] < self._max_delay:
            self.step(gradient)
        return True

    def answer(self, rank: int, memory: Arrays) -> Answer:
        self._versions[rank] = self.num_steps
        return super().answer(rank, memory)
