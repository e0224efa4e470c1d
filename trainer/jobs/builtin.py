"""The built-in datasets as the data of a job: their samples, and how images become inputs."""

import functools
import logging
from typing import Any

import numpy as np

from config import Config
from trainer.datasets import loading, plausible
from trainer.datasets.augment import randomly_changed
from trainer.datasets.batches import Prepare
from trainer.datasets.samples import WHITE, Dataset


@functools.lru_cache(maxsize=1)
def load(name: str, data_dir: str) -> tuple[Dataset, str]:
    """A dataset, and what is doubtful about it: once in a process, and in those that are forked from it. Raises
    SetupError as loading.load."""
    dataset = loading.load(name, data_dir)
    return dataset, plausible.doubts(name, dataset)


def data_of(config: Config, size: int) -> tuple[Dataset, Prepare]:
    """The dataset that the flags name, and how its images become inputs. `size` is that of the network's inputs, in
    pixels of a side; 0: that of the images. Raises SetupError if it cannot be read."""
    dataset, doubts = load(config.dataset, config.data_dir)
    if doubts:
        logging.warning("warning: %s in %s: %s", config.dataset, config.data_dir, doubts)
    return dataset, functools.partial(prepared, size, bool(config.augment))


def prepared(
    size: int, changes: bool, images: np.ndarray, classes: np.ndarray, random: np.random.Generator | None
) -> tuple[Any, Any]:
    """Scales images (uint8, N x C x H x W) to [0, 1] and to `size` pixels of a side (0: as they are). With
    `changes` training images are changed at random; `random` is None in an evaluation."""
    if changes and random is not None:
        images = randomly_changed(images, random)
    scaled = np.divide(images, WHITE, dtype=np.float32)
    if not size or size == images.shape[-1]:
        return scaled, classes
    from trainer.engine import array_of, mx  # a network of torch never comes here

    return mx.nd.contrib.BilinearResize2D(array_of(scaled, mx.current_context()), height=size, width=size), classes
