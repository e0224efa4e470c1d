"""Max-heap over worker delays: the slowest of many workers in O(log N) a change."""

# The delay of a worker that does not take part: below all others, so it is the slowest only where all are out.
OUT = -1.0


class MaxTree:
    """A tournament over the delays of `number` workers, at first all the same: its top is the slowest one, the lowest
    rank among equals.

    A change costs one comparison for each level of the tree, so O(log N); the top costs nothing.
    """

    def __init__(self, number: int, delay: float) -> None:
        self.delays = [delay] * number  # by rank
        # Node i is the winner of its children 2i and 2i+1; the leaves are the last `number` nodes. Nodes are ranks, not
        # objects, which would cost the garbage collector more time than the comparisons take.
        self._nodes = nodes = [*[0] * number, *range(number)]
        for node in range(number - 1, 0, -1):
            one, other = nodes[2 * node], nodes[2 * node + 1]
            nodes[node] = one if one < other else other

    def change(self, rank: int, delay: float) -> None:
        """Sets the delay of a worker."""
        delays, nodes = self.delays, self._nodes
        if delays[rank] == delay:
            return
        delays[rank] = delay
        node = len(delays) + rank
        while (node := node // 2) > 0:
            one, other = nodes[2 * node], nodes[2 * node + 1]
            is_one = delays[one] > delays[other] or (delays[one] == delays[other] and one < other)
            nodes[node] = one if is_one else other

    @property
    def slowest(self) -> int:
        return self._nodes[1]
