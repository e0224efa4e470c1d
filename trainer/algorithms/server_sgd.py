"""The optimizer on the parameter server of ASGD and SSP: w <- w - eta * g for each arriving gradient, with momentum and
weight decay as in steps.py. This module runs in the server's process."""

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainer.algorithms.server_optimizer import ServerOptimizer
from trainer.array_tree import from_text, to_text
from trainer.membership import number_of_change
from trainer.nan_guard import first_not_finite
from trainer.recovering import Writes
from trainer.steps import PLAIN, Rule, Stepper

GONE = -math.inf  # a worker's number among the counters: it has ended; a number added to it changes nothing
ENDED = number_of_change((1 << 22) + 1, is_lost=True)  # the number of a worker's last change: none comes after it


class ServerSGD(ServerOptimizer):
    """A push to a key of a model is a gradient for a step; a push to any later key is added to counters.

    A schedule follows the samples of all workers, which are the pushes of an array times the batch size. Every array
    has its own count, so several servers need not know of each other.
    """

    per_worker = False  # each worker has keys of its own
    hears_of_workers = False  # the counters have the number of each worker's last change, from the second on

    def __init__(
        self,
        learning_rate: float,
        keys_per_model: int,  # array i of model m has the key `m * keys_per_model + i`
        num_models: int,  # 1, or with `per_worker` the number of workers
        decays: Sequence[bool],  # of each of the model's weights, whether weight decay acts on it
        rule: Rule = PLAIN,
    ) -> None:
        super().__init__(learning_rate=learning_rate)
        self._keys_per_model = keys_per_model
        self._num_models = num_models
        self._first_counter = num_models * keys_per_model
        self._counters: np.ndarray | None = None  # as stored; None: all are 0
        self._rule = rule
        self._stepper = Stepper(rule, decays)
        self._num_steps: Counter[int] = Counter()  # by position
        self.checks_gradients = False  # whether they are finite
        # Of checkpoints. With a writer, a push to the last counter is the round of a checkpoint to be written.
        self.writer: Writes | None = None
        self._values: dict[int, np.ndarray] = {}  # the stored arrays by key; of keys that were pushed to
        self._saved = ""  # text of a checkpoint to resume

    def pushed(self, key: int, value: np.ndarray, array: np.ndarray) -> None:
        if self._saved:
            self.begin_with(from_text(self._saved))
            self._saved = ""
        if key >= self._first_counter:
            self.count(value, array)
            self._counters = value
            if self.writer is not None and (round_ := round(float(array[-1]))):
                self.writer.write(round_, self.state())
        elif self.is_good(key, array):
            self._values[key] = value
            self.apply(key, value, array)

    def count(self, counters: np.ndarray, pushed: np.ndarray) -> None:
        """Adds what a worker has pushed to the counters."""
        counters += pushed

    def state(self) -> dict[str, Any]:
        """The state to resume from: plain values and its own arrays, without keys that were never pushed to."""
        return {
            "values": [*self._values.items()],
            "num_steps": [*self._num_steps.items()],
            "steps": self._stepper.state(),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Resumes from `state` at the first push. Rank 0 defines the values."""
        self._saved = to_text({name: value for name, value in saved.items() if name != "values"})

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        """Called on the server, once, at the first push."""
        self._num_steps.update(dict(saved["num_steps"]))
        self._stepper.restore(saved["steps"])

    def is_good(self, index: int, gradient: np.ndarray) -> bool:
        """Whether a gradient is finite; True without `checks_gradients`."""
        if not self.checks_gradients or first_not_finite([gradient]) is None:
            return True
        logging.warning("warning: a gradient of key %d is not finite and is not applied", index)
        return False

    def apply(self, index: int, weight: np.ndarray, grad: np.ndarray) -> None:
        """Applies a gradient by the algorithm's rule."""
        self.step(index, weight, grad)

    def step(self, position: int, weight: np.ndarray, gradient: np.ndarray, num_batches: int = 1) -> None:
        """A step of one of the model's arrays, on a sum of `num_batches` gradients."""
        self._num_steps[position] += 1
        factor = self._rule.schedule.factor(self._num_steps[position] * self._rule.batch_size)
        self._stepper.step_one(position, weight, gradient, self.lr * factor, num_batches)
