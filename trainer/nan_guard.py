"""Skips steps whose numbers are not finite (NaN, infinity), and counts them; too many in a row end the job.

A worker skips its step before it sends anything of it. In a sum over all workers it takes part with zeros and weight 0,
so the mean is over the others. To a server that applies gradients on arrival it sends none; if others may
wait for its gradient, it tries again with its next batch. The server checks what arrives too.

A dot product of each array with itself is the fastest check (ResNet-18's 62 gradients: MXNet's multi_all_finite takes
30 times as long, a sum of squares twice). If it is not finite, each number is checked, since the squares of large
numbers overflow.
"""

import logging
import math
from collections.abc import Callable, Sequence

import numpy as np

from trainer.network import Parameters
from utils import DIVERGED, JobError

NOT_FINITE = "is not finite"
LOWER = "lower the learning rate (-l or -ll)"


def first_not_finite(
    arrays: Sequence[np.ndarray], largest: float = math.inf, num_limited: int | None = None
) -> int | None:
    """Position of the first float32 array with a NaN or an infinity, None if all are finite. In the
    first `num_limited` arrays (None: in all) a number of larger magnitude than `largest` counts as infinite."""
    flat = [array.reshape(-1) for array in arrays]
    squares = sum(float(np.dot(numbers, numbers)) for numbers in flat)
    if math.isfinite(squares) and math.sqrt(squares) <= largest:
        return None
    for index, numbers in enumerate(flat):
        limit = largest if num_limited is None or index < num_limited else math.inf
        if not np.isfinite(numbers).all() or np.abs(numbers).max(initial=0.0) > limit:
            return index
    return None


class BadSteps:
    """One worker's skipped steps."""

    def __init__(self, most: int, what: str = "steps") -> None:
        """`most` in a row end the job; `what` names the counted things."""
        self._most = most
        self._what = what
        self._in_a_row = 0
        self.in_round = 0  # in this round
        self.total = 0  # since the job began

    def begin_round(self) -> None:
        self.in_round = 0

    def good(self) -> None:
        self._in_a_row = 0

    def bad(self, found: str, remedy: str = LOWER) -> str:
        """Counts a bad step; returns the warning. `found`: worker, round and step, and what is bad. Raises JobError
        after too many in a row, with what to do."""
        self._in_a_row += 1
        self.in_round += 1
        self.total += 1
        if self._in_a_row >= self._most:
            raise JobError(
                f"{DIVERGED}: {found}, and so were {self._in_a_row} {self._what} in a row (--max-bad-steps): {remedy}"
            )
        return f"{found}; skipped, as {self.total} so far"


class NumberChecks:
    """Checks one worker's gradients and updates, and counts the bad ones."""

    def __init__(self, most: int, parameters: Parameters) -> None:
        """`most` bad steps, or updates, in a row end the job; 0: no checks, all count as good."""
        self.are_on = most > 0
        self.steps = BadSteps(most)
        self.updates = BadSteps(most, "updates")
        self._parameters = parameters
        self._data_is_told = False

    def begin_round(self) -> None:
        self.steps.begin_round()
        self.updates.begin_round()

    def skipped(self, steps: int) -> int:
        """Number of the round's local steps that are skipped: all if its update was bad."""
        return steps if self.updates.in_round else self.steps.in_round

    def gradients_are_good(self, where: str, fault: Callable[[], str], largest: float = math.inf) -> bool:
        """Waits for the gradients; returns whether they are finite and of at most this magnitude. `fault` says what is
        not finite in the batch. Raises JobError after too many bad steps in a row."""
        if not self.are_on:
            return True
        position = first_not_finite(self._parameters.gradients, largest)
        if position is not None and (of_data := fault()):
            told = self.steps.bad(f"{where}: {of_data}", remedy="mend the data, or prepare()")
            if not self._data_is_told:
                logging.warning("warning: %s; further such batches are not told", told)
            self._data_is_told = True
            return False
        return self._is_good(self.steps, f"{where}: the gradient of", position, largest)

    def update_is_good(self, where: str, update: Sequence[np.ndarray], largest: float = math.inf) -> bool:
        """Returns whether a model update is finite, and its weights are of at most this magnitude. Raises JobError
        after too many bad updates in a row."""
        if not self.are_on:
            return True
        position = first_not_finite(update, largest, len(self._parameters.names))
        return self._is_good(self.updates, f"{where}: the update of", position, largest)

    def _is_good(self, counted: BadSteps, which: str, position: int | None, largest: float) -> bool:
        """Counts a step or an update; warns of a bad one, whose array at this position is not finite."""
        if position is None:
            counted.good()
            return True
        layer = [*self._parameters.names, "the statistics"][position]
        what = NOT_FINITE if math.isinf(largest) else f"{NOT_FINITE}, or above {largest:g}: too much for float16"
        logging.warning("warning: %s", counted.bad(f"{which} {layer} {what}"))
        return False
