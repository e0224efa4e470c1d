"""DC-ASGD (Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017,
arXiv:1609.08326, algorithm 2): w <- w - eta * (g + lambda * g*g*(w - w_bak(m))), then w_bak(m) <- w. Momentum and
weight decay act on the compensated gradient, as in MXNet's own DCASGD.

DC-ASGD-c has a constant lambda. DC-ASGD-a, the adaptive one, has for each weight lambda = lambda_0 / sqrt(s + 1e-7),
s <- 0.95 * s + 0.05 * g*g, 0 at first. The server updates s with each gradient before it uses it. Algorithm 2 has one
server and one t, so all workers share s. The gradient here is that of the SUMMED loss, B times that of the mean loss.
So a constant lambda is the paper's divided by B, as the step size is; lambda_0 is the paper's own (2 on CIFAR-10),
since s grows with B * B.

This module runs in the parameter server's process. MXNet's own DCASGD keeps one backup for all workers, which is
another algorithm; here each worker m has its own.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.algorithms.per_worker_sgd import PerWorkerSGD

FADING = 0.95  # of s, as in the paper's experiments on CIFAR-10
SMALLEST_SQUARE = 1e-7  # keeps s from zero


class PerWorkerDCASGD(PerWorkerSGD):
    """The server-side update: w_bak(m) is what worker m pulled last. DC-ASGD-a needs one more copy of the model."""

    def __init__(self, *given: Any, compensation: float, adaptive: bool = False) -> None:
        """`compensation` is lambda, or with `adaptive` lambda_0 of DC-ASGD-a; the rest as ServerSGD."""
        super().__init__(*given)
        self._compensation = compensation
        self._adaptive = adaptive
        self._mean_squares: dict[int, np.ndarray] = {}  # s

    def use(self, index: int, weights: np.ndarray, pulled: np.ndarray, grad: np.ndarray) -> bool:
        position = index % self._keys_per_model
        step = weights - pulled
        step *= grad
        step *= grad
        step *= self._compensation
        if self._adaptive:
            step /= np.sqrt(self._mean_square(position, grad) + SMALLEST_SQUARE)
        step += grad
        if self.is_good(index, step):
            self.step(position, weights, step)
        return True

    def state(self) -> dict[str, Any]:
        return super().state() | {"squares": [*self._mean_squares.items()]}

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        super().begin_with(saved)
        self._mean_squares = dict(saved["squares"])

    def _mean_square(self, position: int, grad: np.ndarray) -> np.ndarray:
        """Updates and returns s of an array."""
        square = (1 - FADING) * grad * grad
        if position in self._mean_squares:
            square += FADING * self._mean_squares[position]
        self._mean_squares[position] = square
        return square
