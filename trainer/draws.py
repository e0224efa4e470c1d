"""Random numbers that a user's code or a layer draws from the generators of the process: of the network's library,
numpy's, Python's.

MXNet's cannot be saved, and in virtual time all workers share them. So they are seeded before each piece of work that
draws, by the job, the worker and the work: a resumed job draws the same as one that was never stopped."""

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer.network import numpy_of

FORWARD, BATCH = range(2)  # kinds of work


def seed_all(library: Callable[[int], object], *key: int) -> None:
    """Seeds the generators of the process; `library` that of the network's (Network.seed). MXNet's takes 1.4 ms."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    library(seed >> 1)  # signed


class Draws:
    """Seeds the generators before pieces of work of one kind, if these draw at all."""

    def __init__(self, library: Callable[[int], object], *key: int) -> None:
        self._library, self._key = library, key
        self.are_made: bool | None = None  # None: not known yet

    def seed(self, number: int, work: Callable[[], Sequence[Any]]) -> None:
        """Called before each piece of work. `work` does the same and changes nothing; the first time it is tried."""
        if self.are_made is None:
            results = []
            for seed in range(2):
                seed_all(self._library, seed)
                results.append([numpy_of(array).copy() for array in work()])
            self.are_made = not all(map(np.array_equal, *results))
        if self.are_made:
            seed_all(self._library, *self._key, number)
