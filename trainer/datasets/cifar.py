"""CIFAR-10 and CIFAR-100, from their binary and python archives. Needs numpy only."""

import math
import pickle
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainer.datasets.samples import Dataset, Samples, checked_labels, is_file
from utils import SetupError

IMAGE = (3, 32, 32)


class Cifar(NamedTuple):
    """One of the two datasets in its archives. Python files have the names of the binary ones, without ".bin"."""

    title: str
    folders: tuple[str, ...]  # below the data folder, in the order of the search
    train: tuple[str, ...]  # files
    test: str
    classes: int
    label_bytes: int  # in front of each image of a binary file; the last of them is the class
    labels_key: str  # of a python file

    def file(self, folder: Path, name: str, suffix: str) -> Path:
        """The path of a file. Raises SetupError if it is missing."""
        path = folder / f"{name}{suffix}"
        if not is_file(path):
            raise SetupError(f"{path} is not there: unpack the {self.title} archive again")
        return path


CIFAR10 = Cifar(
    "CIFAR-10",
    ("cifar10", "cifar-10-batches-bin", "cifar-10-batches-py"),
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test_batch",
    classes=10,
    label_bytes=1,
    labels_key="labels",
)
CIFAR100 = Cifar(
    "CIFAR-100",
    ("cifar100", "cifar-100-binary", "cifar-100-python"),
    ("train",),
    "test",
    classes=100,
    label_bytes=2,  # coarse, fine
    labels_key="fine_labels",
)


def load(cifar: Cifar, data_dir: Path) -> Dataset:
    """Reads the dataset from the first of its folders that has it. Raises SetupError if a file is missing or damaged.
    The message names it and what to do."""
    candidates = [data_dir / name for name in cifar.folders]
    for folder in candidates:
        for suffix, read in ((".bin", _binary), ("", _python)):
            if is_file(folder / f"{cifar.train[0]}{suffix}"):
                *train, test = (read(cifar, cifar.file(folder, name, suffix)) for name in (*cifar.train, cifar.test))
                joined = Samples(*(np.concatenate(arrays) for arrays in zip(*train, strict=True)))
                return Dataset(joined, test, cifar.classes)
    archives = " or ".join(f"{cifar.title.lower()}-{form}.tar.gz" for form in ("binary", "python"))
    raise SetupError(f"no {cifar.title} batches in {', '.join(map(str, candidates))}: unpack {archives} there")


def _binary(cifar: Cifar, path: Path) -> Samples:
    content = np.fromfile(path, dtype=np.uint8)
    record = cifar.label_bytes + math.prod(IMAGE)
    if not content.size or content.size % record:
        raise SetupError(f"{path} has {content.size} bytes, no multiple of {record}: unpack it again")
    labels, images = np.split(content.reshape(-1, record), [cifar.label_bytes], axis=1)
    return Samples(images.reshape(-1, *IMAGE), checked_labels(labels[:, -1], cifar.classes, path))


# ------------------------------------------------------------------------------------------------ python's form


class _Unfit(Exception):
    """The content is no batch; the message says why."""


def _array(buffer: Any, dtype: np.dtype, shape: tuple[int, ...], order: Any) -> np.ndarray:
    """In place of numpy's function for arrays in pickles of protocol 5."""
    return np.frombuffer(buffer, dtype).reshape(shape, order=order)


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and nothing else: a pickle from the network could run any code."""

    _ALLOWED = frozenset(
        {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
        # numpy 2 calls its core _core.
        | {(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")}
    )
    _ARRAY = frozenset({("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer")})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self._ARRAY:
            return _array
        if (module, name) not in self._ALLOWED:
            raise _Unfit(f"it holds {module}.{name}, which is no array")
        return super().find_class(module, name)


def _python(cifar: Cifar, path: Path) -> Samples:
    """Reads files of Python 2, which wrote the published ones with bytes for keys, and of Python 3."""
    try:
        batch = _unpickled(path)
        if not isinstance(batch, Mapping):
            raise _Unfit(f"it holds a {type(batch).__name__} in place of a dictionary")
        fields = {key.decode("latin-1") if isinstance(key, bytes) else key: value for key, value in batch.items()}
        for key in ("data", cifar.labels_key):
            if key not in fields:
                raise _Unfit(f"it has no {key!r}, but {reprlib.repr(list(fields))}")
        images = _whole_numbers("data", fields["data"])
        labels = _whole_numbers(cifar.labels_key, fields[cifar.labels_key])
        if images.shape[1:] not in (IMAGE, (math.prod(IMAGE),)) or labels.shape != images.shape[:1]:
            raise _Unfit(f"it has data {images.shape} and labels {labels.shape}, not (N, 3072) and (N,)")
        if images.min(initial=0) < 0 or images.max(initial=0) > 255:
            raise _Unfit(f"its pixels are from {images.min()} to {images.max()}, not from 0 to 255")
    except _Unfit as error:
        raise SetupError(
            f"{path} is not a {cifar.title} python batch ({error}): unpack {cifar.title.lower()}-python.tar.gz again"
        ) from None
    return Samples(images.reshape(-1, *IMAGE).astype(np.uint8, copy=False), checked_labels(labels, cifar.classes, path))


def _unpickled(path: Path) -> Any:
    with path.open("rb") as file:
        try:
            return _ArrayUnpickler(file, encoding="bytes").load()
        except (_Unfit, OSError):
            raise
        except Exception:  # a damaged pickle raises anything
            raise _Unfit("it is damaged, cut off or no pickle at all") from None


def _whole_numbers(key: str, value: Any) -> np.ndarray:
    try:
        array = np.asarray(value)
    except ValueError:  # rows of several lengths
        array = np.array(None)
    if array.dtype.kind not in "iu" or not array.ndim or not array.size:
        raise _Unfit(f"its {key!r} are not whole numbers")
    return array
