"""Ringleader ASGD (Maranjyan and Richtárik, ICLR 2026, arXiv:2509.22860, by summaries of the paper), for workers whose
data differ: the server has a sum G_i and a count b_i of the gradients of each worker i. A round has two phases.

1. Each gradient is added to its worker's entry, and the worker goes on at the weights that it has, until each of the n
   workers has an entry.
2. The next gradient of each worker is added too, then w <- w - eta / n * sum_i (G_i / b_i), and the worker gets the new
   weights: n steps, one by each worker. What a worker sends after its own counts in the next round.

Summaries do not say whether the gradient that completes the table is followed by a step: here it is not, so with one
worker each second gradient is. No gradient is thrown away, and no worker waits. A gradient is at most 2n - 2 steps old.
Momentum and weight decay act on the mean; a schedule follows the samples of all gradients. Workers that are lost, or
have ended, do not count.
"""

from typing import Any

from trainer.algorithms.asynchronous import AsyncServer, Settings
from trainer.hub.server_part import Answers, Arrays, Served, in_shapes
from trainer.steps import sum_of

Table = dict[int, tuple[Arrays, int]]  # sum and number of a worker's gradients, by rank


class RingleaderServer(AsyncServer):
    """Holds up to two sums of gradients of each worker."""

    keeps_uploads = True

    def __init__(self, job: Served, settings: Settings) -> None:
        super().__init__(job, settings)
        tables: list[Table] = [
            {rank: (in_shapes(sum_, self.weights), count) for rank, sum_, count in kept}
            for kept in job.saved.get("tables", ((), ()))
        ]
        self._entries, self._later = tables  # of this round and of the next one
        self._had = set(job.saved.get("had", ()))  # ranks whose gradient was followed by a step in this round

    def use(self, rank: int, gradient: Arrays) -> bool:
        if self._had.issuperset(self.there):
            self._entries, self._later, self._had = self._later, {}, set()
        is_second_phase = bool(self._had) or self._entries.keys() >= self.there
        is_followed = is_second_phase and rank not in self._had
        entries = self._later if rank in self._had else self._entries
        if rank in entries:
            sums, count = entries[rank]
            for sum_, array in zip(sums, gradient, strict=True):
                sum_ += array
        else:  # the answer has the gradient's memory where a step follows, as with a worker that has come back
            sums, count = [array.copy() for array in gradient] if is_followed else gradient, 0
        entries[rank] = sums, count + 1
        if not is_followed:
            self.num_steps += 1
            return False
        self._had.add(rank)
        of_all = [its for _, its in sorted(self._entries.items())]
        means = [sum_of([sums[position] / count for sums, count in of_all]) for position in range(len(self.weights))]
        self.step(means, len(of_all))
        return True

    def lost(self, rank: int) -> Answers:
        self._entries.pop(rank, None)
        self._later.pop(rank, None)
        return super().lost(rank)

    def state(self) -> dict[str, Any]:
        tables = [
            [[rank, [*sums], count] for rank, (sums, count) in table.items()] for table in (self._entries, self._later)
        ]
        return {**super().state(), "tables": tables, "had": sorted(self._had)}
