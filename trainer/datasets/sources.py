"""The samples of a part of the data, in any form in which a job has them: arrays, a Dataset, a stream. Numpy only."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, NamedTuple

import numpy as np

from trainer.network import is_tensor, numpy_of, single
from utils import SetupError

WHOLE_BYTES = 256 << 20  # arrays up to this size are hashed whole
HASHED_SAMPLES = 1000  # of larger arrays
HASHED_ITEMS = 100  # of a Dataset, whose samples may have to be decoded
Batchify = Callable[[list[Any]], tuple[Any, Any]]


class Raw(NamedTuple):
    """Samples as the data has them: inputs and targets, each one array (N, ...) or a tuple of several; and N."""

    inputs: Any
    targets: Any
    size: int


class Arrays:
    """Inputs and targets as arrays, memory-mapped ones too, as sequences of samples of any length, or as tuples of
    several of these."""

    def __init__(self, inputs: Any, targets: Any, batchify: Batchify | None = None) -> None:
        """`batchify` makes a batch of a list of (input, target). Raises SetupError if they are no samples, or not
        equally many."""
        self.inputs, self.targets, self._batchify = _parts(inputs), _parts(targets), batchify
        counts = {"inputs": [*map(_count, self.inputs)], "targets": [*map(_count, self.targets)]}
        if len({count for each in counts.values() for count in each}) != 1:
            told = " and ".join(f"{name} of {', '.join(map(str, each)) or 'no'}" for name, each in counts.items())
            raise SetupError(f"{told} samples: give equally many")

    def __len__(self) -> int:
        return _count(self.inputs[0])

    def take(self, chosen: np.ndarray | slice) -> Raw:
        """The samples of these numbers (n,)."""
        both = self.inputs, self.targets
        if self._batchify is None:
            inputs, targets = (single(tuple(_chosen(array, chosen) for array in part)) for part in both)
            return Raw(inputs, targets, len(range(len(self))[chosen]) if isinstance(chosen, slice) else len(chosen))
        numbers = np.arange(len(self))[chosen]
        samples = [tuple(single(tuple(array[number] for array in part)) for part in both) for number in numbers]
        return _batch(self._batchify, samples)

    def hash_into(self, digest: hashlib._Hash) -> bool:
        """Adds the content, or a sample of it; returns whether other processes can find the same."""
        for array in (*self.inputs, *self.targets):
            if is_tensor(array):
                array = numpy_of(array)
            if not isinstance(array, np.ndarray):
                for number in _some(len(array), HASHED_SAMPLES):
                    digest.update(_content(array[number]))
            elif array.nbytes <= WHOLE_BYTES:
                _hash_array(digest, array)
            else:
                digest.update(repr((array.shape, array.dtype.str, array.nbytes)).encode())
                _hash_array(digest, array[_some(len(array), HASHED_SAMPLES)])
        return True


class Items:
    """A Dataset of gluon or torch, or what else has a length and items that are samples: inputs and a last target."""

    def __init__(self, items: Any, batchify: Batchify | None = None) -> None:
        self._items = items
        self._batchify = batchify or _stacked

    def __len__(self) -> int:
        return len(self._items)

    def take(self, chosen: np.ndarray | slice) -> Raw:
        return self.made([self._items[int(number)] for number in np.arange(len(self))[chosen]])

    def made(self, samples: list[Any]) -> Raw:
        """A batch of samples."""
        return _batch(self._batchify, samples)

    def hash_into(self, digest: hashlib._Hash) -> bool:
        """Items whose transforms are random differ from one reading to the next, and only their number is compared."""
        digest.update(str(len(self)).encode())
        numbers = _some(len(self), HASHED_ITEMS)
        first, again = (_content(self._items[int(numbers[0])]) for _ in range(2))
        if first != again:
            return False
        for number in numbers:
            digest.update(_content(self._items[int(number)]))
        return True


class Subset:
    """Some samples of another source."""

    def __init__(self, source: Source, numbers: np.ndarray) -> None:
        self._source = source
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, chosen: np.ndarray | slice) -> Raw:
        return self._source.take(self._numbers[chosen])

    def hash_into(self, digest: hashlib._Hash) -> bool:
        digest.update(self._numbers.tobytes())
        return self._source.hash_into(digest)


Source = Arrays | Items | Subset  # samples with numbers from 0 on


class Stream:
    """Batches that a function makes, for data without numbers."""

    def __init__(self, begin: Callable[[int, int, int], Any]) -> None:
        """`begin`: (rank, num_workers, seed) -> batches, each a pair of inputs and targets."""
        self._begin = begin

    def batches(self, rank: int, num_workers: int, seed: int) -> Iterator[Raw]:
        """Yields the batches of a worker. Raises SetupError if a batch is no pair."""
        batches = self._begin(rank, num_workers, seed)
        if not isinstance(batches, Iterable):
            raise SetupError(f"the function of a stream gives {described(batches)}: yield batches (inputs, targets)")
        for batch in batches:
            if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                raise SetupError(f"a stream yields pairs (inputs, targets), not {described(batch)}")
            yield Raw(batch[0], batch[1], _count(_parts(batch[1])[0]))


def source_of(data: Any, batchify: Batchify | None = None) -> Source | Stream:
    """A part of the data in the form in which a job gives it. Raises SetupError if it has none of the forms, or no
    samples."""
    source: Source | Stream
    if isinstance(data, tuple) or (isinstance(data, list) and len(data) == 2):
        if len(data) != 2:
            raise SetupError(f"{described(data)} is no pair (inputs, targets)")
        source = Arrays(data[0], data[1], batchify)
    elif (
        hasattr(data, "__len__")
        and hasattr(data, "__getitem__")
        and not hasattr(data, "shape")  # inputs alone, or a table of another library
        and not isinstance(data, (Mapping, str))
    ):
        source = Items(data, batchify)
    elif callable(data):
        return Stream(data)
    else:
        raise SetupError(
            f"{described(data)} is no pair (inputs, targets) of arrays, no Dataset, no DataLoader and no function "
            "(rank, num_workers, seed) -> batches"
        )
    if not len(source):
        raise SetupError("there are no samples")
    return source


def hash_of(parts: Sequence[Source]) -> str:
    """SHA-256 of the samples, cut to the length for a message; empty where processes cannot compare them."""
    digest = hashlib.sha256()
    return digest.hexdigest()[:16] if all(part.hash_into(digest) for part in parts) else ""


def described(value: Any) -> str:
    """A value's kind in words, such as "a tuple of 3"."""
    shape = getattr(value, "shape", None)
    size = (
        f" of shape {tuple(shape)}" if shape is not None else f" of {len(value)}" if hasattr(value, "__len__") else ""
    )
    return "None" if value is None else f"a {type(value).__name__}{size}"


