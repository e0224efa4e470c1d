"""The outer optimisers: momentum on the global weights, once a round of model averaging (`OuterMomentum`), or for model
updates that come one by one (`DelayedNesterov`).

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

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer.hub.server_part import in_shapes
from trainer.steps import pieces


class OuterMomentum:
    """The velocity of the global weights."""

    def __init__(self, momentum: float = 0.0, nesterov: bool = False) -> None:
        self._momentum = momentum  # beta, from 0 (no velocity) to below 1
        self._nesterov = nesterov
        self.velocities: list[np.ndarray] = []

    def arrays(self, like: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The velocities themselves, of the shapes of `like`; empty without momentum."""
        if self._momentum and not self.velocities:
            self.velocities = [np.zeros_like(array) for array in like]
        return self.velocities

    def step(
        self, weights: Sequence[np.ndarray], updates: Sequence[np.ndarray], learning_rate: float, divisor: float = 1.0
    ) -> None:
        """A step of the weights, in place; d of this round is an update / `divisor`. `learning_rate` is eps."""
        beta, rate = self._momentum, learning_rate
        if not beta:
            for weight, update in zip(weights, updates, strict=True):
                for w, u in pieces(weight, update):
                    w += rate * (u / divisor if divisor != 1 else u)
            return
        for weight, update, velocity in zip(weights, updates, self.arrays(weights), strict=True):
            for w, u, v in pieces(weight, update, velocity):
                d = u / divisor if divisor != 1 else u
                v *= beta
                v += d
                w += rate * (d + beta * v if self._nesterov else v)


class DelayedNesterov:
    """Delayed Nesterov momentum (Liu et al., 2024, arXiv:2401.09135) with learning rate eps and momentum beta, on
    updates d = -g.

    Each update moves the weights by its own part, and each P-th by the momentum too, into which the mean of P goes:
        B <- B + d; w <- w + eps * d / P; after P updates: m <- beta * m + B / P; w <- w + eps * beta * m; B <- 0
    The paper's c, a part of the momentum in each update, is its default 0. P = 1 is Nesterov's momentum in each update.
    P falls when a worker is lost: B may then hold more updates than P, and their mean counts.
    """

    def __init__(self, rate: float, momentum: float, weights: Sequence[np.ndarray], saved: Mapping[str, Any]) -> None:
        """Begins with these weights; `saved` is the `state` that it resumes, empty if there is none."""
        self._rate, self._momentum = rate, momentum  # eps, beta
        self._num_buffered = saved.get("num_buffered", 0)  # updates in B
        self._buffers, self._velocities = (  # B, m
            in_shapes(saved.get(name, ()), weights) or [np.zeros_like(weight) for weight in weights]
            for name in ("buffers", "velocities")
        )

    def state(self) -> dict[str, Any]:
        return {"num_buffered": self._num_buffered, "buffers": self._buffers, "velocities": self._velocities}

    def apply(self, weights: Sequence[np.ndarray], updates: Sequence[np.ndarray], period: int) -> None:
        """Applies an update d to the weights, in place; `period` is P."""
        self._num_buffered += 1
        for weight, update, buffer in zip(weights, updates, self._buffers, strict=True):
            weight += self._rate / period * update
            buffer += update
        if self._num_buffered < period:
            return
        for weight, buffer, velocity in zip(weights, self._buffers, self._velocities, strict=True):
            velocity *= self._momentum
            velocity += buffer / self._num_buffered
            weight += self._rate * self._momentum * velocity
            buffer[:] = 0
        self._num_buffered = 0
