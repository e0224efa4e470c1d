"""Counts the bytes that shared arrays move, whatever carries them."""

from collections.abc import Callable, Sequence
from operator import attrgetter

import numpy as np

num_bytes: Callable[[np.ndarray], int] = attrgetter("nbytes")  # size of an array's content


class ByteCounter:
    """The traffic of SummedArrays, or of an Exchange."""

    def __init__(self, size_of: Callable[[np.ndarray], int] = num_bytes) -> None:
        """`size_of` tells the bytes that an array counts."""
        self._size_of = size_of
        self._bytes_pushed = 0
        self._bytes_pulled = 0

    def count_pushed(self, arrays: Sequence[np.ndarray]) -> int:
        """Counts arrays that leave; returns their bytes."""
        size = sum(map(self._size_of, arrays))
        self._bytes_pushed += size
        return size

    def count_pulled(self, arrays: Sequence[np.ndarray]) -> int:
        """Counts arrays that come; returns their bytes."""
        size = sum(map(self._size_of, arrays))
        self._bytes_pulled += size
        return size

    def count_moved(self, sent: int, received: int) -> None:
        """Counts bytes of pieces of arrays over this worker's own link."""
        self._bytes_pushed += sent
        self._bytes_pulled += received

    def take_traffic(self) -> dict[str, int]:
        traffic = {"bytes_pushed": self._bytes_pushed, "bytes_pulled": self._bytes_pulled}
        self._bytes_pushed = self._bytes_pulled = 0
        return traffic
