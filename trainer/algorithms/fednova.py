"""FedNova (Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS
2020, arXiv:2007.07481): the mean of model updates, normalised so that a worker with more steps does not draw it to its
own samples:

    w <- w + eps * tau_eff * sum_k (n_k / n) * (w_k - w) / |a_k|,  tau_eff = sum_k (n_k / n) * |a_k|

The vector a_k says how much of each gradient of the round is in w_k - w, in units of the step size; |a_k| is the sum of
its entries. For plain SGD it is the number of local steps tau_k, for momentum mu it is
(tau_k - mu * (1 - mu^tau_k) / (1 - mu)) / (1 - mu), and a step to which a schedule gives the factor f counts f times.
a_k knows gradients of its own round alone: the velocity begins anew in each round, as in the paper. Weight decay is a
part of the loss. A worker without a complete step adds nothing to either sum. Equal |a_k| give the plain mean.
"""

from __future__ import annotations


class StepReach:
    """|a_k| of one worker's round.

    Attributes:
        total: |a_k| so far.
    """

    def __init__(self, momentum: float) -> None:
        self._momentum = momentum
        self._velocity = 0.0  # that gradients of 1 in all steps would have made
        self.total = 0.0

    def begin_round(self) -> None:
        """The velocity begins anew."""
        self.total = self._velocity = 0.0

    def add_step(self, schedule_factor: float) -> None:
        """Adds a local step."""
        self._velocity = self._momentum * self._velocity + 1.0
        self.total += schedule_factor * self._velocity
