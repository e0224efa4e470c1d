"""Whether arrays hold finite numbers alone: no NaN, no infinity.

On the CPU a dot product of each array with itself is the fastest way to look at all of its numbers (ResNet-18's 62
gradients: MXNet's own multi_all_finite takes 30 times as long, a sum of squares twice); where that is not finite each
number is looked at, since squares of large ones are not either. On a GPU one kernel squares and sums them all.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np

from trainer.bad_numbers import NOT_FINITE, BadSteps
from trainer.engine import mx
from trainer.parameters import Parameters, memory_of

Unpack = Callable[[Sequence[mx.nd.NDArray]], Sequence[mx.nd.NDArray]]


def first_not_finite(
    arrays: Sequence[mx.nd.NDArray], largest: float = math.inf, num_limited: int | None = None
) -> int | None:
    """Position of the first array (float32) that holds a NaN or an infinity, None where all are finite.

    Waits until the arrays are computed.

    Args:
        largest: magnitude behind which a number counts as infinite.
        num_limited: of so many arrays from the first on; else of all.
    """
    if all(array.context.device_type != "gpu" for array in arrays):
        flat = [memory_of(array) for array in arrays]
        squares = sum(float(np.dot(numbers, numbers)) for numbers in flat)
    else:  # not tested: no machine of this project's tests has one
        flat = []
        squares = float(mx.nd.multi_sum_sq(*arrays, num_arrays=len(arrays)).sum().asscalar())
    if math.isfinite(squares) and math.sqrt(squares) <= largest:
        return None
    flat = flat or [array.asnumpy() for array in arrays]
    limits = [largest if num_limited is None or index < num_limited else math.inf for index in range(len(flat))]
    return next((index for index, numbers in enumerate(flat) if not _all_within(numbers, limits[index])), None)


def _all_within(numbers: np.ndarray, largest: float) -> bool:
    return bool(np.isfinite(numbers).all() and (math.isinf(largest) or np.abs(numbers).max(initial=0.0) <= largest))


class NumberChecks:
    """Looks at what one worker has computed, and counts what has to be skipped."""

    def __init__(self, most: int, parameters: Parameters) -> None:
        """
        Args:
            most: bad steps in a row, or updates, that end the job; 0: nobody looks, and all is said to be good.
            parameters: whose gradients are looked at.
        """
        self.are_made = most > 0
        self.steps = BadSteps(most)
        self.updates = BadSteps(most, "updates")
        self._parameters = parameters

    def begin_round(self) -> None:
        """The next round runs."""
        self.steps.begin_round()
        self.updates.begin_round()

    def skipped(self, steps: int) -> int:
        """How many of the round's local steps are: all of them, where its update was bad."""
        return steps if self.updates.in_round else self.steps.in_round

    def gradients_are_good(self, where: str, largest: float = math.inf) -> bool:
        """Whether the gradients are finite, once they are computed.

        Args:
            largest: magnitude behind which a number is as bad as an infinity.

        Raises:
            JobError: they were bad once too often in a row.
        """
        if not self.are_made:
            return True
        position = first_not_finite(self._parameters.gradients, largest)
        if position is None:
            self.steps.good()
            return True
        _warn(self.steps.bad(where, f"the gradient of {self._parameters.names[position]}", _what(largest)))
        return False

    def update_is_good(
        self, where: str, update: Sequence[mx.nd.NDArray], unpack: Unpack, largest: float = math.inf
    ) -> bool:
        """Whether the change of this worker's own model is finite, once it is computed.

        Args:
            unpack: makes arrays of the model's shapes of it.
            largest: magnitude behind which a weight's change is as bad as an infinity.

        Raises:
            JobError: it was bad once too often in a row.
        """
        if not self.are_made:
            return True
        names = self._parameters.names
        if first_not_finite(update, largest, len(names)) is None:
            self.updates.good()
            return True
        position = first_not_finite([array.copy() for array in unpack(update)], largest, len(names)) or 0
        _warn(self.updates.bad(where, f"the update of {[*names, 'the statistics'][position]}", _what(largest)))
        return False


def _what(largest: float) -> str:
    return NOT_FINITE if math.isinf(largest) else f"{NOT_FINITE}, or above {largest:g}: too much for float16"


def _warn(text: str) -> None:
    logging.warning("warning: %s", text)
