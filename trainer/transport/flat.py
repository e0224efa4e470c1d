"""Lists of arrays as a few flat buffers, for a transport that sums buffers in memory.

Small arrays are packed, since each message has a latency. The memory of a large one is itself a buffer, so most
bytes of a model are not copied.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from trainer.steps import flat_view
from trainer.transport.protocol import num_bytes

IN_PLACE = 1 << 20  # bytes from which an array is a buffer of its own
FULL = 4 << 20  # bytes from which a buffer takes no more arrays
LEFT_OVER = 1 << 16  # bytes below which the last buffer joins another one


def plan(sizes: Sequence[int]) -> list[list[int]]:
    """Which arrays share a buffer. `sizes` are the bytes of each array, in the order of the layers. Returns positions
    of the arrays in each buffer; buffers in the order in which they are sent, the last layers first."""
    groups: list[list[int]] = []
    packed: list[int] = []
    for index in reversed(range(len(sizes))):
        if sizes[index] >= IN_PLACE:
            groups.append([index])
            continue
        packed.append(index)
        if sum(sizes[each] for each in packed) >= FULL:
            groups.append(packed)
            packed = []
    if packed and groups and sum(sizes[each] for each in packed) < LEFT_OVER:
        smallest = min(groups, key=lambda group: sum(sizes[each] for each in group))
        groups.remove(smallest)
        packed = [*smallest, *packed]
    return [*groups, packed] if packed else groups


class Buffer:
    """Some arrays of a list as one flat float32 array of numpy."""

    def __init__(
        self,
        indices: Sequence[int],  # of its arrays in the list
        arrays: Sequence[np.ndarray],  # the list, or one of the same shapes
        size_of: Callable[..., int],  # bytes that an array counts
        num_as_halves: int = 0,  # arrays of the list, from the first on, that travel as float16 in a sum
    ) -> None:
        """Raises TypeError where an array is not float32."""
        indices = sorted(indices, key=lambda index: index >= num_as_halves)  # halves first; stable
        mine = [arrays[index] for index in indices]
        for array in mine:
            if array.dtype != np.float32:
                raise TypeError(f"arrays to be added up are float32, not {np.dtype(array.dtype)}")
        self.indices = list(indices)
        self._edges = np.cumsum([0, *(array.size for array in mine)]).tolist()
        self._flat = np.zeros(self._edges[-1], np.float32) if len(mine) > 1 else None
        self.num_bytes = sum(map(size_of, mine))
        as_halves = [array for index, array in zip(indices, mine, strict=True) if index < num_as_halves]
        self.num_halves = sum(array.size for array in as_halves)  # numbers that travel as float16, the first ones
        self.bytes_in_sum = self.num_bytes - sum((size_of(array) + 1) // 2 for array in as_halves)

    def take(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """The content of its arrays: float32 (n,). They must not be used until `give`."""
        if self._flat is None:
            return flat_view(arrays[self.indices[0]])
        for index, begin, end in self._places():
            self._flat[begin:end] = arrays[index].reshape(-1)
        return self._flat

    def give(self, arrays: Sequence[np.ndarray]) -> None:
        """Writes the buffer's content into its arrays, where it is not their own memory."""
        if self._flat is None:
            return
        for index, begin, end in self._places():
            flat_view(arrays[index])[:] = self._flat[begin:end]

    def _places(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.indices, self._edges, self._edges[1:], strict=False)


def buffers_of(
    arrays: Sequence[np.ndarray],
    size_of: Callable[[np.ndarray], int] = num_bytes,
    num_as_halves: int = 0,  # as in Buffer
    of: Sequence[int] | None = None,  # positions of those that are to be in a buffer; by default all
) -> list[Buffer]:
    """The buffers of a list of arrays, in the order in which they are sent."""
    positions = range(len(arrays)) if of is None else of
    groups = plan([size_of(arrays[position]) for position in positions])
    return [Buffer([positions[each] for each in group], arrays, size_of, num_as_halves) for group in groups]
