"""Schedules by the samples that all workers have trained on: a factor on the step size, and a momentum."""

import math
from typing import NamedTuple


class RateSchedule(NamedTuple):
    """A factor on the step size."""

    warmup: int = 0  # samples until the full step size; 0: no warm-up
    # Pairs (samples, factor): after these samples the step size is multiplied by the factor
    drops: tuple[tuple[int, float], ...] = ()
    cosine: int = 0  # samples at the end of the half cosine; 0: no cosine
    floor: float = 0.0  # the factor there

    @property
    def is_constant(self) -> bool:
        return self == CONSTANT

    def factor(self, samples: int) -> float:
        """The factor on the step after which `samples` have been trained on, its own included."""
        result = min(1.0, samples / self.warmup) if self.warmup else 1.0
        for after, factor in self.drops:
            if samples > after:
                result *= factor
        if self.cosine:
            progress = min(1.0, max(0.0, (samples - self.warmup) / (self.cosine - self.warmup)))
            result *= self.floor + (1 - self.floor) * (1 + math.cos(math.pi * progress)) / 2
        return result


CONSTANT = RateSchedule()


class Ramp(NamedTuple):
    """A number that changes linearly from one value to another, and stays there."""

    first: float
    last: float
    over: int = 0  # samples from the first to the last value; 0: it is the last from the beginning

    def value(self, samples: int) -> float:
        """The value after `samples` have been trained on."""
        if samples >= self.over:
            return self.last
        return self.first + (self.last - self.first) * samples / self.over
