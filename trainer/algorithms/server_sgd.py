"""The optimizer on the parameter server of ASGD and SSP: w <- w - eta * g for each gradient that arrives, with momentum
and weight decay as steps.py has them. This module runs in the server's process."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trainer.array_tree import from_text, to_text
from trainer.engine import mx
from trainer.finite import first_not_finite
from trainer.recovering import Writes
from trainer.steps import PLAIN, Rule, Stepper
from utils import die_on_error


class ServerSGD(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Keys below `first_counter` are weights, and take a step at each push; to those from there on the push is added.

    A schedule goes by the samples of all workers, which are the pushes of an array times the batch size. Every array
    has its own count, so several servers need not know of each other.
    """

    def __init__(
        self, learning_rate: float, first_counter: int, decays: Sequence[bool], rule: Rule = PLAIN, **kwargs: Any
    ) -> None:
        """
        Args:
            learning_rate: eta.
            decays: of each of the model's weights, whether weight decay acts on it.
        """
        super().__init__(learning_rate=learning_rate, **kwargs)
        self._first_counter = first_counter
        self._rule = rule
        self._stepper = Stepper(rule, decays)
        self._num_steps: Counter[int] = Counter()  # by position
        self.looks_at_gradients = False  # whether they are finite
        # Of checkpoints. Where there is one, what is added to the last counter is the round of one to be written.
        self.writer: Writes | None = None
        self._values: dict[int, mx.nd.NDArray] = {}  # by key, as they are stored; of those that were pushed to
        self._saved = ""  # as text: what it goes on from

    def create_state(self, index: int, weight: mx.nd.NDArray) -> None:
        """All state is the optimizer's own."""

    def update(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray, state: None) -> None:
        """Called by the server when something was pushed to the key; `weight` is the stored value.

        `grad` lies in a network buffer that is freed when this returns: nothing may still read it then.
        """
        with die_on_error(f"the update of key {index} failed"):
            if self._saved:
                self.begin_with(from_text(self._saved))
                self._saved = ""
            if index >= self._first_counter:
                weight += grad
                if self.writer is not None and (round_ := round(grad[-1].asscalar())):
                    self.writer.write(round_, self.state())
            elif self.is_good(index, grad):
                self._values[index] = weight
                self.apply(index, weight, grad)
            weight.wait_to_read()

    def state(self) -> dict[str, Any]:
        """All that is needed to go on: plain values, and arrays of numpy. What was never pushed to is left out."""
        return {
            "values": [[key, value.asnumpy()] for key, value in self._values.items()],
            "num_steps": [[position, count] for position, count in self._num_steps.items()],
            "steps": self._stepper.state(),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes on from what `state` gave, with the first push; the values are rank 0's to define."""
        self._saved = to_text({name: value for name, value in saved.items() if name != "values"})

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        """Called on the server, once, before anything is pushed."""
        self._num_steps.update(dict(saved["num_steps"]))
        self._stepper.restore(saved["steps"], mx.cpu())

    def is_good(self, index: int, gradient: mx.nd.NDArray) -> bool:
        """Whether a gradient is finite; so it is said where nobody looks."""
        if not self.looks_at_gradients or first_not_finite([gradient]) is None:
            return True
        logging.warning("warning: a gradient of key %d is not finite and is not applied", index)
        return False

    def apply(self, index: int, weight: mx.nd.NDArray, grad: mx.nd.NDArray) -> None:
        """Does with a gradient what the algorithm says. `weight` is waited for afterwards, and nothing else."""
        self.step(index, weight, grad)

    def step(self, position: int, weight: mx.nd.NDArray, gradient: mx.nd.NDArray) -> None:
        """A step of one of the model's arrays, wherever its weight is kept."""
        self._num_steps[position] += 1
        factor = self._rule.schedule.factor(self._num_steps[position] * self._rule.batch_size)
        self._stepper.step_one(position, weight, gradient, self.lr * factor)
