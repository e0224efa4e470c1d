"""The base of the optimizers that MXNet runs in the parameter server's process."""

from __future__ import annotations

import numpy as np

from trainer.engine import memory_of, mx
from utils import die_on_error


class ServerOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Gets each array that arrives, as numpy has it."""

    def pushed(self, key: int, value: np.ndarray, array: np.ndarray) -> None:
        """Called when an array (n,) has arrived under a key. `value` (n,) is what the server stores there, always the
        same memory. `array` lies in a network buffer that is freed when this returns."""
        raise NotImplementedError

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: None) -> None:
        """Called by MXNet."""
        with die_on_error(f"the update of key {index} failed"):
            self.pushed(index, memory_of(weight), memory_of(grad))