def _parts(value: Any) -> tuple[Any, ...]:
    """One array or a tuple of several, as a tuple; arrays of other libraries than torch become numpy's."""
    return tuple(map(_array, value)) if isinstance(value, tuple) else (_array(value),)


def _array(value: Any) -> Any:
    if isinstance(value, list) and value and isinstance(value[0], Number):
        return np.asarray(value)
    if isinstance(value, (np.ndarray, list)) or is_tensor(value):
        return value  # tensors too, which prepare() and batchify() get as they are
    if hasattr(value, "asnumpy"):  # MXNet's
        return value.asnumpy()
    return np.asarray(value) if hasattr(value, "__array__") else value


def _count(array: Any) -> int:
    try:
        return len(array)
    except TypeError:
        raise SetupError(f"{described(array)} has no samples: give an array (N, ...)") from None


def _chosen(array: Any, chosen: np.ndarray | slice) -> Any:
    if isinstance(array, np.ndarray) or isinstance(chosen, slice) or is_tensor(array):
        return array[chosen]
    return [array[number] for number in chosen]


def _some(total: int, most: int) -> np.ndarray:
    """Numbers of all samples, or of `most` seeded ones, ascending."""
    return np.arange(total) if total <= most else np.sort(np.random.default_rng(0).choice(total, most, replace=False))


def _hash_array(digest: hashlib._Hash, array: np.ndarray) -> None:
    if array.dtype.kind in "mM":  # dates are in no buffer
        array = array.view(np.int64)
    if array.dtype != np.uint8:
        digest.update(repr((array.shape, array.dtype.str)).encode())
    digest.update(pickle.dumps(array) if array.dtype == object else np.ascontiguousarray(array).data)


def _content(item: Any) -> bytes:
    """An item's numbers, for a comparison."""
    if isinstance(item, (tuple, list)):
        return b"".join(map(_content, item))
    array = numpy_of(item)
    content = pickle.dumps(item) if array.dtype == object else array.tobytes()
    return repr((array.shape, array.dtype.str)).encode() + content


def _batch(batchify: Batchify, samples: list[Any]) -> Raw:
    made = batchify(samples)
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        raise SetupError(f"batchify() returns {described(made)}: return (inputs, targets)")
    return Raw(made[0], made[1], len(samples))


def _stacked(samples: list[Any]) -> tuple[Any, Any]:
    """A batch of equally large samples (inputs..., target)."""
    first = samples[0]
    if not isinstance(first, (tuple, list)) or len(first) < 2:
        raise SetupError(
            f"the items of a Dataset are tuples (input, target), not {described(first)}; write batchify(samples) for "
            "others"
        )
    try:
        *inputs, targets = (np.stack([_array(value) for value in column]) for column in zip(*samples, strict=True))
    except ValueError as error:
        raise SetupError(f"samples cannot be stacked ({error}): write batchify(samples)") from None
    return single(tuple(inputs)), targets
