"""Turns gradients into steps: of a worker's own weights, of SSGD's replicas, and in server parts on the hub.

Gradients and step sizes are of losses SUMMED over a batch of B samples: eta on the sum is eta * B on the mean. Weight
decay lambda has its usual meaning, the gradient of the MEAN loss plus lambda * w; on a summed loss that is
B * lambda * w. As in MXNet's own scripts it acts on the weights of convolutions and dense layers, not on biases nor on
BatchNorm's gamma and beta. BatchNorm's statistics take no steps.

SGD, with g the sum of n batches' gradients (n is above 1 only where workers' gradients are summed) and momentum mu:
    v <- mu * v + g / n + B * lambda * w;  w <- w - eta * v
The velocity v holds gradients, not steps: a changed step size acts on all of it at once (Goyal et al. 2017,
arXiv:1706.02677, section 3, call that momentum correction). In MXNet's own SGD the velocity holds steps.

RMSProp (Tieleman and Hinton, lecture 6.5 of "Neural networks for machine learning", 2012) and Adam (Kingma and Ba, ICLR
2015, arXiv:1412.6980) have the defaults of MXNet, and take g + n * B * lambda * w: they divide by the size of the
gradient itself, so n cancels. AdamW (Loshchilov and Hutter, ICLR 2019, arXiv:1711.05101) is torch's: it takes
g / (n * B), the gradient of the mean loss, and its decay is a step of its own, eta * lambda * w.

Arrays larger than a cache are taken piece by piece: each piece is read from memory once for all of a rule.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from algorithm_row import ADAM, ADAMW, RMSPROP
from rates import CONSTANT, RateSchedule

PIECE = 1 << 16  # numbers, 256 KB as float32
NO_STEPS = "none"  # an optimizer that leaves the weights as they are, for a network that computes nothing


@dataclass(frozen=True)
class Rule:
    """The rule of steps, without their size."""

    optimizer: str | None = None  # None: SGD; RMSPROP, ADAM, ADAMW, or NO_STEPS
    momentum: float = 0.0  # mu, of SGD
    weight_decay: float = 0.0  # lambda
    batch_size: int = 1  # B
    schedule: RateSchedule = CONSTANT  # factor on the step size
    clip_norm: float = 0.0  # most that the gradient of the mean loss may have; 0: any


PLAIN = Rule()


def pieces(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields views of the same part of each array, small arrays as they are, parts of large ones flat. The arrays have
    one shape; a large one that is not contiguous raises AttributeError."""
    if arrays[0].size <= PIECE:
        yield arrays
        return
    flat = [flat_view(array) for array in arrays]
    for begin in range(0, flat[0].size, PIECE):
        yield tuple(array[begin : begin + PIECE] for array in flat)


