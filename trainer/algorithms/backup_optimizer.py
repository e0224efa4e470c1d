"""The parameter server's side of backup workers (backup.py): the model, and the gradients of its newest version.
This module runs in the server's process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer.algorithms.backup_versions import Arrival, Versions
from trainer.algorithms.whole_models import BAD_UPLOAD, WANT_STOP, Keys, WholeModelOptimizer
from trainer.engine import mx
from trainer.parameters import wait_for
from trainer.steps import PLAIN, Rule, Stepper

BASE = 1 << 20  # counts travel as two digits: a float32 tells whole numbers apart to 2 ** 24 only


@dataclass(frozen=True)
class Status:
    """What the server tells a worker.

    Attributes:
        over: the job is, for all.
        version: of the model that the worker was given last.
        answered: how many of its gradients are dealt with; the model of the last answer is in its gradient buffer.
        at_once: the last one was as soon as it was there.
        dropped: how many of its gradients came too late.
    """

    over: bool
    version: int
    answered: int
    at_once: bool
    dropped: int

    @classmethod
    def read(cls, numbers: np.ndarray) -> Status:
        """Reads a status vector."""
        over, at_once, *digits = map(round, numbers.tolist())
        version, answered, dropped = (high * BASE + low for high, low in zip(digits[::2], digits[1::2], strict=True))
        return cls(bool(over), version, answered, bool(at_once), dropped)

    def numbers(self) -> list[float]:
        """As a status vector."""
        digits = (digit for count in (self.version, self.answered, self.dropped) for digit in divmod(count, BASE))
        return [*map(float, (self.over, self.at_once, *digits))]


class BackupOptimizer(WholeModelOptimizer):
    """What is shown is the newest version. A worker finds the one that it is given in its gradient buffer, where its
    gradient was: nothing changes there before its next upload, however many versions the others make meanwhile.
    """

    def __init__(
        self,
        keys: Keys,
        num_backup: int,
        learning_rate: float,
        decays: Sequence[bool],
        sample_counts: Sequence[int],
        rule: Rule = PLAIN,
    ) -> None:
        """
        Args:
            learning_rate: eta.
            decays: of each weight, whether weight decay acts on it. So many of the sent arrays are gradients; behind
                them stand BatchNorm's statistics.
            sample_counts: n_k by rank; empty where all have as many.
            rule: how steps are taken. A schedule goes by the samples whose gradients counted.
        """
        super().__init__(keys)
        self._versions = Versions(keys.num_workers, num_backup)
        self._learning_rate = learning_rate
        self._rule, self._stepper = rule, Stepper(rule, decays)
        self._num_weights = len(decays)
        self._num_batches = 0  # that counted
        self._sample_counts = tuple(sample_counts) or (1,) * keys.num_workers
        self._at_once = [False] * keys.num_workers

    def state(self) -> dict[str, Any]:
        """As WholeModelOptimizer says: what waits for others is not among it."""
        return {
            "version": self._versions.version,
            "batches": self._num_batches,
            "steps": self._stepper.state(),
        }

    def restore(self, saved: Mapping[str, Any]) -> None:
        """As WholeModelOptimizer says."""
        super().restore(saved)
        self._versions.begin_with(saved["version"])
        self._num_batches = saved["batches"]

    def begin(self) -> None:
        """The initial model is shown already."""
        if saved := self.take_saved():
            self._stepper.restore(saved["steps"], mx.cpu())

    def act(self, rank: int, code: int, values: Sequence[float]) -> Iterable[int]:
        """UPLOAD: gradients and statistics are there, or BAD_UPLOAD; WANT_STOP: the stop request of a worker that
        waits."""
        if code == WANT_STOP or values[0]:
            self._versions.want_stop()
        if code == WANT_STOP:
            return ()
        arrival = self._versions.skip(rank) if code == BAD_UPLOAD else self._versions.arrive(rank)
        self._answer(arrival)
        self._at_once[rank] = rank in arrival.answered
        return {rank, *arrival.answered}

    def go_on_without(self, rank: int) -> Iterable[int]:
        """As WholeModelOptimizer says: the gradients that wait may be enough now."""
        arrival = self._versions.go_on_without(rank)
        self._answer(arrival)
        return arrival.answered

    def _answer(self, arrival: Arrival) -> None:
        if arrival.apply:
            self._apply(arrival.apply)
        for other in arrival.answered:
            for position, array in self.buffers[other].items():
                self.shown[position].copyto(array)
            wait_for(self.buffers[other].values())

    def status(self, rank: int) -> list[float]:
        """As WholeModelOptimizer says."""
        its = self._versions
        return Status(its.over, its.given[rank], its.answered[rank], self._at_once[rank], its.dropped[rank]).numbers()

    def _apply(self, ranks: Sequence[int]) -> None:
        """The next version out of some workers' gradients, summed in the order of their ranks, however they arrived."""
        samples = sum(self._sample_counts[rank] for rank in ranks)
        self._num_batches += len(ranks)
        factor = self._rule.schedule.factor(self._num_batches * self._rule.batch_size)
        for position in range(self.keys.num_sent):
            target = self.shown[position]
            arrived = [self.buffers[rank][position] for rank in ranks]
            if position < self._num_weights:
                gradient = mx.nd.add_n(*arrived)
                self._stepper.step_one(position, target, gradient, self._learning_rate * factor, len(ranks))
            else:
                shares = (self._sample_counts[rank] / samples for rank in ranks)
                parts = (array * share for array, share in zip(arrived, shares, strict=True))
                mx.nd.add_n(*parts).copyto(target)
        wait_for(self.shown[position] for position in range(self.keys.num_sent))
