"""The numbers that travel beside the arrays of a sum over the workers; their sums come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from trainer.bad_numbers import present

if TYPE_CHECKING:
    from trainer.trainer import Trainer


@dataclass(frozen=True)
class Beside:
    """One worker's numbers, or their sums. What is None does not travel.

    Attributes:
        stop: 1 where this worker wants all to stop.
        numbers: the algorithm's own.
        samples: that this worker has trained on, where the step size follows those of all.
        missing: training samples behind arrays that hold nothing, where steps are looked at.
        pause: 1 where this worker wants all to come together anew, in a job that survives.
    """

    stop: float
    numbers: tuple[float, ...] = ()
    samples: float | None = None
    missing: float | None = None
    pause: float | None = None

    def packed(self) -> np.ndarray:
        """As float32 (length,), which is the same for all workers of a job."""
        known = (each for each in (self.samples, self.missing, self.pause) if each is not None)
        return np.array([self.stop, *self.numbers, *known], np.float32)

    def unpacked(self, sums: Sequence[float]) -> Beside:
        """The sums, as an array in the form that `packed` gives of this one.

        Raises:
            ValueError: it has another length.
        """
        names = [name for name in ("samples", "missing", "pause") if getattr(self, name) is not None]
        stop, *rest = sums
        numbers, known = rest[: len(self.numbers)], rest[len(self.numbers) :]
        return replace(self, stop=stop, numbers=tuple(numbers), **dict(zip(names, known, strict=True)))


def of_worker(trainer: Trainer, wants_stop: bool, numbers: Sequence[float], is_missing: bool = False) -> Beside:
    """What a worker says in the sum of this round.

    Args:
        numbers: the algorithm's own.
        is_missing: its arrays hold nothing.
    """
    return Beside(
        float(wants_stop),
        tuple(numbers),
        None if trainer.context.run.rule.schedule.is_constant else float(trainer.seen.own),
        float(trainer.membership.counted * is_missing) if trainer.checks.are_made else None,
        None if trainer.recovery is None else float(trainer.recovery.wants_pause),
    )


def take(trainer: Trainer, sums: Beside) -> bool:
    """Tells a worker what all of them have said; returns whether any of them wants to stop."""
    trainer.pauses = bool(sums.pause)
    if sums.missing is not None:
        trainer.present = present(trainer.membership.counted_of_all, sums.missing)
    if sums.samples is not None:
        trainer.seen.told(trainer.seen.of_all + round(sums.samples), trainer.seen.own)
    return bool(sums.stop)
