"""Ringmaster ASGD (Maranjyan, Tyurin and Richtárik, "Ringmaster ASGD: The first asynchronous SGD with optimal time
complexity", ICML 2025, arXiv:2501.16168): w <- w - eta * g as in ASGD, if the gradient's delay is below R; else it is
dropped. In both cases the worker takes the newest weights and goes on.

The delay of a gradient is the number of gradients that were applied between the last pull of its worker and its
arrival: 0 for a lone worker. The server handles each array by itself and counts so for each. A schedule follows the
samples of the gradients that were applied. A worker whose step takes as long as R gradients of the others never counts.

This module runs in the parameter server's process.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.algorithms.per_worker_sgd import PerWorkerSGD


class RingmasterSGD(PerWorkerSGD):
    """The server-side update. The number of steps of an array is the version of its weights."""

    def __init__(self, *given: Any, max_delay: int) -> None:
        """`max_delay` is R, at least 1; the rest as ServerSGD."""
        super().__init__(*given)
        self._max_delay = max_delay
        self._versions: dict[int, int] = {}  # by key, what its worker pulled last
        self._first: dict[int, int] = {}  # by position, the version that all begin with; without an entry 0

    def use(self, index: int, weights: np.ndarray, pulled: np.ndarray, grad: np.ndarray) -> bool:
        position = index % self._keys_per_model
        before = self._versions.get(index, self._first.get(position, 0))
        if self._num_steps[position] - before < self._max_delay:
            self.step(position, weights, grad)
        self._versions[index] = self._num_steps[position]
        return True

    def state(self) -> dict[str, Any]:
        # A worker that has pushed nothing since the last resume begins with the newest weights.
        return super().state() | {"versions": [[key, self._versions[key]] for key in self._values]}

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        super().begin_with(saved)
        self._first, self._versions = dict(self._num_steps), dict(saved["versions"])
