"""After Ringleader ASGD (Maranjyan and Richtárik, ICLR 2026), for workers whose data differ: the server keeps the
newest gradient of each worker in a table. When each has sent one since the last step, w <- w - eta * mean_k (g_k), and
a new round of the table begins. At every push the worker takes the newest weights and goes on: none waits for another.

A fast worker's earlier gradients of the round are replaced, and a round has one step. Momentum and weight decay act on
the mean; a schedule follows the samples of all pushes. Workers that are lost, or have ended, do not count: from the
next push on the table is complete without them.

This module runs in the parameter server's process, which holds (2 * number of workers + 1) copies of the model.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from trainer.algorithms.per_worker_sgd import PerWorkerSGD, in_mxnet, in_numpy
from trainer.engine import mx
from trainer.membership import tells_loss


class RingleaderSGD(PerWorkerSGD):
    """The server-side update, with a table for each array."""

    hears_of_workers = True

    def __init__(self, *given: Any) -> None:
        """As ServerSGD."""
        super().__init__(*given)
        self._table: dict[int, dict[int, mx.nd.NDArray]] = defaultdict(dict)  # by position and rank; of this round

    def use(self, index: int, weights: mx.nd.NDArray, pulled: mx.nd.NDArray, grad: mx.nd.NDArray) -> None:
        rank, position = divmod(index, self._keys_per_model)
        there, table = self._there(), self._table[position]
        if rank not in there:  # it may only have been frozen, and still sends
            return
        table[rank] = grad.copy()
        table[rank].wait_to_read()
        if there <= table.keys():
            gradients = [table[each] for each in sorted(there)]
            self.step(position, weights, mx.nd.add_n(*gradients), len(gradients))
            table.clear()
        else:
            self._num_steps[position] += 1

    def _there(self) -> set[int]:
        """Ranks of the workers that are neither lost nor at their end."""
        ranks = range(self._num_models)
        numbers = [0.0] * (1 + len(ranks)) if self._counters is None else self._counters.asnumpy().tolist()
        return {rank for rank in ranks if not tells_loss(numbers[1 + rank])}

    def count(self, counters: mx.nd.NDArray, pushed: mx.nd.NDArray) -> None:
        """Of a worker's changes the last one counts, in whatever order others tell of them."""
        ends = 1 + self._num_models
        last = mx.nd.maximum(counters[1:ends], pushed[1:ends])
        super().count(counters, pushed)
        counters[1:ends] = last

    def state(self) -> dict[str, Any]:
        tables = [[position, in_numpy(table)] for position, table in self._table.items()]
        return super().state() | {"table": tables}

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        super().begin_with(saved)
        for position, table in saved["table"]:
            self._table[position] = in_mxnet(table)
