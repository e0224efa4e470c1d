"""Who is the slowest of many workers, without a look at all of them."""

from __future__ import annotations

# The delay of a worker that does not take part: below every other one, so it is the slowest only where all are out.
OUT = -1.0


class Tournament:
    """A tournament over the workers' delays: its top is the slowest one, the lowest rank among equals.

    A change costs one comparison for each level of the tree, so O(log N); the top costs nothing.
    """

    def __init__(self, delays: list[float]) -> None:
        self._size = len(delays)
        leaves = [(delay, -rank) for rank, delay in enumerate(delays)]
        # Node i plays its children 2i and 2i+1 against each other; the leaves are the last `size` nodes.
        self._nodes = [*leaves, *leaves]
        for node in range(self._size - 1, 0, -1):
            self._play(node)

    def _play(self, node: int) -> None:
        self._nodes[node] = max(self._nodes[2 * node], self._nodes[2 * node + 1])

    def change(self, rank: int, delay: float) -> None:
        """From now on the worker with this rank has this delay."""
        node = self._size + rank
        if self._nodes[node][0] == delay:
            return
        self._nodes[node] = (delay, -rank)
        while (node := node // 2) > 0:
            self._play(node)

    @property
    def slowest(self) -> int:
        """The slowest worker's rank."""
        return -self._nodes[1][1]

    def delay(self, rank: int) -> float:
        """That of the worker with this rank."""
        return self._nodes[self._size + rank][0]

    @property
    def delays(self) -> list[float]:
        """All of them, by rank. O(N)."""
        return [delay for delay, _ in self._nodes[self._size :]]
