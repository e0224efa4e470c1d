"""Compressed sums on a parameter server: arrays are encoded as other arrays, which travel and are decoded.

fp16: float16 arrays. MXNet's server, once multiple precision is on (kvstore.py), sums them in float32 and rounds the
sum, which all workers pull.

2bit: MXNet compresses all pushes, so exact arrays travel as digits, each the threshold, its negative or 0, which the
compression does not change. The sums of the digits decode to the sums.
"""

from collections.abc import Callable, Sequence

import numpy as np

from config import FP16
from trainer.collectives.compression import Compression
from trainer.transport.halves import Halves
from trainer.transport.protocol import SummedArrays

DIGITS = range(-30, 26)  # powers of two: to 1e-9, and up to 6.7e7; a float32 counts no further than 2**24
_POWERS = np.array([2.0**power for power in DIGITS], np.float32)
_GREATEST = 2.0**26 - 4  # the greatest float32 below 2**26, the next power
Arrays = Sequence[np.ndarray]


class EncodedSums:
    """SummedArrays that travel as other arrays."""

    def __init__(
        self,
        keyed: SummedArrays,  # sums the arrays that travel, on the server
        encode: Callable[[Arrays, Arrays], list[np.ndarray]],  # (compressed, exact) -> arrays that travel
        decode: Callable[[Arrays, Arrays, Arrays], None],  # (sums of those, compressed, exact): fills the latter two
        largest: float,  # as SummedArrays
    ) -> None:
        self._keyed = keyed
        self._encode, self._decode = encode, decode
        self.largest = largest
        self.take_traffic = keyed.take_traffic
        self._num_compressed = 0
        self._travelling: list[np.ndarray] = []

    def broadcast(self, arrays: Arrays, exact: int = 0) -> None:
        """As SummedArrays. The values travel uncompressed, under keys behind those of the sums."""
        self._num_compressed = len(arrays) - exact
        travelling = self._encode(*self._parts(arrays))
        self._keyed.broadcast([*map(np.zeros_like, travelling), *arrays])

    def begin_sum(self, arrays: Arrays) -> None:
        self._travelling = self._encode(*self._parts(arrays))
        self._keyed.begin_sum(self._travelling)

    def finish_sum(self, arrays: Arrays, timed: bool = False) -> float | None:
        took_s = self._keyed.finish_sum(self._travelling, timed)
        self._decode(self._travelling, *self._parts(arrays))
        return took_s

    def _parts(self, arrays: Arrays) -> tuple[Arrays, Arrays]:
        return arrays[: self._num_compressed], arrays[self._num_compressed :]


def encoded(keyed: SummedArrays, compression: Compression, num_workers: int) -> EncodedSums:
    """Sums that travel as fp16 or 2bit; for 2bit MXNet must compress the pushes of `keyed`."""
    if compression.kind == FP16:
        halves = Halves()
        return EncodedSums(keyed, halves.encode, halves.decode, compression.largest(num_workers))
    threshold = compression.threshold

    def encode(arrays: Arrays, exact: Arrays) -> list[np.ndarray]:
        return [*arrays, *(digits_of(array, threshold) for array in exact)]

    def decode(travelled: Arrays, arrays: Arrays, exact: Arrays) -> None:
        for array, digits in zip(exact, travelled[len(arrays) :], strict=True):
            array[...] = number_of(digits, threshold).reshape(array.shape)

    return EncodedSums(keyed, encode, decode, compression.largest(num_workers))


def digits_of(array: np.ndarray, threshold: float) -> np.ndarray:
    """Signed binary digits of each number, times the threshold: float32 (n,) -> (n * len(DIGITS),)."""
    numbers = array.reshape(-1, 1)
    shifted = np.floor(np.abs(numbers).clip(0, _GREATEST) / _POWERS)
    digits = shifted - 2 * np.floor(shifted / 2)
    return (digits * np.sign(numbers) * np.float32(threshold)).reshape(-1)


def number_of(digits: np.ndarray, threshold: float) -> np.ndarray:
    """Decodes sums of such digits: (n * len(DIGITS),) -> (n,)."""
    return np.round(digits.reshape(-1, len(DIGITS)) / np.float32(threshold)) @ _POWERS
