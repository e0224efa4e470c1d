"""MXNet's 2-bit gradient compression, for a parameter server in memory.

As src/kvstore/gradient_compression-inl.h: each number is added to the rest of earlier ones; at or above the threshold
it is pushed as the threshold, at or below its negative as that, else as 0; the difference is the new rest.
"""

import numpy as np


class TwoBits:
    """One worker's compression, with the rests by key."""

    def __init__(self, threshold: float) -> None:
        self._threshold = np.float32(threshold)
        self._held_back: dict[int, np.ndarray] = {}

    def compress(self, key: int, array: np.ndarray) -> np.ndarray:
        """The array that the server receives for this one, float32 of any shape."""
        due = array + self._held_back[key] if key in self._held_back else array
        is_up, is_down = due >= self._threshold, due <= -self._threshold
        sent = (is_up.astype(np.float32) - is_down) * self._threshold
        self._held_back[key] = due - sent
        return sent
