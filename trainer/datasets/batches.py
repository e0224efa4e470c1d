"""A worker's batches, endless, in a seeded order: samples on its device, in the network's form."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from trainer.datasets.sources import Raw, Source, described
from trainer.draws import BATCH, Draws, seed_all
from trainer.network import Batch, numpy_of
from utils import SetupError

# (inputs, targets, generator of random changes in training; None in an evaluation) -> (inputs, targets)
Prepare = Callable[[Any, Any, "np.random.Generator | None"], tuple[Any, Any]]
_STREAM = 1  # follows the seed of a worker's order, which is the same with random changes of the samples and without


class Feed:
    """Prepares samples and brings them to the device. A network's own is of its library; this one has numpy's arrays
    of float32."""

    def __init__(self, prepare: Prepare | None = None, seed: Callable[[int], object] = lambda number: None) -> None:
        """`seed` seeds the generator of the library in whose arrays the samples come."""
        self._prepare, self.seed = prepare, seed

    def __call__(self, raw: Raw, random: np.random.Generator | None = None) -> Batch:
        """The batch of some samples; `random` draws their changes in training."""
        inputs, targets = raw.inputs, raw.targets
        if self._prepare is not None:
            inputs, targets = self._prepare(inputs, targets, random)
        return self.placed(inputs, targets, raw.size)

    def placed(self, inputs: Any, targets: Any, size: int = 0) -> Batch:
        """Brings arrays of numbers to the device: those of the library as they are. Raises SetupError if one of them is
        no array of numbers."""
        own, wanted = (
            tuple(map(self._placed, each if isinstance(each, tuple) else (each,))) for each in (inputs, targets)
        )
        return Batch(own, wanted, size or len(wanted[0]))

    def exactly(self, array: np.ndarray) -> Any:
        """An array of the library, of the same type."""
        return array

    def of_numbers(self, array: np.ndarray) -> Any:
        """An array of the library, of the type that the network wants."""
        with np.errstate(over="ignore"):  # infinity is told where it matters
            return self.exactly(np.ascontiguousarray(array, np.float32))

    def own(self, value: Any) -> Any:
        """A value that is an array of the library already, on the device; None for others."""

    def _placed(self, value: Any) -> Any:
        if (own := self.own(value)) is not None:
            return own
        try:
            return self.of_numbers(numpy_of(value))
        except (TypeError, ValueError) as error:
            raise SetupError(
                f"samples that are {described(value)} are no numbers of one shape ({error}): make them that in "
                "prepare(inputs, targets) or batchify(samples)"
            ) from None


class Batches:
    """An endless source of a worker's batches. This one makes none, but counts them: a loop of the user's own loads its
    samples, or the network computes nothing."""

    def __init__(self, batch_size: int) -> None:
        self.resize(batch_size)

    def __next__(self) -> Batch:
        """The next batch."""
        return self._batch

    def prepare(self) -> None:
        """Makes the next batch, if it is not there: while the device computes, this takes no time of the training."""

    def put_back(self, batch: Batch) -> None:
        """Takes back a batch that was drawn and not trained on; it is the next one again."""

    def draw_from(self, indices: np.ndarray) -> None:
        """From now on batches are of these samples (n_k,), where they have numbers."""

    def resize(self, batch_size: int) -> None:
        """Sets the size of the batches to come; the order of the samples does not depend on it."""
        self._batch = Batch((), (), batch_size)

    def look(self, number: int) -> Iterator[Batch]:
        """Yields the same `number` batches each time, and does not change the batches to be trained on."""
        return itertools.repeat(self._batch, number)

    def state(self) -> dict[str, Any]:
        """The position, as plain values and arrays."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Returns to the position of `state`, with the same samples."""


class _MadeBatches(Batches):
    """Batches that are made one after the other, the next one perhaps before it is asked for."""

    def __init__(self, feed: Feed, seed: int | tuple[int, ...]) -> None:
        self._feed = feed
        seeds = seed if isinstance(seed, tuple) else (seed,)
        self._changes = np.random.default_rng((*seeds, _STREAM))
        self._draws = Draws(feed.seed, *seeds, BATCH)
        self._made = 0  # batches
        self._returned: list[Batch] = []
        self._prepared: Batch | Exception | None = None
        self._place_before: dict[str, Any] = {}  # the prepared one

    def _make(self) -> Batch:
        raise NotImplementedError

    def _place(self) -> dict[str, Any]:
        """The position behind the last batch that was made."""
        raise NotImplementedError

    def prepare(self) -> None:
        if self._prepared is not None or self._returned:
            return
        self._place_before = self._place()
        try:
            self._prepared = self._make()
        except Exception as error:  # the job may end before it needs this batch
            self._prepared = error

    def __next__(self) -> Batch:
        if self._returned:
            return self._returned.pop()
        batch, self._prepared = self._prepared, None
        if isinstance(batch, Exception):
            raise batch
        return batch or self._make()

    def put_back(self, batch: Batch) -> None:
        self._returned.append(batch)

    @property
    def _next_place(self) -> dict[str, Any]:
        return self._place() if self._prepared is None else self._place_before


