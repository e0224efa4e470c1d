"""Arithmetic on arrays larger than a cache, piece by piece: each piece is read from memory once for all of a rule."""

from collections.abc import Iterator, Sequence

import numpy as np

PIECE = 1 << 16  # numbers, 256 KB as float32


def pieces(*arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    """Yields views of the same part of each array, small arrays as they are, parts of large ones flat. The arrays have
    one shape; a large one that is not contiguous raises AttributeError."""
    if arrays[0].size <= PIECE:
        yield arrays
        return
    flat = [flat_view(array) for array in arrays]
    for begin in range(0, flat[0].size, PIECE):
        yield tuple(array[begin : begin + PIECE] for array in flat)


def sum_of(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Their sum, as a new array. The order is that of MXNet's add_n, with which earlier results were made: three or
    four arrays are added from the last on."""
    first, *others = reversed(arrays) if len(arrays) in (3, 4) else arrays
    total = first.copy()
    for array in others:
        total += array
    return total


def flat_view(array: np.ndarray) -> np.ndarray:
    """A view (n,), never a copy: an array that is not contiguous raises AttributeError."""
    view = array.view()
    view.shape = (array.size,)
    return view
