"""What turns a gradient into a step, wherever one is taken: on a worker's own weights, on the replicas of SSGD, and on
the parameter server.

Gradients are those of losses SUMMED over a batch of B samples, and so are step sizes: eta on the sum is eta * B on the
mean. Weight decay lambda has its usual meaning, of the gradient of the MEAN loss plus lambda * w; on a summed loss that
is B * lambda * w. As MXNet's own scripts have it, it acts on the weights of convolutions and dense layers, not on
biases nor on BatchNorm's gamma and beta. BatchNorm's statistics take no steps at all.

SGD, with g the sum of n batches' gradients (n is 1 but where the workers' are summed) and momentum mu:
    v <- mu * v + g / n + B * lambda * w;  w <- w - eta * v
The velocity v holds gradients, not steps: a step size that changes acts on all of it at once (Goyal et al. 2017,
arXiv:1706.02677, section 3, call that momentum correction). MXNet's own SGD has it the other way round.

RMSProp and Adam are MXNet's (mx.optimizer, with its defaults), of g + n * B * lambda * w: they divide by the size of
the gradient itself, so nothing is left of the n.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rates import CONSTANT, RateSchedule
from trainer.engine import mx


@dataclass(frozen=True)
class Rule:
    """How steps are taken, without their size.

    Attributes:
        optimizer: MXNet's, in place of SGD; None: SGD.
        momentum: mu, of SGD.
        weight_decay: lambda.
        batch_size: B, samples whose losses are summed.
        schedule: factor on the step size.
    """

    optimizer: str | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 1
    schedule: RateSchedule = CONSTANT


PLAIN = Rule()


def which_decay(weights: Sequence[mx.nd.NDArray]) -> tuple[bool, ...]:
    """Which of a model's weights weight decay acts on: biases, gamma and beta are those with one dimension.

    A parameter server must be told: there all arrays lie flat.
    """
    return tuple(weight.ndim > 1 for weight in weights)


def sgd_step(
    weight: mx.nd.NDArray,
    gradient: mx.nd.NDArray,
    learning_rate: float,
    decay: float = 0.0,
    velocity: mx.nd.NDArray | None = None,
    momentum: float = 0.0,
) -> None:
    """v <- momentum * v + gradient + decay * w; w <- w - learning_rate * v. Without a velocity v is new each time."""
    if velocity is None:
        mx.nd.sgd_update(weight, gradient, lr=learning_rate, wd=decay, out=weight)
        return
    velocity *= momentum
    velocity += gradient
    if decay:
        velocity += decay * weight
    mx.nd.sgd_update(weight, velocity, lr=learning_rate, out=weight)


class Stepper:
    """Takes the steps of a list of weights, and keeps what an optimizer must know of each of them.

    It can be sent to the parameter server as long as it has taken no step.
    """

    def __init__(self, rule: Rule, decays: Sequence[bool]) -> None:
        """
        Args:
            decays: of each weight, whether weight decay acts on it.
        """
        self._rule = rule
        self._decays = decays
        self._states: dict[int, Any] = {}  # by position
        self._optimizer = mx.optimizer.create(rule.optimizer) if rule.optimizer else None

    def step(
        self,
        weights: Sequence[mx.nd.NDArray],
        gradients: Sequence[mx.nd.NDArray],
        learning_rate: float,
        num_batches: float = 1,
    ) -> None:
        """A step of all weights.

        Args:
            learning_rate: eta, of the gradient of one batch.
            num_batches: n, whose gradients were summed; a part of a batch is one too.
        """
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
        """A step of the weight at this position of the list; otherwise as `step`."""
        rule, optimizer = self._rule, self._optimizer
        decay = rule.weight_decay * num_batches * rule.batch_size * self._decays[position]
        if optimizer is not None:
            state = self._state(position, lambda: optimizer.create_state(position, weight))
            optimizer.lr, optimizer.wd = learning_rate, decay
            optimizer.update(position, weight, gradient, state)
        elif rule.momentum:
            velocity = self._state(position, lambda: mx.nd.zeros(weight.shape, ctx=weight.context))
            mean = gradient / num_batches if num_batches != 1 else gradient
            sgd_step(weight, mean, learning_rate, decay / num_batches, velocity, rule.momentum)
        else:
            sgd_step(weight, gradient, learning_rate / num_batches, decay)

    def begin_anew(self) -> None:
        """Forgets what is kept, as if no step had been taken."""
        self._states.clear()

    def arrays(self, weights: Sequence[mx.nd.NDArray]) -> list[mx.nd.NDArray]:
        """All that is kept of these weights, once a step of each was taken."""
        if self._optimizer is not None:
            for position, weight in enumerate(weights):
                self._state(position, partial(self._optimizer.create_state, position, weight))
        elif self._rule.momentum:
            for position, weight in enumerate(weights):
                self._state(position, partial(mx.nd.zeros, weight.shape, ctx=weight.context))
        return [array for _, state in sorted(self._states.items()) for array in _flat(state)]

    @property
    def updates(self) -> int:
        """Steps taken, where the optimizer counts them: Adam corrects its means by that."""
        return int(self._optimizer.num_update) if self._optimizer is not None else 0

    @updates.setter
    def updates(self, number: int) -> None:
        if self._optimizer is not None:
            self._optimizer.num_update = number
            self._optimizer._index_update_count.update(dict.fromkeys(range(len(self._decays)), number))

    def state(self) -> dict[str, Any]:
        """All that is kept, as numpy arrays."""
        counts = getattr(self._optimizer, "_index_update_count", {})  # Adam corrects its means by them
        return {
            "kept": [[position, _as_numpy(state)] for position, state in self._states.items()],
            "updates": [[position, count] for position, count in counts.items()],
        }

    def restore(self, state: Mapping[str, Any], context: mx.Context) -> None:
        """Goes on with what `state` gave.

        Args:
            context: of the weights.
        """
        self._states = {position: _as_arrays(kept, context) for position, kept in state["kept"]}
        if self._optimizer is not None:
            self._optimizer._index_update_count.update(dict(state["updates"]))
            self._optimizer.num_update = max(self._optimizer._index_update_count.values(), default=0)

    def _state(self, position: int, new: Callable[[], Any]) -> Any:
        if position not in self._states:
            self._states[position] = new()
        return self._states[position]


def _flat(state: Any) -> list[mx.nd.NDArray]:
    """The arrays that an optimizer keeps of one weight."""
    if isinstance(state, (list, tuple)):
        return [array for each in state for array in _flat(each)]
    return [] if state is None else [state]


def _as_numpy(state: Any) -> Any:
    """What an optimizer keeps of an array: arrays, or tuples of them."""
    if isinstance(state, (list, tuple)):
        return [_as_numpy(each) for each in state]
    return None if state is None else state.asnumpy()


def _as_arrays(state: Any, context: mx.Context) -> Any:
    if isinstance(state, list):
        return tuple(_as_arrays(each, context) for each in state)
    return None if state is None else mx.nd.array(state, ctx=context)


@dataclass
class Seen:
    """Samples that all workers have trained on, as far as this one knows.

    Attributes:
        of_all: up to the last exchange that told them.
        own: this worker's since then.
    """

    of_all: int = 0
    own: int = 0

    @property
    def total(self) -> int:
        """What a schedule goes by."""
        return self.of_all + self.own

    def told(self, of_all: int, own_among_them: int) -> None:
        """An exchange has told how many there are of all workers, and of this one's own among them."""
        self.of_all = of_all
        self.own -= own_among_them
