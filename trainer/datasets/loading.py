"""Reads datasets into memory. Needs numpy only."""

import gzip
import hashlib
import math
import zlib
from collections.abc import Callable
from functools import lru_cache, partial
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from trainer.datasets import FASHION_MNIST_SHA256, cifar, plausible
from trainer.datasets.samples import Dataset, Samples, checked_labels, is_file
from utils import SetupError, remedy

MNIST_CLASSES = 10  # and Fashion-MNIST's
PIECE = 1 << 20  # bytes that are read at a time


def load(name: str, data_dir: str) -> Dataset:
    """Reads a dataset (a name of config.DATASETS) from its folder below `data_dir`. Raises SetupError if a file is
    missing, damaged, not readable, or not the right one. The message names it and what to do."""
    try:
        dataset = _LOADERS[name](Path(data_dir))
    except PermissionError as error:
        what_to_do = remedy("let this user read it")
        raise SetupError(f"{error.filename} cannot be read: {error.strerror}; {what_to_do}") from None
    if fault := plausible.fault_of(dataset):
        raise SetupError(f"{name} in {data_dir}: {fault}")
    return dataset


@lru_cache(maxsize=1)
def load_once(name: str, data_dir: str) -> tuple[Dataset, str]:
    """As `load`, with what is doubtful about the dataset: once in a process, and in those that are forked from it."""
    dataset = load(name, data_dir)
    return dataset, plausible.doubts(name, dataset)


# --------------------------------------------------------------------------------------- MNIST's IDX files


def _idx_dataset(folder: Path, checksums: dict[str, str], source: str) -> Dataset:
    train_images, train_labels, test_images, test_labels = (
        _idx_array(folder, file, checksum, source) for file, checksum in checksums.items()
    )
    train, test = _samples(train_images, train_labels, folder), _samples(test_images, test_labels, folder)
    return Dataset(train, test, MNIST_CLASSES)


def _samples(images: np.ndarray, labels: np.ndarray, folder: Path) -> Samples:
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not len(images):
        raise SetupError(
            f"{folder}: images of shape {images.shape} and labels of shape {labels.shape} are no samples: give as many "
            "labels as images, at least one, in the files of the published names"
        )
    return Samples(images[:, np.newaxis], checked_labels(labels, MNIST_CLASSES, folder))


def _idx_array(folder: Path, file: str, checksum: str, source: str) -> np.ndarray:
    path = next((path for path in (folder / f"{file}.gz", folder / file) if is_file(path)), None)
    if path is None:
        raise SetupError(f"{folder / file}.gz is not there; {source}")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as opened:
            shape, content = _idx_content(opened)
    except (OSError, EOFError, zlib.error) as error:
        raise SetupError(f"{path} is damaged ({error}); {source}") from None
    found = hashlib.sha256(content).hexdigest()
    fashion = next((name for name, its in FASHION_MNIST_SHA256.items() if its == found), "")
    if fashion and checksum != found:
        raise SetupError(f"{path} is Fashion-MNIST's {fashion}, by the SHA-256 of its content; {source}")
    if checksum and checksum != found:
        raise SetupError(f"{path} is not the published file (its SHA-256 differs); {source}")
    if shape and len(content) == 4 + 4 * len(shape) + math.prod(shape):
        return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * len(shape)).reshape(shape)
    raise SetupError(f"{path} is not an IDX file of bytes, one or three dimensions; {source}")


def _idx_content(file: BufferedIOBase) -> tuple[tuple[int, ...], bytes]:
    """Shape and bytes of a file in the form IDX, and one byte more where there are more: a small file in the form gzip
    can have more than the memory takes. The shape is empty where the file is none of bytes in one or three dimensions.
    """
    # Two zero bytes, the type (8 is uint8), the number of dimensions, then each as a big-endian uint32.
    content = file.read(4)
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) == 4 else 0
    if dimensions not in (1, 3):
        return (), content
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        return (), content + sizes
    shape = tuple(int(size) for size in np.frombuffer(sizes, dtype=">u4"))
    parts, left = [content, sizes], math.prod(shape) + 1
    while left and (part := file.read(min(left, PIECE))):
        parts.append(part)
        left -= len(part)
    return shape, b"".join(parts)


_LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "fashion-mnist": lambda data_dir: _idx_dataset(
        data_dir / "fashion-mnist",
        FASHION_MNIST_SHA256,
        remedy(
            "get it with scripts/get_data.sh, or name its parent with -dd",
            'get it on the host with scripts/get_data.sh, and mount it: docker run -v "$PWD/data:/esync/data:ro"',
        ),
    ),
    "mnist": lambda data_dir: _idx_dataset(
        data_dir / "mnist",
        dict.fromkeys(FASHION_MNIST_SHA256, ""),
        "put MNIST's four *-ubyte.gz files there, or name its parent with -dd (Fashion-MNIST's: --dataset "
        "fashion-mnist)",
    ),
    "cifar10": partial(cifar.load, cifar.CIFAR10),
    "cifar100": partial(cifar.load, cifar.CIFAR100),
}
