"""Max-heap over worker delays: the slowest of many workers in O(log N) a change."""

# The delay of a worker that does not take part: below all others, so it is the slowest only where all are out.
OUT = -1.0


class MaxTree:
    """A tournament over the workers' delays: its top is the slowest one, the lowest rank among equals.

    A change costs one comparison for each level of the tree, so O(log N); the top costs nothing.
    """

    def __init__(self, delays: list[float]) -> None:
        self._delays = list(delays)
        self._size = len(delays)
        # Node i is the winner of its children 2i and 2i+1; the leaves are the last `size` nodes. Nodes are ranks, not
        # objects, which would cost the garbage collector more time than the comparisons take.
        self._nodes = nodes = [*[0] * self._size, *range(self._size)]
        if min(delays) == max(delays):  # as in each new job, of which one may have 100,000 workers
            for node in range(self._size - 1, 0, -1):
                one, other = nodes[2 * node], nodes[2 * node + 1]
                nodes[node] = one if one < other else other
            return
        for node in range(self._size - 1, 0, -1):
            self._play(node)

    def _play(self, node: int) -> None:
        one, other = self._nodes[2 * node], self._nodes[2 * node + 1]
        delay, others = self._delays[one], self._delays[other]
        self._nodes[node] = one if delay > others or (delay == others and one < other) else other

    def change(self, rank: int, delay: float) -> None:
        """Sets the delay of a worker."""
        if self._delays[rank] == delay:
            return
        self._delays[rank] = delay
        node = self._size + rank
        while (node := node // 2) > 0:
            self._play(node)

    @property
    def slowest(self) -> int:
        return self._nodes[1]

    def delay(self, rank: int) -> float:
        return self._delays[rank]

    @property
    def delays(self) -> list[float]:
        """By rank. O(N)."""
        return list(self._delays)
