"""What a worker draws its batches from: endless, in a seeded order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainer.datasets.samples import Samples
from utils import SetupError

if TYPE_CHECKING:
    from trainer.datasets.augment import CropAndFlip


class Batches(Protocol):
    """An endless source of a worker's batches."""

    def __next__(self) -> Samples:
        """The next batch."""

    def put_back(self, batch: Samples) -> None:
        """Takes back a batch that was drawn and not trained on; it is the next one again."""

    def draw_from(self, indices: np.ndarray) -> None:
        """From now on batches are of these samples (n_k,)."""

    def resize(self, batch_size: int) -> None:
        """Sets the size of the batches to come; the order of the samples does not depend on it."""

    def look(self, number: int) -> Iterator[Samples]:
        """Yields the same `number` batches each time, and does not change the batches to be trained on."""

    def state(self) -> dict[str, Any]:
        """The position, as plain values and arrays."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Returns to the position of `state`, with the same samples."""


class EndlessBatches:
    """Batches of one size, until `resize`, epoch after epoch, each in a new seeded order.

    A batch may span two epochs, so every sample is used once an epoch and none is dropped.
    """

    def __init__(
        self,
        samples: Samples,
        indices: np.ndarray,
        batch_size: int,
        seed: int | tuple[int, ...],
        augment: CropAndFlip | None = None,
    ) -> None:
        """
        Args:
            indices: of the samples (n_k,) to draw from.
            augment: changes the images of each new batch.
        """
        self._samples = samples
        self._batch_size = batch_size
        self._random = np.random.default_rng(seed)
        self._augment = augment
        self.draw_from(indices)

    def draw_from(self, indices: np.ndarray) -> None:
        """Begins a new epoch with these samples.

        Raises:
            SetupError: there are none.
        """
        if not len(indices):
            raise SetupError("this worker's part of the data is empty: use fewer workers")
        self._indices = indices
        self._order = indices[:0]
        self._returned: list[Samples] = []

    def resize(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def look(self, number: int) -> Iterator[Samples]:
        random = np.random.default_rng(0)
        for _ in range(number):
            chosen = random.choice(self._indices, self._batch_size)
            yield Samples(self._samples.images[chosen], self._samples.labels[chosen])

    def state(self) -> dict[str, Any]:
        augment = self._augment.random.bit_generator.state if self._augment else None
        return {
            "order": self._order,
            "random": self._random.bit_generator.state,
            "augment": augment,
            "batch_size": self._batch_size,
            "returned": [list(batch) for batch in self._returned],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._order = state["order"]
        self._random.bit_generator.state = state["random"]
        if self._augment:
            self._augment.random.bit_generator.state = state["augment"]
        self._batch_size = state["batch_size"]
        self._returned = [Samples(*batch) for batch in state["returned"]]

    def __iter__(self) -> EndlessBatches:
        return self

    def put_back(self, batch: Samples) -> None:
        self._returned.append(batch)

    def __next__(self) -> Samples:
        if self._returned:
            return self._returned.pop()
        while len(self._order) < self._batch_size:
            self._order = np.concatenate([self._order, self._random.permutation(self._indices)])
        chosen, self._order = np.split(self._order, [self._batch_size])
        images = self._samples.images[chosen]
        return Samples(self._augment(images) if self._augment else images, self._samples.labels[chosen])
