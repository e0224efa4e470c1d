"""Schedules by the samples that all workers have trained on: a factor on the step size, and a momentum. Pure functions.

A schedule of step sizes is a text of parts joined by +:

    warmup:10000             grows linearly from 0 to 1 over the first 10,000 samples
                             (Goyal et al., "Accurate, large minibatch SGD", 2017, arXiv:1706.02677)
    step:300000,450000x0.1   piecewise constant: a tenth after 300,000 samples, a hundredth after 450,000; each may
                             have a factor of its own, as in step:300000x0.1,450000x0.5
    cosine:600000            falls from 1 at the end of the warm-up to 0 at 600,000 samples, along a half cosine
                             (Loshchilov and Hutter, "SGDR", ICLR 2017, arXiv:1608.03983, without restarts);
                             cosine:600000x0.01 ends at a hundredth
    constant                 1

Samples are counted from the beginning, with those of the warm-up and of the step itself. E epochs of a data set are E
times its training samples.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass

SCHEDULES = "constant, or warmup:SAMPLES, step:SAMPLES,SAMPLESxFACTOR and cosine:SAMPLES joined by +"
RAMPS = "a number from 0 to below 1, or two of them and the samples from one to the other, such as 0..0.9:50000"


@dataclass(frozen=True)
class RateSchedule:
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


def parse_schedule(text: str) -> RateSchedule:
    """Reads a schedule. Raises ValueError if the text is no schedule; the message says what is allowed."""
    if text == "constant":
        return CONSTANT
    parts: dict[str, str] = {}
    for part in text.split("+"):
        kind, _, numbers = part.partition(":")
        if kind not in ("warmup", "step", "cosine") or kind in parts:
            raise ValueError(f"{text!r} is no schedule of step sizes; give {SCHEDULES}")
        parts[kind] = numbers
    if "step" in parts and "cosine" in parts:
        raise ValueError(f"{text!r} has both steps and a cosine: give one of them")
    warmup = _samples(parts["warmup"], text) if "warmup" in parts else 0
    if "step" in parts:
        return RateSchedule(warmup, _drops(parts["step"], text))
    if "cosine" not in parts:
        return RateSchedule(warmup)
    end, _, floor = parts["cosine"].partition("x")
    schedule = RateSchedule(warmup, cosine=_samples(end, text), floor=_factor(floor or "0", text))
    if schedule.cosine <= warmup:
        raise ValueError(f"{text!r}: the cosine ends before the warm-up does; its samples count from the beginning")
    return schedule


def _drops(numbers: str, text: str) -> tuple[tuple[int, float], ...]:
    """Reads the drops; one without a factor has that of the next one."""
    drops: list[tuple[int, float]] = []
    factor = ""
    for drop in reversed(numbers.split(",")):
        after, _, own = drop.partition("x")
        factor = own or factor
        drops.insert(0, (_samples(after, text), _factor(factor, text)))
    if any(later <= earlier for (earlier, _), (later, _) in itertools.pairwise(drops)):
        raise ValueError(f"{text!r}: each number of samples must be above the one before it")
    return tuple(drops)


def _samples(number: str, text: str) -> int:
    if not re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", number, re.ASCII) or not float(number).is_integer():
        raise ValueError(f"{text!r}: {number!r} is no number of samples; give {SCHEDULES}")
    if float(number) < 1:
        raise ValueError(f"{text!r}: {number!r} is no number of samples above 0")
    return int(float(number))


def _factor(number: str, text: str) -> float:
    value = _number(number)
    if not 0 <= value < 1:
        raise ValueError(
            f"{text!r}: {number!r} is no factor from 0 to below 1 (exponent: two digits at most); give {SCHEDULES}"
        )
    return value


def _number(text: str) -> float:
    """A plain number; NaN, which is in no range, for other texts."""
    return float(text) if re.fullmatch(r"\d*\.?\d+(e-?\d{1,2})?", text, re.ASCII) else math.nan


@dataclass(frozen=True)
class Ramp:
    """A number that changes linearly from one value to another, and stays there."""

    first: float
    last: float
    over: int = 0  # samples from the first to the last value; 0: it is the last from the beginning

    @classmethod
    def constant(cls, value: float) -> Ramp:
        return cls(value, value)

    @property
    def is_zero(self) -> bool:
        return self.first == self.last == 0

    def value(self, samples: int) -> float:
        """The value after `samples` have been trained on."""
        if samples >= self.over:
            return self.last
        return self.first + (self.last - self.first) * samples / self.over


def parse_ramp(text: str) -> Ramp:
    """Reads a momentum: 0.9, or 0..0.9:50000 for one that grows from 0 to 0.9 over 50,000 samples. Raises ValueError if
    the text is no momentum; the message says what is allowed."""
    first, dots, rest = text.partition("..")
    last, colon, over = rest.partition(":") if dots else (first, "", "")
    values = _number(first), _number(last)
    if not all(0 <= value < 1 for value in values) or bool(dots) != bool(colon):
        raise ValueError(f"{text!r} is no momentum; give {RAMPS}")
    return Ramp(*values, _samples(over, text) if dots else 0)
