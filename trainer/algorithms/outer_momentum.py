"""The outer optimiser of model averaging: momentum on the global weights, once a round.

With the model update of a round d = sum_k (n_k / n) * (w_k - w), the outer gradient of DiLoCo (Douillard et al.,
"DiLoCo: Distributed low-communication training of language models", 2023, arXiv:2311.08105) is -d. An SGD step with
momentum beta, at the global learning rate eps, is

    v <- beta * v + d;  w <- w + eps * v               heavy ball
    v <- beta * v + d;  w <- w + eps * (d + beta * v)  Nesterov's momentum, as DiLoCo: eps 0.7, beta 0.9

SlowMo (Wang et al., ICLR 2020, arXiv:1910.00643) is u <- beta * u - d / gamma, w <- w - alpha * gamma * u, gamma the
local step size. With a constant gamma that is the heavy ball: v = -gamma * u, eps = alpha. With beta = 0 and eps = 1
each is the plain mean.

All ranks see the same d, so v is equal on all and never travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from config import Config
    from trainer.engine import mx


class OuterMomentum:
    """The velocity of the global weights."""

    def __init__(self, momentum: float = 0.0, nesterov: bool = False) -> None:
        self._momentum = momentum  # beta, from 0 (no velocity) to below 1
        self._nesterov = nesterov
        self._velocities: list[mx.nd.NDArray] = []

    @classmethod
    def from_config(cls, config: Config) -> OuterMomentum:
        return cls(config.outer_momentum, bool(config.outer_nesterov))

    def state(self) -> list[Any]:
        """The velocities, as numpy arrays."""
        return [velocity.asnumpy() for velocity in self._velocities]

    def restore(self, state: Sequence[Any], like: Sequence[mx.nd.NDArray]) -> None:
        self._velocities = [array.zeros_like() for array in like][: len(state)]
        for velocity, kept in zip(self._velocities, state, strict=True):
            velocity[:] = kept

    def arrays(self, like: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        """The velocities themselves, of the device and shapes of `like`; empty without momentum."""
        if self._momentum and not self._velocities:
            self._velocities = [array.zeros_like() for array in like]
        return self._velocities

    def directions(self, updates: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        """The steps of the weights in units of eps, from `updates`, d of this round. Callers must not write to them."""
        beta = self._momentum
        if not beta:
            return list(updates)
        before = self._velocities
        if not before:
            self._velocities = [update.copy() for update in updates]
        else:
            self._velocities = [beta * v + update for v, update in zip(before, updates, strict=True)]
        if not self._nesterov:
            return self._velocities
        return [update + beta * v for v, update in zip(self._velocities, updates, strict=True)]
