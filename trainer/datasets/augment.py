"""How images become inputs of a network, a batch at a time: scaled, and in training changed at random."""

from typing import Any

import numpy as np

from trainer.datasets.samples import WHITE

PADDING = 4  # pixels at each edge


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


def randomly_changed(images: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Returns new images (N, C, H, W) for those of a batch. He et al. for CIFAR (CVPR 2016, section 4.2): "4 pixels are
    padded on each side, and a 32x32 crop is randomly sampled from the padded image or its horizontal flip". Padding is
    black; images of other sizes keep their size too."""
    down, right = random.integers(2 * PADDING + 1, size=(2, len(images)))
    is_flipped = random.integers(2, size=len(images), dtype=bool)
    return crop_and_flip(images, down, right, is_flipped)


def crop_and_flip(images: np.ndarray, down: np.ndarray, right: np.ndarray, is_flipped: np.ndarray) -> np.ndarray:
    """Crops each image (N, C, H, W), padded at all edges, to its size, and mirrors those left to right that
    `is_flipped` (N,) names. Above each crop are `down` (N,) rows of the padded image, left of it `right` (N,) columns,
    from 0 to 2 * PADDING."""
    number, channels, height, width = images.shape
    # In half of the time of np.pad.
    padded = np.zeros((number, channels, height + 2 * PADDING, width + 2 * PADDING), images.dtype)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    # A view (N, 2 * PADDING + 1, 2 * PADDING + 1, C, H, W) of all crops: only those that are chosen are copied.
    crops = np.lib.stride_tricks.sliding_window_view(padded, (1, channels, height, width))[:, 0, :, :, 0]
    chosen = crops[np.arange(number), down, right]
    chosen[is_flipped] = chosen[is_flipped, :, :, ::-1]
    return chosen
