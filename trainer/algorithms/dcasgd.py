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

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainer.algorithms.server_sgd import ServerSGD
from trainer.engine import mx
from trainer.steps import PLAIN, Rule

FADING = 0.95  # of s, as in the paper's experiments on CIFAR-10
SMALLEST_SQUARE = 1e-7  # keeps s from zero


class PerWorkerDCASGD(ServerSGD):
    """The server-side update, with the backups in the key-value store itself.

    Worker m pushes the gradient of array i to key `m * keys_per_worker + i` and pulls from there. The value under the
    key is w_bak(m), which m pulled last. This object holds the global weights, one array for each i. So the server
    needs (number of workers + 1) copies of the model, and one more for DC-ASGD-a.
    """

    def __init__(
        self,
        learning_rate: float,
        compensation: float,
        keys_per_worker: int,
        first_counter: int,
        decays: Sequence[bool],
        rule: Rule = PLAIN,
        adaptive: bool = False,
    ) -> None:
        super().__init__(learning_rate, first_counter, decays, rule)
        self._compensation = compensation  # lambda, or lambda_0
        self._adaptive = adaptive  # DC-ASGD-a
        self._keys_per_worker = keys_per_worker
        self._global_weights: dict[int, mx.nd.NDArray] = {}
        self._mean_squares: dict[int, mx.nd.NDArray] = {}  # s

    def apply(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray) -> None:
        # `weight` is the stored value of the key: the worker's backup.
        position = index % self._keys_per_worker
        # All backups begin as the initial weights, so any of them will do.
        if position not in self._global_weights:
            self._global_weights[position] = weight.copy()
        weights = self._global_weights[position]
        step = weights - weight
        step *= grad
        step *= grad
        step *= self._compensation
        if self._adaptive:
            step /= (self._mean_square(position, grad) + SMALLEST_SQUARE).sqrt()
        step += grad
        if self.is_good(index, step):
            self.step(position, weights, step)
        weights.copyto(weight)  # a wait for the backup is then a wait for the global weights too

    def state(self) -> dict[str, Any]:
        of_all = {"global": self._global_weights, "squares": self._mean_squares}
        return super().state() | {
            name: [[position, array.asnumpy()] for position, array in arrays.items()] for name, arrays in of_all.items()
        }

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        super().begin_with(saved)
        for name, arrays in (("global", self._global_weights), ("squares", self._mean_squares)):
            arrays.update({position: mx.nd.array(array) for position, array in saved[name]})

    def _mean_square(self, position: int, grad: mx.nd.NDArray) -> mx.nd.NDArray:
        """Updates and returns s of an array."""
        square = (1 - FADING) * grad * grad
        if position in self._mean_squares:
            square += FADING * self._mean_squares[position]
        self._mean_squares[position] = square
        return square
