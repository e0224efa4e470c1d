"""The base of optimizers on the parameter server that must know which worker pushes (dcasgd.py, ringmaster.py,
ringleader.py). This module runs in the server's process."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.algorithms.server_sgd import ServerSGD


class PerWorkerSGD(ServerSGD):
    """Worker m pushes the gradient of array i to key `m * keys_per_model + i` and pulls from there. The value under the
    key is what m pulled last. This object holds the global weights, one array for each i. So the server needs (number
    of workers + 1) copies of the model.
    """

    per_worker = True

    def __init__(self, *given: Any) -> None:
        """As ServerSGD."""
        super().__init__(*given)
        self._global_weights: dict[int, np.ndarray] = {}

    def use(self, index: int, weights: np.ndarray, pulled: np.ndarray, grad: np.ndarray) -> bool:
        """Changes the global weights by the algorithm's rule. The gradient is of `pulled`, which must stay. Returns
        whether the worker gets the new weights; else it keeps `pulled`."""
        raise NotImplementedError

    def apply(self, index: int, weight: np.ndarray, grad: np.ndarray) -> None:
        position = index % self._keys_per_model
        # All workers begin with the initial weights, so any stored value will do.
        if position not in self._global_weights:
            self._global_weights[position] = weight.copy()
        weights = self._global_weights[position]
        if self.use(index, weights, weight, grad):
            weight[:] = weights

    def state(self) -> dict[str, Any]:
        return super().state() | {"global": [*self._global_weights.items()]}

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        super().begin_with(saved)
        self._global_weights = dict(saved["global"])
