"""The transport's protocol: all that a trainer knows of how arrays travel. And how each transport counts their bytes.

A Transport makes broadcasts and sums over all workers: by MXNet's kvstore (kvstore.py), among the workers
(collective.py), or on the hub (trainer/hub/sums.py). Algorithms with a server part of their own have an Exchange with
it instead (trainer/hub/hub_trainer.py).

With --compression fp16 numbers travel as IEEE half precision, 11 significant bits, rounded to nearest. They are summed
in float32, and the sum is rounded once more before it comes back, so all workers get the same bits. Counts and
BatchNorm's statistics always travel exactly.
"""

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Protocol

import numpy as np

num_bytes: Callable[[np.ndarray], int] = attrgetter("nbytes")  # size of an array's content
# Half of float16's greatest number, so that sums which are rounded several times stay below it too.
LARGEST_SUM = 2.0**15


def largest(num_workers: int, as_halves: bool = True) -> float:
    """Magnitude up to which a worker's number can be part of any sum over `num_workers` workers."""
    return LARGEST_SUM / num_workers if as_halves else math.inf


class Counted(Protocol):
    """Counts the bytes that it moves."""

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled since the last call, by their names in the round logs."""


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


class SummedArrays(Counted, Protocol):
    """A list of arrays that the workers sum again and again."""

    largest: float  # magnitude up to which a worker's numbers can be part of a sum: finite where they travel as float16

    def broadcast(self, arrays: Sequence[Any], exact: int = 0) -> None:
        """Afterwards every rank's arrays hold rank 0's values. Every rank calls it, once, before anything else. The
        last `exact` arrays never travel compressed."""

    def begin_sum(self, arrays: Sequence[Any]) -> None:
        """Begins to send all arrays; early ones first where there is a choice.

        They have the shapes and the order of the broadcast ones, and must not be touched before `finish_sum`.
        """

    def finish_sum(self, arrays: Sequence[Any], timed: bool = False) -> float | None:
        """Waits until each of the arrays that were given to `begin_sum` is the sum over all workers.

        `timed`: pushes and pulls do not overlap, so that one of them can be timed. Returns seconds in which the sums
        came back, or were made where there is no server, without the wait for other workers; None if that was not
        timed.
        """


class Transport(Protocol):
    """A worker's connection to the others. Where one of them is lost, a call that waits for others raises PeerLost, or
    ends the process as PeerLost does: MXNet's kvstore cannot be interrupted."""

    rank: int  # from 0
    num_workers: int  # at present, as the rank

    def sums(self, as_halves: bool = False) -> SummedArrays:
        """A list of arrays to be summed; `as_halves`: they travel as float16, where the transport can have that."""

    def agree(self, numbers: Sequence[float]) -> list[float]:
        """Rank 0's numbers, as float32, on all ranks. Every rank calls it, once."""
