"""Turns gradients into steps: of a worker's own weights, of SSGD's replicas, and on the parameter server.

Gradients and step sizes are of losses SUMMED over a batch of B samples: eta on the sum is eta * B on the mean. Weight
decay lambda has its usual meaning, the gradient of the MEAN loss plus lambda * w; on a summed loss that is
B * lambda * w. As in MXNet's own scripts it acts on the weights of convolutions and dense layers, not on biases nor on
BatchNorm's gamma and beta. BatchNorm's statistics take no steps.

SGD, with g the sum of n batches' gradients (n is above 1 only where workers' gradients are summed) and momentum mu:
    v <- mu * v + g / n + B * lambda * w;  w <- w - eta * v
The velocity v holds gradients, not steps: a changed step size acts on all of it at once (Goyal et al. 2017,
arXiv:1706.02677, section 3, call that momentum correction). In MXNet's own SGD the velocity holds steps.

RMSProp and Adam are MXNet's (mx.optimizer, with its defaults), of g + n * B * lambda * w: they divide by the size of
the gradient itself, so n cancels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rates import CONSTANT, RateSchedule
from trainer.engine import mx


@dataclass(frozen=True)
class Rule:
    """The rule of steps, without their size."""

    optimizer: str | None = None  # name of MXNet's; None: SGD
    momentum: float = 0.0  # mu, of SGD
    weight_decay: float = 0.0  # lambda
    batch_size: int = 1  # B
    schedule: RateSchedule = CONSTANT  # factor on the step size


PLAIN = Rule()


def which_decay(weights: Sequence[mx.nd.NDArray]) -> tuple[bool, ...]:
    """Whether weight decay acts on each weight: not on biases, gamma and beta, which have one dimension. A parameter
    server must be told, since its arrays are flat."""
    return tuple(weight.ndim > 1 for weight in weights)


def sgd_step(
    weight: mx.nd.NDArray,
    gradient: mx.nd.NDArray,
    learning_rate: float,
    decay: float = 0.0,
    velocity: mx.nd.NDArray | None = None,
    momentum: float = 0.0,
) -> None:
    """v <- momentum * v + gradient + decay * w; w <- w - learning_rate * v. Without a velocity v begins at 0."""
    if velocity is None:
        mx.nd.sgd_update(weight, gradient, lr=learning_rate, wd=decay, out=weight)
        return
    velocity *= momentum
    velocity += gradient
    if decay:
        velocity += decay * weight
    mx.nd.sgd_update(weight, velocity, lr=learning_rate, out=weight)


class Stepper:
    """Takes the steps of a list of weights, and holds the optimizer's state of each. Pickles before the first step."""

    def __init__(self, rule: Rule, decays: Sequence[bool]) -> None:
        """`decays`: of each weight, whether weight decay acts on it."""
        self._rule = rule
        self._decays = decays
        self._states: dict[int, Any] = {}  # the optimizer's, by position
        self._optimizer = mx.optimizer.create(rule.optimizer) if rule.optimizer else None

    def step(
        self,
        weights: Sequence[mx.nd.NDArray],
        gradients: Sequence[mx.nd.NDArray],
        learning_rate: float,
        num_batches: float = 1,
    ) -> None:
        """A step of all weights. `learning_rate` is eta, of the gradient of one batch; `num_batches` is n, the number
        of summed batches, which may be fractional."""
        for position, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            self.step_one(position, weight, gradient, learning_rate, num_batches)

    def step_one(
        self,
        position: int,
        weight: mx.nd.NDArray,
        gradient: mx.nd.NDArray,
        learning_rate: float,
        num_batches: float = 1,
    ) -> None:
        """A step of the weight at this position of the list (see `step`)."""
        rule, optimizer = self._rule, self._optimizer
        decay = rule.weight_decay * num_batches * rule.batch_size * self._decays[position]
        if optimizer is not None:
            optimizer.lr, optimizer.wd = learning_rate, decay
            optimizer.update(position, weight, gradient, self._state(position, weight))
        elif rule.momentum:
            mean = gradient / num_batches if num_batches != 1 else gradient
            velocity = self._state(position, weight)
            sgd_step(weight, mean, learning_rate, decay / num_batches, velocity, rule.momentum)
        else:
            sgd_step(weight, gradient, learning_rate / num_batches, decay)

    def reset(self) -> None:
        """Forgets the optimizer's state, as if no step had been taken."""
        self._states.clear()

    def arrays(self, weights: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        """The arrays of the optimizer's state, of all weights."""
        if self._optimizer is not None or self._rule.momentum:
            for position, weight in enumerate(weights):
                self._state(position, weight)
        return [array for _, state in sorted(self._states.items()) for array in _flat(state)]

    @property
    def updates(self) -> int:
        """Steps that the optimizer has counted (Adam's bias correction needs them); 0 if it counts none."""
        return int(self._optimizer.num_update) if self._optimizer is not None else 0

    @updates.setter
    def updates(self, number: int) -> None:
        if self._optimizer is not None:
            self._optimizer.num_update = number
            self._optimizer._index_update_count.update(dict.fromkeys(range(len(self._decays)), number))

    def state(self) -> dict[str, Any]:
        """The optimizer's state, as numpy arrays."""
        counts = getattr(self._optimizer, "_index_update_count", {})  # for Adam's bias correction
        return {
            "kept": [[position, _as_numpy(state)] for position, state in self._states.items()],
            "updates": [[position, count] for position, count in counts.items()],
        }

    def restore(self, state: Mapping[str, Any], context: mx.Context) -> None:
        """Restores `state` on the weights' device."""
        self._states = {position: _as_arrays(kept, context) for position, kept in state["kept"]}
        if self._optimizer is not None:
            self._optimizer._index_update_count.update(dict(state["updates"]))
            self._optimizer.num_update = max(self._optimizer._index_update_count.values(), default=0)

    def _state(self, position: int, weight: mx.nd.NDArray) -> Any:
        """The optimizer's state of a weight, or its velocity; created at the first call."""
        if position not in self._states:
            self._states[position] = (
                mx.nd.zeros(weight.shape, ctx=weight.context)
                if self._optimizer is None
                else self._optimizer.create_state(position, weight)
            )
        return self._states[position]


def _flat(state: Any) -> list[mx.nd.NDArray]:
    """The arrays of an optimizer's state of one weight."""
    if isinstance(state, (list, tuple)):
        return [array for each in state for array in _flat(each)]
    return [] if state is None else [state]


def _as_numpy(state: Any) -> Any:
    if isinstance(state, (list, tuple)):
        return [_as_numpy(each) for each in state]
    return None if state is None else state.asnumpy()


def _as_arrays(state: Any, context: mx.Context) -> Any:
    if isinstance(state, list):
        return tuple(_as_arrays(each, context) for each in state)
    return None if state is None else mx.nd.array(state, ctx=context)


@dataclass
class Seen:
    """Samples that all workers have trained on, as far as this worker knows."""

    of_all: int = 0  # at the last exchange that counted them
    own: int = 0  # this worker's since then

    @property
    def total(self) -> int:
        """The samples that a schedule follows."""
        return self.of_all + self.own

    def update(self, of_all: int, own_among_them: int) -> None:
        """Takes the count of an exchange; `own_among_them` of this worker's are contained in it."""
        self.of_all = of_all
        self.own -= own_among_them
