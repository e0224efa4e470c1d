"""Datasets read into memory, their partition over the workers, and seeded endless batches. Needs numpy only."""

from __future__ import annotations

import gzip
import hashlib
import math
import pickle
import stat
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from trainer.augment import CropAndFlip
from utils import RUN_AS_OWNER, SetupError, remedy

# SHA-256 of the uncompressed content: distributions compress the same files anew.
FASHION_MNIST_SHA256 = {
    "train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
MNIST_FILES = dict.fromkeys(FASHION_MNIST_SHA256, "")
MNIST_CLASSES = 10  # and Fashion-MNIST's
WHITE = 255  # of a pixel; networks see it as 1


class Samples(NamedTuple):
    """Images (N, C, H, W) as uint8 from 0 to 255, and their classes (N,) as uint8."""

    images: np.ndarray
    labels: np.ndarray


class Dataset(NamedTuple):
    """The two parts of a dataset, and how many classes it has."""

    train: Samples
    test: Samples
    classes: int


def load(name: str, data_dir: str) -> Dataset:
    """Reads a dataset (a name of config.DATASETS) from its folder below `data_dir`.

    Raises:
        SetupError: a file is missing, damaged or forbidden. The message names it and what to do.
    """
    try:
        return _LOADERS[name](Path(data_dir))
    except PermissionError as error:
        what_to_do = remedy("let this user read it", RUN_AS_OWNER)
        raise SetupError(f"{error.filename} cannot be read: {error.strerror}; {what_to_do}") from None


HELD_OUT_SEED = 0  # not the job's: runs with other seeds are evaluated on the same samples


def hold_out(dataset: Dataset, count: int) -> Dataset:
    """The same with a test part of its own: the last `count` training samples of a seeded permutation, which are left
    out of the training part. So step sizes can be chosen while nobody looks at the test set.

    Raises:
        SetupError: nothing would be left to train on.
    """
    total = len(dataset.train.labels)
    if count >= total:
        raise SetupError(f"--validation {count} leaves nothing of the {total} training samples: hold out fewer")
    order = np.random.default_rng(HELD_OUT_SEED).permutation(total)
    kept, held = (
        Samples(*(part[np.sort(chosen)] for part in dataset.train)) for chosen in (order[:-count], order[-count:])
    )
    return dataset._replace(train=kept, test=held)


def sha256(arrays: Iterable[np.ndarray]) -> str:
    """A hash of the content of arrays, one after the other."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def content_hash(dataset: Dataset) -> str:
    """Of all that is trained and tested on; short enough for a message."""
    return sha256([*dataset.train, *dataset.test])[:16]


def _is_file(path: Path) -> bool:
    """As `Path.is_file`, which from Python 3.14 on also says no where this user may not look."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


# --------------------------------------------------------------------------------------- MNIST's IDX files


def _idx_dataset(folder: Path, checksums: dict[str, str], source: str) -> Dataset:
    train_images, train_labels, test_images, test_labels = (
        _idx_array(folder, file, checksum, source) for file, checksum in checksums.items()
    )
    train, test = _samples(train_images, train_labels, folder), _samples(test_images, test_labels, folder)
    return Dataset(train, test, MNIST_CLASSES)


def _samples(images: np.ndarray, labels: np.ndarray, folder: Path) -> Samples:
    if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels) or not len(images):
        raise SetupError(f"{folder}: images {images.shape} and labels {labels.shape} do not belong together")
    return Samples(images[:, np.newaxis], _checked_labels(labels, MNIST_CLASSES, folder))


def _checked_labels(labels: np.ndarray, classes: int, path: Path) -> np.ndarray:
    if labels.max(initial=0) >= classes:
        raise SetupError(f"{path}: a label is {labels.max()}; there are {classes} classes, from 0 to {classes - 1}")
    return labels


