"""What the workers have uploaded since the last merge (decoupled.py): pure, without MXNet."""

from collections.abc import Sequence

import numpy as np

from trainer.steps import pieces


class Inbox:
    """The uploads of one worker."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.arrays: list[np.ndarray] = []  # D_k, the sum of the updates of the weights; then the newest statistics
        self.samples = self.steps = 0  # S_k, T_k: of all uploads

    def add(self, arrays: Sequence[np.ndarray], num_weights: int, samples: int, steps: int) -> None:
        """Takes the arrays of an upload of `samples` samples in `steps` steps; the first `num_weights` are of
        weights."""
        for total, new in zip(self.arrays[:num_weights], arrays, strict=False):
            total += new
        self.arrays = [*(self.arrays or arrays)[:num_weights], *arrays[num_weights:]]
        self.samples += samples
        self.steps += steps

    @property
    def weight(self) -> float:
        """Samples times samples a step; 0: it is empty."""
        return self.samples * (self.samples / self.steps) if self.steps else 0.0


def mean_of(inboxes: Sequence[Inbox]) -> list[np.ndarray]:
    """The weighted mean of the arrays, in the memory of one inbox; at least one is not empty."""
    full = [inbox for inbox in inboxes if inbox.weight]
    total = sum(inbox.weight for inbox in full)
    for arrays in zip(*(inbox.arrays for inbox in full), strict=True):
        for first, *others in pieces(*arrays):
            first *= full[0].weight / total
            for inbox, other in zip(full[1:], others, strict=True):
                first += inbox.weight / total * other
    return full[0].arrays
