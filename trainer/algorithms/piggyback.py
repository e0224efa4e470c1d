"""The numbers that travel with the arrays of a sum over the workers; their sums come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trainer.trainer import Trainer


@dataclass(frozen=True)
class Piggyback:
    """One worker's numbers, or their sums. None does not travel."""

    stop: float  # 1: this worker wants all to stop
    weight: float  # of this worker in the mean; 0: its arrays are zeros
    numbers: tuple[float, ...] = ()  # the algorithm's own
    samples: float | None = None  # trained on by this worker; None with a constant step size
    pause: float | None = None  # 1: this worker wants all to regroup; None in a job that does not survive losses

    def packed(self) -> np.ndarray:
        """Float32 (length,), of the same length on all workers of a job."""
        known = (each for each in (self.samples, self.pause) if each is not None)
        return np.array([self.stop, self.weight, *self.numbers, *known], np.float32)

    def unpacked(self, sums: Sequence[float]) -> Piggyback:
        """The sums from an array of the form of `packed`. Raises ValueError if the array has another length."""
        names = [name for name in ("samples", "pause") if getattr(self, name) is not None]
        stop, weight, *rest = sums
        numbers, known = rest[: len(self.numbers)], rest[len(self.numbers) :]
        return replace(self, stop=stop, weight=weight, numbers=tuple(numbers), **dict(zip(names, known, strict=True)))


def of_worker(trainer: Trainer, wants_stop: bool, weight: float, numbers: Sequence[float]) -> Piggyback:
    """A worker's numbers for the sum of this round."""
    return Piggyback(
        float(wants_stop),
        weight,
        tuple(numbers),
        None if trainer.context.run.rule.schedule.is_constant else float(trainer.seen.own),
        None if (pause := trainer.company.wants_pause) is None else float(pause),
    )


def take(trainer: Trainer, sums: Piggyback) -> bool:
    """Stores the sums in the trainer; returns whether any worker wants to stop."""
    trainer.pauses = bool(sums.pause)
    trainer.weight_of_all = sums.weight
    if sums.samples is not None:
        trainer.seen.update(trainer.seen.of_all + round(sums.samples), trainer.seen.own)
    return bool(sums.stop)
