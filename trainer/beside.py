"""What travels beside the arrays that workers sum: a few numbers, whose sums over the workers come back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


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
