"""Small CIFAR-10 and CIFAR-100 in both published forms, made of random images. Not a test itself."""

import pickle
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Form(NamedTuple):
    """Of one of the two datasets: its files, the last of which is the test set, and what it says of each image."""

    files: tuple[str, ...]
    labels: tuple[str, ...]  # keys of a python file, in the order of a binary file's bytes; the last is the class
    classes: int


CIFAR10 = Form((*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"), ("labels",), 10)
CIFAR100 = Form(("train", "test"), ("coarse_labels", "fine_labels"), 100)


def arrays(form: Form, file: str, number: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """What a file holds: images (N, 3072), whose brightness is that of their class, and labels (N, 1 or 2)."""
    random = np.random.default_rng(form.files.index(file))
    classes = random.integers(0, form.classes, number, dtype=np.uint8)
    images = random.integers(0, 56, (number, 3072), dtype=np.uint8) + classes[:, np.newaxis] * np.uint8(
        200 // form.classes
    )
    return images, np.column_stack([classes // 5, classes][-len(form.labels) :])


def write_binary(form: Form, folder: Path, number: int = 4) -> None:
    """The files of the binary archive, with so many images each."""
    folder.mkdir(parents=True)
    for name in form.files:
        images, labels = arrays(form, name, number)
        (folder / f"{name}.bin").write_bytes(np.column_stack([labels, images]).tobytes())


def write_python(form: Form, folder: Path) -> None:
    """The files of the python archive, with four images each."""
    folder.mkdir(parents=True)
    for name in form.files:
        images, labels = arrays(form, name)
        lists = {key.encode(): column.tolist() for key, column in zip(form.labels, labels.T, strict=True)}
        content = pickle.dumps({b"data": images, **lists}, protocol=2)
        # The published files were written with numpy 1; numpy 2 names its core otherwise.
        (folder / name).write_bytes(content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
