"""MXNet's 2-bit gradient compression, for a parameter server in memory.

As src/kvstore/gradient_compression-inl.h: each number is added to the rest of earlier ones; at or above the threshold
it is pushed as the threshold, at or below its negative as that, else as 0; the difference is the new rest.
"""

from trainer.engine import mx


class TwoBits:
    """One worker's compression, with the rests by key."""

    def __init__(self, threshold: float) -> None:
        self._threshold = mx.nd.array([threshold])
        self._held_back: dict[int, mx.nd.NDArray] = {}

    def compress(self, key: int, array: mx.nd.NDArray) -> mx.nd.NDArray:
        """The array that the server receives for this one, float32 of any shape."""
        due = array + self._held_back[key] if key in self._held_back else array
        is_up = mx.nd.broadcast_greater_equal(due.reshape((-1,)), self._threshold)
        is_down = mx.nd.broadcast_lesser_equal(due.reshape((-1,)), -self._threshold)
        sent = mx.nd.broadcast_mul(is_up - is_down, self._threshold).reshape(array.shape)
        self._held_back[key] = due - sent
        return sent
