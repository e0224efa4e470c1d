"""Delayed Nesterov momentum (Liu et al., "Asynchronous local-SGD training for language modeling", 2024,
arXiv:2401.09135): the outer optimiser of model updates that come one by one."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class DelayedNesterov:
    """Learning rate eps and momentum beta, on updates d = -g.

    Each update moves the weights by its own part, and each P-th by the momentum too, into which the mean of P goes:
        B <- B + d; w <- w + eps * d / P; after P updates: m <- beta * m + B / P; w <- w + eps * beta * m; B <- 0
    The paper's c, a part of the momentum in each update, is its default 0. P = 1 is Nesterov's momentum in each update.
    P falls when a worker is lost: B may then hold more updates than P, and their mean counts.
    """

    def __init__(self, rate: float, momentum: float) -> None:
        self._rate, self._momentum = rate, momentum  # eps, beta
        self._num_buffered = 0  # updates in B
        self._buffers: list[np.ndarray] = []  # B
        self._velocities: list[np.ndarray] = []  # m

    def begin(self, weights: Sequence[np.ndarray], saved: Mapping[str, Any]) -> None:
        """Begins with these weights; `saved` is the `state` that it resumes, empty if there is none."""
        zeros = [np.zeros(weight.shape, dtype=np.float32) for weight in weights]
        self._num_buffered = saved.get("num_buffered", 0)
        self._buffers = saved.get("buffers", zeros)
        self._velocities = saved.get("velocities", [zero.copy() for zero in zeros])

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
