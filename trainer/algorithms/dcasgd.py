"""DC-ASGD (Zheng et al., "Asynchronous stochastic gradient descent with delay compensation", ICML 2017,
arXiv:1609.08326, algorithm 2): w <- w - eta * (g + lambda * g*g*(w - w_bak(m))), then w_bak(m) <- w. Momentum and
weight decay act on the compensated gradient, as in MXNet's own DCASGD.

DC-ASGD-c has a constant lambda. DC-ASGD-a, the adaptive one, has for each weight lambda = lambda_0 / sqrt(s + 1e-7),
s <- 0.95 * s + 0.05 * g*g, 0 at first. The server updates s with each gradient before it uses it. Algorithm 2 has one
server and one t, so all workers share s. The gradient here is that of the SUMMED loss, B times that of the mean loss.
So a constant lambda is the paper's divided by B, as the step size is; lambda_0 is the paper's own (2 on CIFAR-10),
since s grows with B * B.

MXNet's own DCASGD keeps one backup for all workers, which is another algorithm; here each worker m has its own.
"""

from typing import Any

import numpy as np

from trainer.algorithms.asynchronous import AsyncServer, Settings
from trainer.hub.server_part import Answer, Answers, Arrays, Served, in_shapes
from trainer.nan_guard import first_not_finite

FADING = 0.95  # of s, as in the paper's experiments on CIFAR-10
SMALLEST_SQUARE = 1e-7  # keeps s from zero


class DCASGDServer(AsyncServer):
    """w_bak(m) is what worker m got last. DC-ASGD-a needs one more copy of the model."""

    keeps_uploads = True

    def __init__(self, job: Served, settings: Settings) -> None:
        super().__init__(job, settings)
        self._compensation = settings.dcasgd_lambda  # lambda, or lambda_0 of DC-ASGD-a
        self._backups: dict[int, Arrays] = {}  # w_bak, by rank
        self._mean_squares: list[np.ndarray] = []  # s
        if settings.dcasgd_adaptive:
            zeros = [np.zeros_like(weight) for weight in self.weights]
            self._mean_squares = in_shapes(job.saved.get("squares", ()), self.weights) or zeros

    def use(self, rank: int, gradient: Arrays) -> bool:
        compensated = []
        for position, (weight, backup, g) in enumerate(zip(self.weights, self._backups[rank], gradient, strict=True)):
            step = weight - backup
            step *= g
            step *= g
            step *= self._compensation
            if self._mean_squares:
                square = self._mean_squares[position]
                square *= FADING
                square += (1 - FADING) * g * g
                step /= np.sqrt(square + SMALLEST_SQUARE)
            step += g
            compensated.append(step)
        if self.job.config.max_bad_steps == 0 or first_not_finite(compensated) is None:
            self.step(compensated)
        return True

    def answer(self, rank: int, memory: Arrays) -> Answer:
        self._backups[rank] = memory
        return super().answer(rank, memory)

    def lost(self, rank: int) -> Answers:
        self._backups.pop(rank, None)
        return super().lost(rank)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "squares": self._mean_squares}
