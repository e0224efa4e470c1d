"""The optimizer on the parameter server of backup workers (backup.py): the model and the gradients of its newest
version. This module runs in the server's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.algorithms.backup_versions import Arrival, Versions
from trainer.algorithms.whole_models import BAD_UPLOAD, WANT_STOP, Keys, WholeModelOptimizer
from trainer.pieces import sum_of
from trainer.steps import PLAIN, Rule, Stepper

BASE = 1 << 20  # counts travel as two digits of this base: a float32 is exact up to 2 ** 24 only


@dataclass(frozen=True)
class BackupStatus:
    """The server's message to a worker."""

    over: bool  # the job has ended for all workers
    version: int  # of the model that the worker got last
    answered: int  # number of its gradients that were applied or dropped
    at_once: bool  # its last gradient was answered on arrival
    dropped: int  # number of its gradients that came too late

    @classmethod
    def read(cls, numbers: np.ndarray) -> BackupStatus:
        over, at_once, *digits = map(round, numbers.tolist())
        version, answered, dropped = (high * BASE + low for high, low in zip(digits[::2], digits[1::2], strict=True))
        return cls(bool(over), version, answered, bool(at_once), dropped)

    def numbers(self) -> list[float]:
        digits = (digit for count in (self.version, self.answered, self.dropped) for digit in divmod(count, BASE))
        return [*map(float, (self.over, self.at_once, *digits))]


class BackupOptimizer(WholeModelOptimizer):
    """Shows the newest version. A worker finds its version in its own gradient buffer, in place of its gradient. The
    buffer does not change before its next upload, so newer versions do not mix into it.
    """

    def __init__(
        self,
        keys: Keys,
        num_backup: int,
        learning_rate: float,
        # Of each weight, whether weight decay acts on it. As many gradients are sent, then BatchNorm's statistics
        decays: Sequence[bool],
        sample_counts: Sequence[int],  # n_k by rank; empty: all are equal
        rule: Rule = PLAIN,  # of the steps. Its schedule follows the samples whose gradients counted
    ) -> None:
        super().__init__(keys)
        self._versions = Versions(keys.num_workers, num_backup)
        self._learning_rate = learning_rate
        self._rule, self._stepper = rule, Stepper(rule, decays)
        self._num_weights = len(decays)
        self._num_batches = 0  # that counted
        self._sample_counts = tuple(sample_counts) or (1,) * keys.num_workers
        self._at_once = [False] * keys.num_workers

    def state(self) -> dict[str, Any]:
        # Without the gradients that wait for others.
        return {
            "version": self._versions.version,
            "batches": self._num_batches,
            "steps": self._stepper.state(),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        super().restore(saved)
        self._versions.begin_with(saved["version"])
        self._num_batches = saved["batches"]

    def begin(self) -> None:
        if saved := self.take_saved():
            self._stepper.restore(saved["steps"])

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        if code == WANT_STOP or values[0]:
            self._versions.want_stop()
        if code == WANT_STOP:
            return ()
        arrival = self._versions.skip(rank) if code == BAD_UPLOAD else self._versions.arrive(rank)
        self._answer(arrival)
        self._at_once[rank] = rank in arrival.answered
        return {rank, *arrival.answered}

    def remove_worker(self, rank: int) -> Iterable[int]:
        arrival = self._versions.remove_worker(rank)
        self._answer(arrival)
        return arrival.answered

    def add_worker(self, rank: int) -> None:
        self._versions.add_worker(rank)

    def _answer(self, arrival: Arrival) -> None:
        if arrival.apply:
            self._apply(arrival.apply)
        for other in arrival.answered:
            for position, array in self.buffers[other].items():
                array[:] = self.shown[position]

    def status(self, rank: int) -> list[float]:
        versions = self._versions
        return BackupStatus(
            versions.over, versions.given[rank], versions.answered[rank], self._at_once[rank], versions.dropped[rank]
        ).numbers()

    def _apply(self, ranks: Sequence[int]) -> None:
        """Makes the next version of these workers' gradients, summed in the order of ranks, not of arrival."""
        samples = sum(self._sample_counts[rank] for rank in ranks)
        self._num_batches += len(ranks)
        factor = self._rule.schedule.factor(self._num_batches * self._rule.batch_size)
        for position in range(self.keys.num_arrays):
            target = self.shown[position]
            arrived = [self.buffers[rank][position] for rank in ranks]
            if position < self._num_weights:
                gradient = sum_of(arrived)
                self._stepper.step_one(position, target, gradient, self._learning_rate * factor, len(ranks))
            else:
                shares = (self._sample_counts[rank] / samples for rank in ranks)
                target[:] = sum_of([array * share for array, share in zip(arrived, shares, strict=True)])
