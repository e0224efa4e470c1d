"""FedNova (Wang et al., "Tackling the objective inconsistency problem in heterogeneous federated optimization", NeurIPS
2020, arXiv:2007.07481): the mean of normalised model updates, so that a worker with more steps has no more influence:

    w <- w + eps * tau_eff * sum_k (n_k / n) * (w_k - w) / |a_k|,  tau_eff = sum_k (n_k / n) * |a_k|

The vector a_k has the weight of each gradient of the round in w_k - w, in units of the step size; |a_k| is the sum of
its entries. For plain SGD it is the number of local steps tau_k, for momentum mu it is
(tau_k - mu * (1 - mu^tau_k) / (1 - mu)) / (1 - mu), and a step with a schedule's factor f counts f times. The velocity
begins at zero in each round, as in the paper. Weight decay is a part of the loss. A worker without a complete step adds
nothing to either sum. Equal |a_k| give the plain mean.
"""

from collections.abc import Mapping

from trainer.steps import Stepper


class Normalisation:
    """|a_k| of one worker's round; if it is off, the mean stays the plain one."""

    def __init__(self, is_on: bool, momentum: float) -> None:
        self._is_on = is_on
        self._momentum = momentum
        self._velocity = 0.0  # of gradients of 1 in all steps
        self._norm = 0.0  # |a_k| so far

    def begin_round(self, stepper: Stepper) -> None:
        self._norm = self._velocity = 0.0
        if self._is_on:
            stepper.reset()

    def add_step(self, schedule_factor: float) -> None:
        self._velocity = self._momentum * self._velocity + 1.0
        self._norm += schedule_factor * self._velocity

    @property
    def divisor(self) -> float:
        """Of this worker's update; 1 without a complete step."""
        return (self._norm or 1.0) if self._is_on else 1.0

    def numbers(self, weight: float) -> dict[str, float]:
        """This worker's term of tau_eff, which the workers sum."""
        return {"norm": weight * self._norm} if self._is_on else {}

    def divisor_of_all(self, weight_of_all: float, sums: Mapping[str, float]) -> float:
        """Of the sum of the updates. With W the sum of the weights and S that of `numbers` the mean is the sum / W and
        tau_eff is S / W. Their product is the sum / (W * W / S)."""
        return weight_of_all * weight_of_all / sums["norm"] if sums.get("norm") else weight_of_all