class EndlessBatches(_MadeBatches):
    """Batches of one size, until `resize`, epoch after epoch, each in a new seeded order. A batch may span two epochs,
    so every sample is used once an epoch and none is dropped."""

    def __init__(
        self,
        source: Source,
        feed: Feed,
        indices: np.ndarray,
        batch_size: int,
        seed: int | tuple[int, ...],
        may_draw: bool = False,
    ) -> None:
        """`indices` are those of the samples (n_k,) to draw from. `may_draw`: the source or the feed may use random
        generators of the process."""
        super().__init__(feed, seed)
        self._draws.are_made = None if may_draw else False
        self._source = source
        self._batch_size = batch_size
        self._random = np.random.default_rng(seed)
        self.draw_from(indices)

    def draw_from(self, indices: np.ndarray) -> None:
        """Begins a new epoch with these samples. Raises SetupError if there are none."""
        if not len(indices):
            raise SetupError("this worker's part of the data is empty: use fewer workers")
        self._drop_prepared()
        self._indices = indices
        self._order = indices[:0]
        self._returned = []

    def resize(self, batch_size: int) -> None:
        if batch_size != self._batch_size:
            self._drop_prepared()
            self._batch_size = batch_size

    def look(self, number: int) -> Iterator[Batch]:
        random = np.random.default_rng(0)
        for _ in range(number):
            if self._draws.are_made:
                seed_all(self._feed.seed, 0)
            yield self._feed(self._source.take(random.choice(self._indices, self._batch_size)))

    def state(self) -> dict[str, Any]:
        return {
            **self._next_place,
            "batch_size": self._batch_size,
            "returned": [
                [[*map(numpy_of, part)] for part in (batch.inputs, batch.targets)] for batch in self._returned
            ],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._prepared = None
        self._go_to(state)
        self._batch_size = state["batch_size"]
        copies = ([tuple(map(self._feed.exactly, part)) for part in batch] for batch in state["returned"])
        self._returned = [self._feed.placed(inputs, targets) for inputs, targets in copies]

    def _place(self) -> dict[str, Any]:
        return {
            "order": self._order,
            "random": self._random.bit_generator.state,
            "augment": self._changes.bit_generator.state,
            "made": self._made,
        }

    def _go_to(self, place: Mapping[str, Any]) -> None:
        self._order, self._made = place["order"], place.get("made", 0)
        self._random.bit_generator.state = place["random"]
        if place["augment"]:
            self._changes.bit_generator.state = place["augment"]

    def _drop_prepared(self) -> None:
        if self._prepared is not None:
            self._prepared = None
            self._go_to(self._place_before)

    def _make(self) -> Batch:
        while len(self._order) < self._batch_size:
            self._order = np.concatenate([self._order, self._random.permutation(self._indices)])
        chosen, self._order = np.split(self._order, [self._batch_size])
        self._made += 1
        self._draws.seed(self._made, lambda: self._feed(self._source.take(chosen), deepcopy(self._changes)).arrays)
        return self._feed(self._source.take(chosen), self._changes)


class StreamedBatches(_MadeBatches):
    """Batches that a job file's stream makes. Its position is the number of batches that were drawn."""

    def __init__(self, begin: Callable[[], Iterator[Raw]], feed: Feed, seed: tuple[int, ...]) -> None:
        """`begin` begins the stream, the same one each time."""
        super().__init__(feed, seed)
        self._begin, self._key = begin, seed
        self._begin_anew()

    def _begin_anew(self) -> None:
        seed_all(self._feed.seed, *self._key, BATCH)
        self._stream = self._begin()

    def _make(self) -> Batch:
        seed_all(self._feed.seed, *self._key, BATCH, self._made)
        try:
            raw = next(self._stream)
        except StopIteration:
            raise SetupError(
                f"the stream of the training samples ended after {self._made} batches: make it endless, or give arrays"
            ) from None
        self._made += 1
        return self._feed(raw, self._changes)

    def _place(self) -> dict[str, Any]:
        return {"drawn": self._made, "augment": self._changes.bit_generator.state}

    def look(self, number: int) -> Iterator[Batch]:
        return (self._feed(raw) for raw in itertools.islice(self._begin(), number))

    def state(self) -> dict[str, Any]:
        place = self._next_place
        return place | {"drawn": place["drawn"] - len(self._returned)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Draws and drops the batches up to the position."""
        if self._made:
            self._prepared = None
            self._begin_anew()
        for self._made in range(state["drawn"]):
            seed_all(self._feed.seed, *self._key, BATCH, self._made)
            next(self._stream, None)
        self._made = state["drawn"]
        self._changes.bit_generator.state = state["augment"]
