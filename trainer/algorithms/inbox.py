"""What the workers have uploaded since the last merge (decoupled.py): pure, without MXNet."""

from collections.abc import Sequence
from typing import Any

from config import Config
from utils import SetupError


class Inbox:
    """The uploads of one worker."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.arrays: list[Any] = []  # D_k, the sum of the updates of the weights; then the newest statistics
        self.samples = self.steps = 0  # S_k, T_k: of all uploads

    def add(self, arrays: Sequence[Any], num_weights: int, samples: int, steps: int) -> None:
        """An upload of `samples` samples in `steps` steps; of its arrays the first `num_weights` are of weights."""
        before = self.arrays or [0] * num_weights
        sums = [old + new for old, new in zip(before, arrays[:num_weights], strict=False)]
        self.arrays = [*sums, *(array.copy() for array in arrays[num_weights:])]
        self.samples += samples
        self.steps += steps

    @property
    def weight(self) -> float:
        """Samples times samples a step; 0: it is empty."""
        return self.samples * (self.samples / self.steps) if self.steps else 0.0


def mean_of(inboxes: Sequence[Inbox]) -> list[Any]:
    """The weighed mean of the arrays; at least one inbox is not empty."""
    full = [inbox for inbox in inboxes if inbox.weight]
    total = sum(inbox.weight for inbox in full)
    return [
        sum(inbox.weight / total * array for inbox, array in zip(full, arrays, strict=True))
        for arrays in zip(*(inbox.arrays for inbox in full), strict=True)
    ]


def check_flags(config: Config, num_workers: int | None) -> None:
    """Raises SetupError if the quorum is more than all workers."""
    if num_workers is not None and config.quorum > num_workers:
        raise SetupError(
            f"--quorum {config.quorum} is more than the {num_workers} worker(s) of this job, so no model would be "
            f"merged: give a number from 1 to {num_workers}, or 0 for more than half of them"
        )