def _idx_array(folder: Path, file: str, checksum: str, source: str) -> np.ndarray:
    path = next((path for path in (folder / f"{file}.gz", folder / file) if _is_file(path)), None)
    if path is None:
        raise SetupError(f"{folder / file}.gz is not there; {source}")
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise SetupError(f"{path} is damaged ({error}); {source}") from None
    if checksum and hashlib.sha256(content).hexdigest() != checksum:
        raise SetupError(f"{path} is not the published file (its SHA-256 differs); {source}")
    # IDX: two zero bytes, the type (8 is uint8), the number of dimensions, then each as a big-endian uint32.
    dimensions = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    shape = tuple(int(size) for size in np.frombuffer(content[4 : 4 + 4 * dimensions], dtype=">u4"))
    values = np.frombuffer(content, dtype=np.uint8, offset=min(4 + 4 * dimensions, len(content)))
    if not dimensions or values.size != np.prod(shape):
        raise SetupError(f"{path} is not an IDX file of bytes; {source}")
    return values.reshape(shape)


# -------------------------------------------------------------------------------------- CIFAR-10 and CIFAR-100


class _Cifar(NamedTuple):
    """One of the two datasets, as its archives have it. Their python files have the names of the binary ones, without
    ".bin"."""

    title: str
    folders: tuple[str, ...]  # below the data folder, where it is looked for
    train: tuple[str, ...]  # files
    test: str
    classes: int
    label_bytes: int  # in front of each image of a binary file; the last of them is the class
    labels_key: bytes  # of a python file

    def file(self, folder: Path, name: str, suffix: str) -> Path:
        """The path of a file that must be there.

        Raises:
            SetupError: it is not.
        """
        path = folder / f"{name}{suffix}"
        if not _is_file(path):
            raise SetupError(f"{path} is not there: unpack the {self.title} archive again")
        return path


CIFAR_IMAGE = (3, 32, 32)
_CIFAR10 = _Cifar(
    "CIFAR-10",
    ("cifar10", "cifar-10-batches-bin", "cifar-10-batches-py"),
    tuple(f"data_batch_{number}" for number in range(1, 6)),
    "test_batch",
    classes=10,
    label_bytes=1,
    labels_key=b"labels",
)
_CIFAR100 = _Cifar(
    "CIFAR-100",
    ("cifar100", "cifar-100-binary", "cifar-100-python"),
    ("train",),
    "test",
    classes=100,
    label_bytes=2,  # coarse, fine
    labels_key=b"fine_labels",
)


def _cifar_dataset(cifar: _Cifar, data_dir: Path) -> Dataset:
    candidates = [data_dir / name for name in cifar.folders]
    for folder in candidates:
        for suffix, read in ((".bin", _cifar_binary), ("", _cifar_python)):
            if _is_file(folder / f"{cifar.train[0]}{suffix}"):
                *train, test = (read(cifar, cifar.file(folder, name, suffix)) for name in (*cifar.train, cifar.test))
                joined = Samples(*(np.concatenate(arrays) for arrays in zip(*train, strict=True)))
                return Dataset(joined, test, cifar.classes)
    archives = " or ".join(f"{cifar.title.lower()}-{form}.tar.gz" for form in ("binary", "python"))
    raise SetupError(f"no {cifar.title} batches in {', '.join(map(str, candidates))}: unpack {archives} there")


def _cifar_binary(cifar: _Cifar, path: Path) -> Samples:
    content = np.fromfile(path, dtype=np.uint8)
    record = cifar.label_bytes + math.prod(CIFAR_IMAGE)
    if not content.size or content.size % record:
        raise SetupError(f"{path} has {content.size} bytes, no multiple of {record}: unpack it again")
    labels, images = np.split(content.reshape(-1, record), [cifar.label_bytes], axis=1)
    return Samples(images.reshape(-1, *CIFAR_IMAGE), _checked_labels(labels[:, -1].copy(), cifar.classes, path))


