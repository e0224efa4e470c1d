"""Samples with numbers that are not finite: NaN, infinity, or more than float32 holds. Numpy only."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

CHUNK = 1 << 22  # numbers that are looked at together


class Fault(NamedTuple):
    """An array with such numbers."""

    text: str  # which one, how many, and where the first is
    sample: int  # the first one's


def faults(inputs: Sequence[Any], targets: Sequence[Any], whose: str = "the batch's") -> list[Fault]:
    """Those of arrays (N, ...), or of sequences of N samples, in memory. Arrays of files are left out, since a look at
    all of them may take hours."""
    found = []
    for part, arrays in (("inputs", inputs), ("targets", targets)):
        for number, array in enumerate(arrays):
            places = [] if _is_mapped(array) else [*_places(array)]
            if count := sum(each for each, _ in places):
                name, first = part if len(arrays) == 1 else f"{part}[{number}]", places[0][1]
                text = f"{count} number(s) of {whose} {name} are not finite, the first at {first}"
                found.append(Fault(text, first[0]))
    return found


def _places(array: Any) -> Iterator[tuple[int, list[int]]]:
    """Of each part of an array with such numbers: how many, and the index of the first."""
    step = max(1, CHUNK // max(1, math.prod(array.shape[1:]))) if isinstance(array, np.ndarray) else 1
    for begin in range(0, len(array), step):
        try:
            part = np.asarray(array[begin : begin + step])
            if part.dtype.kind not in "fO":
                continue
            with np.errstate(over="ignore"):
                bad = ~np.isfinite(part.astype(np.float32, copy=False))
        except (TypeError, ValueError):  # no numbers, before batchify() or prepare() makes some of them
            return
        if bad.any():
            row, *place = map(int, np.argwhere(bad)[0])
            yield int(bad.sum()), [begin + row, *place]


def _is_mapped(array: Any) -> bool:
    """Whether an array, or the one of which it is a part, is that of a file."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)
