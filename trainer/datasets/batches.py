"""What a worker draws its batches from: endless, in a seeded order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trainer.parameters import array_of
from trainer.passes import Batch
from utils import SetupError

if TYPE_CHECKING:
    from trainer.datasets.feed import Feed
    from trainer.datasets.sources import Raw, Source

_STREAM = 1  # follows the seed of a worker's order, which is the same with random changes of the samples and without


class Batches(Protocol):
    """An endless source of a worker's batches."""

    def __next__(self) -> Batch:
        """The next batch."""

    def put_back(self, batch: Batch) -> None:
        """Takes back a batch that was drawn and not trained on; it is the next one again."""

    def draw_from(self, indices: np.ndarray) -> None:
        """From now on batches are of these samples (n_k,)."""

    def resize(self, batch_size: int) -> None:
        """Sets the size of the batches to come; the order of the samples does not depend on it."""

    def look(self, number: int) -> Iterator[Batch]:
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
        self, source: Source, feed: Feed, indices: np.ndarray, batch_size: int, seed: int | tuple[int, ...]
    ) -> None:
        """
        Args:
            indices: of the samples (n_k,) to draw from.
        """
        self._source = source
        self._feed = feed
        self._batch_size = batch_size
        self._random = np.random.default_rng(seed)
        self._changes = np.random.default_rng((*(seed if isinstance(seed, tuple) else (seed,)), _STREAM))
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
        self._returned: list[Batch] = []

    def resize(self, batch_size: int) -> None:
        self._batch_size = batch_size

    def look(self, number: int) -> Iterator[Batch]:
        random = np.random.default_rng(0)
        for _ in range(number):
            yield self._feed(self._source.take(random.choice(self._indices, self._batch_size)))

    def state(self) -> dict[str, Any]:
        return {
            "order": self._order,
            "random": self._random.bit_generator.state,
            "augment": self._changes.bit_generator.state,
            "batch_size": self._batch_size,
            "returned": [
                [[array.asnumpy() for array in part] for part in (batch.inputs, batch.targets)]
                for batch in self._returned
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._order = state["order"]
        self._random.bit_generator.state = state["random"]
        if state["augment"]:
            self._changes.bit_generator.state = state["augment"]
        self._batch_size = state["batch_size"]
        self._returned = [
            self._feed.placed(tuple(map(array_of, inputs)), tuple(map(array_of, targets)))
            for inputs, targets in state["returned"]
        ]

    def __iter__(self) -> EndlessBatches:
        return self

    def put_back(self, batch: Batch) -> None:
        self._returned.append(batch)

    def __next__(self) -> Batch:
        if self._returned:
            return self._returned.pop()
        while len(self._order) < self._batch_size:
            self._order = np.concatenate([self._order, self._random.permutation(self._indices)])
        chosen, self._order = np.split(self._order, [self._batch_size])
        return self._feed(self._source.take(chosen), self._changes)


class StreamedBatches:
    """Batches that a job file's stream makes. Its position is the number of batches that were drawn."""

    def __init__(self, begin: Callable[[], Iterator[Raw]], feed: Feed, seed: tuple[int, ...]) -> None:
        """
        Args:
            begin: begins the stream; the same one each time.
        """
        self._begin = begin
        self._feed = feed
        self._changes = np.random.default_rng((*seed, _STREAM))
        self._stream = begin()
        self._drawn = 0
        self._returned: list[Batch] = []

    def __next__(self) -> Batch:
        if self._returned:
            return self._returned.pop()
        try:
            raw = next(self._stream)
        except StopIteration:
            raise SetupError(
                f"the stream of the training samples ended after {self._drawn} batches: make it endless, or give arrays"
            ) from None
        self._drawn += 1
        return self._feed(raw, self._changes)

    def put_back(self, batch: Batch) -> None:
        self._returned.append(batch)

    def draw_from(self, indices: np.ndarray) -> None: ...

    def resize(self, batch_size: int) -> None:
        raise SetupError("this mode chooses the size of batches, and a stream makes its own: give arrays or a Dataset")

    def look(self, number: int) -> Iterator[Batch]:
        return (self._feed(raw) for raw in itertools.islice(self._begin(), number))

    def state(self) -> dict[str, Any]:
        return {
            "drawn": self._drawn - len(self._returned),
            "augment": self._changes.bit_generator.state,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Draws and drops the batches up to the position."""
        for _ in itertools.islice(self._stream, state["drawn"]):
            pass
        self._drawn = state["drawn"]
        self._changes.bit_generator.state = state["augment"]


class CountedBatches:
    """Batches without samples, to be counted: a loop of one's own loads them, or the network computes nothing."""

    def __init__(self, batch_size: int) -> None:
        self.resize(batch_size)

    def __next__(self) -> Batch:
        return self._batch

    def put_back(self, batch: Batch) -> None: ...
    def draw_from(self, indices: np.ndarray) -> None: ...

    def resize(self, batch_size: int) -> None:
        self._batch = Batch((), (), batch_size)

    def look(self, number: int) -> Iterator[Batch]:
        return itertools.repeat(self._batch, number)

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None: ...