def sum_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Their sum, as a new array. The order is that of MXNet's add_n, with which earlier results were made: three or
    four arrays are added from the last on."""
    first, *others = reversed(arrays) if len(arrays) in (3, 4) else arrays
    total = first.copy()
    for array in others:
        total += array
    return total


def flat_view(array: np.ndarray) -> np.ndarray:
    """A view (n,), never a copy: an array that is not contiguous raises AttributeError."""
    view = array.view()
    view.shape = (array.size,)
    return view


def which_decay(weights: Sequence[np.ndarray]) -> tuple[bool, ...]:
    """Whether weight decay acts on each weight: not on biases, gamma and beta, which have one dimension."""
    return tuple(weight.ndim > 1 for weight in weights)


def sgd_step(
    weight: np.ndarray,
    gradient: np.ndarray,
    learning_rate: float,
    decay: float = 0.0,
    velocity: np.ndarray | None = None,
    momentum: float = 0.0,
    divisor: float = 1.0,
) -> None:
    """v <- momentum * v + gradient / divisor + decay * w; w <- w - learning_rate * v. Without a velocity v begins at
    0."""
    if velocity is None:
        for w, g in pieces(weight, gradient):
            mean = g / divisor if divisor != 1 else g
            w -= learning_rate * (mean + decay * w if decay else mean)
        return
    for w, g, v in pieces(weight, gradient, velocity):
        v *= momentum
        v += g / divisor if divisor != 1 else g
        if decay:
            v += decay * w
        w -= learning_rate * v


# As MXNet has them: 1 - 0.9 in float32 differs from 0.1 in the seventh digit.
_OLD, _OLD_SQUARE = np.float32(0.9), np.float32(0.999)
_NEW, _NEW_SQUARE = np.float32(1) - _OLD, np.float32(1) - _OLD_SQUARE


def rmsprop_step(weight: np.ndarray, gradient: np.ndarray, learning_rate: float, decay: float, s: np.ndarray) -> None:
    """s <- 0.9 * s + 0.1 * g * g; w <- w - learning_rate * g / sqrt(s + 1e-8), g the gradient + decay * w."""
    for w, gradient_, mean_square in pieces(weight, gradient, s):
        g = gradient_ + decay * w
        mean_square *= _OLD
        mean_square += _NEW * (g * g)
        w -= learning_rate * (g / np.sqrt(mean_square + 1e-8))


def adam_step(
    weight: np.ndarray,
    gradient: np.ndarray,
    learning_rate: float,
    decay: float,
    count: int,  # of this step, from 1 on
    m: np.ndarray,
    v: np.ndarray,
) -> None:
    """m <- 0.9 * m + 0.1 * g; v <- 0.999 * v + 0.001 * g * g; w <- w - rate * m / (sqrt(v) + 1e-8), g the gradient +
    decay * w, and rate the learning rate * sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t) in step t."""
    rate = learning_rate * math.sqrt(1 - 0.999**count) / (1 - 0.9**count)
    for w, gradient_, mean, mean_square in pieces(weight, gradient, m, v):
        g = gradient_ + decay * w
        mean *= _OLD
        mean += _NEW * g
        mean_square *= _OLD_SQUARE
        mean_square += _NEW_SQUARE * g * g
        w -= rate * mean / (np.sqrt(mean_square) + 1e-8)


def adamw_step(
    weight: np.ndarray,
    gradient: np.ndarray,
    learning_rate: float,
    decay: float,
    count: int,  # of this step, from 1 on
    divisor: float,
    m: np.ndarray,
    v: np.ndarray,
) -> None:
    """m and v as Adam's; w <- w - rate * (decay * w + m / (1 - 0.9 ** t) / (sqrt(v / (1 - 0.999 ** t)) + 1e-8)) in step
    t, with g the gradient / divisor."""
    # Torch computes 1 - 0.9 and 1 - 0.999 in float64, which MXNet and Adam above do not.
    rate, root = learning_rate / (1 - 0.9**count), math.sqrt(1 - 0.999**count)
    for w, gradient_, mean, mean_square in pieces(weight, gradient, m, v):
        g = gradient_ / divisor
        mean += np.float32(0.1) * (g - mean)
        mean_square *= _OLD_SQUARE
        mean_square += np.float32(0.001) * (g * g)
        if decay:
            w *= 1 - learning_rate * decay
        w -= rate * mean / (np.sqrt(mean_square) / root + 1e-8)


def clip(gradients: Sequence[np.ndarray], most: float, divisor: float) -> None:
    """Scales gradients in place where the norm of the gradients / divisor, all together, is above `most`, as torch's
    clip_grad_norm_ does."""
    flat = [gradient.reshape(-1) for gradient in gradients]
    norm = math.sqrt(sum(float(np.dot(numbers, numbers)) for numbers in flat)) / divisor
    factor = most / (norm + 1e-6)
    if factor < 1:
        for gradient in gradients:
            gradient *= factor


# Arrays of state that each optimizer has for a weight; of SGD, with momentum.
STATES = {None: 1, RMSPROP: 1, ADAM: 2, ADAMW: 2, NO_STEPS: 0}


class Stepper:
    """Takes the steps of a list of weights, and holds the optimizer's state of each."""

    def __init__(self, rule: Rule, decays: Sequence[bool]) -> None:
        """`decays`: of each weight, whether weight decay acts on it."""
        self._rule = rule
        self._decays = decays
        self._states: dict[int, list[np.ndarray]] = {}  # by position
        self.updates = 0  # steps so far (Adam's bias correction needs them); SGD counts none

    def step(
        self,
        weights: Sequence[np.ndarray],
        gradients: Sequence[np.ndarray],
        learning_rate: float,
        num_batches: float = 1,
    ) -> None:
        """A step of all weights. `learning_rate` is eta, of the gradient of one batch; `num_batches` is n, the number
        of summed batches, which may be fractional. With a limit, clips the gradients."""
        if self._rule.clip_norm:
            clip(gradients, self._rule.clip_norm, num_batches * self._rule.batch_size)
        self.updates += self._rule.optimizer is not None
        for position, (weight, gradient) in enumerate(zip(weights, gradients, strict=True)):
            self.step_one(position, weight, gradient, learning_rate, num_batches)

    def step_one(
        self, position: int, weight: np.ndarray, gradient: np.ndarray, learning_rate: float, num_batches: float = 1
    ) -> None:
        """The part of a step for the weight at this position of the list (see `step`)."""
        rule, state = self._rule, self._state(position, weight)
        decay = rule.weight_decay * num_batches * rule.batch_size * self._decays[position]
        if rule.optimizer is None:
            if rule.momentum:
                sgd_step(weight, gradient, learning_rate, decay / num_batches, state[0], rule.momentum, num_batches)
            else:
                sgd_step(weight, gradient, learning_rate / num_batches, decay)
            return
        if rule.optimizer == RMSPROP:
            rmsprop_step(weight, gradient, learning_rate, decay, *state)
        elif rule.optimizer == ADAM:
            adam_step(weight, gradient, learning_rate, decay, self.updates, *state)
        elif rule.optimizer == ADAMW:
            decay, divisor = rule.weight_decay * self._decays[position], num_batches * rule.batch_size
            adamw_step(weight, gradient, learning_rate, decay, self.updates, divisor, *state)

    def reset(self) -> None:
        """Forgets the optimizer's state, as if no step had been taken."""
        self._states.clear()

    def arrays(self, weights: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The arrays of the optimizer's state, of all weights."""
        return [array for position, weight in enumerate(weights) for array in self._state(position, weight)]

    def state(self) -> dict[str, Any]:
        """The optimizer's state, with its own arrays."""
        return {"kept": [*self._states.items()], "updates": [(position, self.updates) for position in self._states]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restores `state`, or that of version 0.6.0, which has a single array as it is."""
        self._states = {
            position: [kept] if isinstance(kept, np.ndarray) else list(kept or ()) for position, kept in state["kept"]
        }
        self.updates = max(dict(state["updates"]).values(), default=0)  # all weights have one number

    def _state(self, position: int, weight: np.ndarray) -> list[np.ndarray]:
        """The optimizer's state of a weight; zeros at the first call."""
        if position not in self._states:
            rule = self._rule
            number = STATES[rule.optimizer] if rule.optimizer or rule.momentum else 0
            self._states[position] = [np.zeros(weight.shape, np.float32) for _ in range(number)]
        return self._states[position]


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
