"""Ringleader ASGD (Maranjyan and Richtárik, ICLR 2026, arXiv:2509.22860, by summaries of the paper), for workers whose
data differ: the server has a sum G_i and a count b_i of the gradients of each worker i. A round has two phases.

1. Each gradient is added to its worker's entry, and the worker goes on at the weights that it has, until each of the n
   workers has an entry.
2. The next gradient of each worker is added too, then w <- w - eta / n * sum_i (G_i / b_i), and the worker gets the new
   weights: n steps, one by each worker. What a worker sends after its own counts in the next round.

Summaries do not say whether the gradient that completes the table is followed by a step: here it is not, so with one
worker each second gradient is. No gradient is thrown away, and no worker waits. A gradient is at most 2n - 2 steps old.
Momentum and weight decay act on the mean; a schedule follows the samples of all gradients. Workers that are lost, or
have ended, do not count. One that comes back gets the newest weights in place of its first step, whose gradient is of
the weights before its loss.

This module runs in the parameter server's process, which holds up to (3 * number of workers + 1) copies of the model.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trainer.algorithms.per_worker_sgd import PerWorkerSGD
from trainer.membership import tells_loss
from trainer.pieces import sum_of


@dataclass
class Round:
    """The gradients of one array: sums and counts by rank."""

    entries: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)
    later: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)  # of the next round
    had: set[int] = field(default_factory=set)  # ranks whose gradient was followed by a step
    away: set[int] = field(default_factory=set)  # ranks that were lost, and have not come back

    def add(self, rank: int, gradient: np.ndarray, there: Collection[int]) -> bool:
        """Adds a gradient of a worker; `there` are the ranks that count. Returns whether a step follows it."""
        if self.had.issuperset(there):
            self.entries, self.later, self.had = self.later, {}, set()
        is_second_phase = bool(self.had) or self.entries.keys() >= {*there}
        entries = self.later if rank in self.had else self.entries
        before, count = entries.get(rank, (0.0, 0))
        entries[rank] = (gradient + before, count + 1)
        if not is_second_phase or rank in self.had:
            return False
        self.had.add(rank)
        return True


class RingleaderSGD(PerWorkerSGD):
    """The server-side update."""

    hears_of_workers = True

    def __init__(self, *given: Any) -> None:
        """As ServerSGD."""
        super().__init__(*given)
        self._rounds: dict[int, Round] = {}  # by position

    def use(self, index: int, weights: np.ndarray, pulled: np.ndarray, grad: np.ndarray) -> bool:
        rank, position = divmod(index, self._keys_per_model)
        there, round_ = self._there(), self._rounds.setdefault(position, Round())
        for gone in {*range(self._num_models)} - there:
            round_.away.add(gone)
            round_.entries.pop(gone, None)
            round_.later.pop(gone, None)
        if rank in round_.away:  # one that is lost may only have been frozen, and still sends
            round_.away -= {rank} & there
            self._num_steps[position] += 1
            return True
        if not round_.add(rank, grad, there):
            self._num_steps[position] += 1
            return False
        means = [sum_ / count for _, (sum_, count) in sorted(round_.entries.items())]
        self.step(position, weights, sum_of(means), len(means))
        return True

    def _there(self) -> set[int]:
        """Ranks of the workers that are neither lost nor at their end."""
        ranks = range(self._num_models)
        numbers = [0.0] * (1 + len(ranks)) if self._counters is None else self._counters.tolist()
        return {rank for rank in ranks if not tells_loss(numbers[1 + rank])}

    def count(self, counters: np.ndarray, pushed: np.ndarray) -> None:
        """Of a worker's changes the last one counts, in whatever order others tell of them."""
        ends = 1 + self._num_models
        last = np.maximum(counters[1:ends], pushed[1:ends])
        super().count(counters, pushed)
        counters[1:ends] = last

    def state(self) -> dict[str, Any]:
        def listed(of: Round) -> list[Any]:
            entries = [[[rank, *entry] for rank, entry in each.items()] for each in (of.entries, of.later)]
            return [entries, [sorted(of.had), sorted(of.away)]]

        return super().state() | {"rounds": [[position, *listed(of)] for position, of in self._rounds.items()]}

    def begin_with(self, saved: Mapping[str, Any]) -> None:
        super().begin_with(saved)
        for position, tables, (had, away) in saved["rounds"]:
            entries, later = ({rank: (sum_, count) for rank, sum_, count in table} for table in tables)
            self._rounds[position] = Round(entries, later, {*had}, {*away})
