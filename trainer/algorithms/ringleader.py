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

from collections.abc import Collection
from typing import Any

from trainer.algorithms.asynchronous import AsyncServer, Settings
from trainer.hub.server_part import Answers, Arrays, Served, in_shapes
from trainer.steps import sum_of

Table = dict[int, tuple[Arrays, int]]  # sum and number of a worker's gradients, by rank


class Round:
    """The gradients of a round and of the next one."""

    def __init__(self) -> None:
        self.entries: Table = {}
        self.later: Table = {}  # of the next round
        self.had: set[int] = set()  # ranks whose gradient was followed by a step

    def add(self, rank: int, gradient: Arrays, there: Collection[int]) -> bool:
        """Adds a gradient of a worker; `there` are the ranks that count. Returns whether a step follows it."""
        if self.had.issuperset(there):
            self.entries, self.later, self.had = self.later, {}, set()
        is_second_phase = bool(self.had) or self.entries.keys() >= {*there}
        entries = self.later if rank in self.had else self.entries
        is_followed = is_second_phase and rank not in self.had
        if rank in entries:
            sums, count = entries[rank]
            for sum_, array in zip(sums, gradient, strict=True):
                sum_ += array
        else:  # the answer has the gradient's memory where a step follows, as with a worker that has come back
            sums, count = [array.copy() for array in gradient] if is_followed else gradient, 0
        entries[rank] = sums, count + 1
        if is_followed:
            self.had.add(rank)
        return is_followed

    def forget(self, rank: int) -> None:
        """The worker does not count any more."""
        self.entries.pop(rank, None)
        self.later.pop(rank, None)


class RingleaderServer(AsyncServer):
    """Holds up to two sums of gradients of each worker."""

    keeps_uploads = True

    def __init__(self, job: Served, settings: Settings) -> None:
        super().__init__(job, settings)
        self._round = Round()
        for table, kept in zip((self._round.entries, self._round.later), job.saved.get("tables", ()), strict=False):
            table.update({rank: (in_shapes(sum_, self.weights), count) for rank, sum_, count in kept})
        self._round.had.update(job.saved.get("had", ()))

    def use(self, rank: int, gradient: Arrays) -> bool:
        if not self._round.add(rank, gradient, self.there):
            self.num_steps += 1
            return False
        entries = sorted(self._round.entries.items())
        means = [
            sum_of([sums[position] / count for _, (sums, count) in entries]) for position in range(len(self.weights))
        ]
        self.step(means, len(entries))
        return True

    def lost(self, rank: int) -> Answers:
        self._round.forget(rank)
        return super().lost(rank)

    def state(self) -> dict[str, Any]:
        tables = [
            [[rank, [*sums], count] for rank, (sums, count) in table.items()]
            for table in (self._round.entries, self._round.later)
        ]
        return {**super().state(), "tables": tables, "had": sorted(self._round.had)}