class _ArrayUnpickler(pickle.Unpickler):
    """Builds numpy arrays and nothing else: a pickle from the network could run any code."""

    _ALLOWED = frozenset(
        {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
        | {(f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")}
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"{module}.{name} has no place there")
        return super().find_class(module, name)


def _cifar_python(cifar: _Cifar, path: Path) -> Samples:
    try:
        with path.open("rb") as file:
            batch = _ArrayUnpickler(file, encoding="bytes").load()
        images = np.asarray(batch[b"data"], dtype=np.uint8).reshape(-1, *CIFAR_IMAGE)
        labels = np.asarray(batch[cifar.labels_key], dtype=np.uint8)
        if labels.shape != images.shape[:1]:
            raise ValueError(f"{len(images)} images, {len(labels)} labels")
    except (pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError, AttributeError, ImportError) as error:
        raise SetupError(f"{path} is not a {cifar.title} python batch ({error}): unpack it again") from None
    return Samples(images, _checked_labels(labels, cifar.classes, path))


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
        data_dir / "mnist", MNIST_FILES, "put MNIST's four *-ubyte.gz files there, or name its parent with -dd"
    ),
    "cifar10": partial(_cifar_dataset, _CIFAR10),
    "cifar100": partial(_cifar_dataset, _CIFAR100),
}


# ----------------------------------------------------------------------------------- partitions and batches


def partition(labels: np.ndarray, num_workers: int, by_class: bool, seed: int) -> list[np.ndarray]:
    """Indices of the samples of each worker, by rank. Every sample is in exactly one part.

    Parts are equal; where the samples cannot be divided, the first ones have one sample more. i.i.d.: parts of a seeded
    permutation. By class: parts of the samples in the order of their classes, as the published program cuts them.

    Args:
        labels: classes (N,) of all training samples.
    """
    order = np.argsort(labels, kind="stable") if by_class else np.random.default_rng(seed).permutation(len(labels))
    return np.array_split(order, num_workers)


class Batches(Protocol):
    """What a worker draws its batches from."""

    def __next__(self) -> Samples:
        """The next batch; there is always one."""

    def put_back(self, batch: Samples) -> None:
        """Takes back a batch that was drawn and not trained on; it is the next one again."""

    def draw_from(self, indices: np.ndarray) -> None:
        """From now on batches are of these samples (n_k,)."""

    def resize(self, batch_size: int) -> None:
        """From now on batches have so many samples."""

    def look(self, number: int) -> Iterator[Samples]:
        """So many batches of the samples, always the same; those to be trained on stay as they are."""

    def state(self) -> dict[str, Any]:
        """Where it is, as plain values and arrays."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken, of the same samples."""


class EndlessBatches:
    """Batches of one size, until another is asked for, one epoch after the other, each in a new seeded order.

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
            indices: of the samples (n_k,) that are drawn from.
            augment: what is made of the images of each new batch.
        """
        self._samples = samples
        self._batch_size = batch_size
        self._random = np.random.default_rng(seed)
        self._augment = augment
        self.draw_from(indices)

    def draw_from(self, indices: np.ndarray) -> None:
        """From now on the batches come from these samples, in a new epoch.

        Raises:
            SetupError: there are none.
        """
        if not len(indices):
            raise SetupError("this worker's part of the data is empty: use fewer workers")
        self._indices = indices
        self._order = indices[:0]
        self._returned: list[Samples] = []

    def resize(self, batch_size: int) -> None:
        """From now on batches have so many samples; the samples come in the same order whatever the size."""
        self._batch_size = batch_size

    def look(self, number: int) -> Iterator[Samples]:
        """As Batches says."""
        random = np.random.default_rng(0)
        for _ in range(number):
            chosen = random.choice(self._indices, self._batch_size)
            yield Samples(self._samples.images[chosen], self._samples.labels[chosen])

    def state(self) -> dict[str, Any]:
        """As Batches says."""
        augment = self._augment.random.bit_generator.state if self._augment else None
        return {
            "order": self._order,
            "random": self._random.bit_generator.state,
            "augment": augment,
            "batch_size": self._batch_size,
            "returned": [list(batch) for batch in self._returned],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """As Batches says."""
        self._order = state["order"]
        self._random.bit_generator.state = state["random"]
        if self._augment:
            self._augment.random.bit_generator.state = state["augment"]
        self._batch_size = state["batch_size"]
        self._returned = [Samples(*batch) for batch in state["returned"]]

    def __iter__(self) -> EndlessBatches:
        return self

    def put_back(self, batch: Samples) -> None:
        """Takes back a batch that was drawn and not trained on; it is the next one again."""
        self._returned.append(batch)

    def __next__(self) -> Samples:
        if self._returned:
            return self._returned.pop()
        while len(self._order) < self._batch_size:
            self._order = np.concatenate([self._order, self._random.permutation(self._indices)])
        chosen, self._order = np.split(self._order, [self._batch_size])
        images = self._samples.images[chosen]
        return Samples(self._augment(images) if self._augment else images, self._samples.labels[chosen])
