"""A dataset in memory: images and labels of two parts. Numpy only."""

import stat
from pathlib import Path
from typing import NamedTuple

import numpy as np

from utils import SetupError

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


def checked_labels(labels: np.ndarray, classes: int, path: Path) -> np.ndarray:
    """Labels (N,) of any integer type as uint8. Raises SetupError if one of them is no class."""
    for label in (labels.max(initial=0), labels.min(initial=0)):
        if not 0 <= label < classes:
            raise SetupError(f"{path}: a label is {label}; there are {classes} classes, from 0 to {classes - 1}")
    return labels.astype(np.uint8)


def is_file(path: Path) -> bool:
    """`Path.is_file`, but raises PermissionError where Python 3.14's returns False."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
