"""How training samples are divided among the workers."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np


def partition(labels: Sequence[int], num_workers: int, by_class: bool, seed: int) -> list[np.ndarray]:
    """Indices of the samples of each worker, by rank. Every sample is in exactly one part. Parts are equal; where N
    does not divide the samples, the first ones have one more. i.i.d.: parts of a seeded permutation. By class: parts of
    the samples in the order of their classes, as in the published program. `labels`: classes (N,) of all training
    samples; without `by_class` only their number counts."""
    order = np.argsort(labels, kind="stable") if by_class else np.random.default_rng(seed).permutation(len(labels))
    return np.array_split(order, num_workers)


def sha256(arrays: Iterable[np.ndarray]) -> str:
    """SHA-256 of the concatenated content of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
