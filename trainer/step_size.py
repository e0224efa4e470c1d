"""What a step size is of the mean loss, and whether the first steps with it learn anything. Pure.

Step sizes act on the loss summed over a batch of B samples, so eta is eta * B of the mean loss, which is what most
other programs and papers mean by a learning rate. A network that guesses each of C classes alike has a mean loss of
ln C: one that is not below it after some steps has learnt nothing.
"""

from __future__ import annotations

import math

from config import LEARNING_RATES, SGD, Config, names_of
from rates import parse_schedule

FEWEST_SAMPLES = 1000  # of a worker: with single samples a sound run may be no better than a guess after FIRST steps
FIRST = 100  # local steps of a worker; the losses of the second half of them are looked at


def rate_of(config: Config) -> tuple[str, float]:
    """The field of the step size that counts in the mode, and its value."""
    field = next(name for name in LEARNING_RATES if name in config.algorithm.all_flags)
    return field, getattr(config, field)


def told(config: Config, num_workers: int) -> str:
    """The step size in words: the flag that counts in the mode, and what it is of the mean loss."""
    field, rate = rate_of(config)
    flag = names_of(field)[0]
    times = "" if config.lr_schedule == Config.lr_schedule else f", times --lr-schedule {config.lr_schedule}"
    if config.optimizer != SGD:
        return f"step size: {flag} {rate:g} is {config.optimizer}'s, whatever the batch size{times}"
    if "phase_lr" not in config.algorithm.all_flags:
        return f"step size: {flag} {_of_mean(rate, config.batch_size)}{times}"
    phases = zip(
        config.switch_order, config.of_phases(config.phase_lr), config.of_phases(config.phase_batch_size), strict=True
    )
    # Without --phase-lr a gradient under ASP takes one share of the step that the gradients of all take under BSP.
    parts = [
        ("BSP " if kind == "1" else "ASP ")
        + _of_mean(own or (rate if kind == "1" else rate / num_workers), size or config.batch_size)
        for kind, own, size in phases
    ]
    return f"step size by phase: {'; '.join(parts)}{times}"


def _of_mean(rate: float, batch_size: int) -> str:
    return f"{rate:g} of the loss summed over {batch_size} samples, which is {rate * batch_size:g} of the mean loss"


class FirstSteps:
    """Looks at the losses of a worker's first steps; those of a warm-up do not count, since their steps are small."""

    def __init__(self, config: Config, classes: int) -> None:
        """
        Args:
            classes: 0: there are none to guess, and nothing is looked at.
        """
        self._config = config
        self._classes = classes
        schedules = config.lr_schedule, config.phase_lr_schedule[0]
        self._warm_up = max(parse_schedule(schedule).warmup for schedule in schedules)
        self._steps = 0
        self._losses: list[float] = []  # mean over a batch's samples
        # Of split classes a worker's losses are those of its own, which it may learn last of all.
        self._is_open = classes > 1 and not config.split_by_class

    def warning(self, steps: int, samples: int, loss: float | None) -> str:
        """Told of each round, says once what is wrong; empty where nothing is.

        Args:
            steps: of this worker in the round.
            samples: that all workers have trained on so far.
            loss: of the last batch of the round; None where it is not finite.
        """
        if not self._is_open or samples <= self._warm_up:
            return ""
        self._steps += steps
        if loss is not None and self._steps > FIRST // 2:
            self._losses.append(loss)
        if self._steps < FIRST or self._steps * self._config.batch_size < FEWEST_SAMPLES or not self._losses:
            return ""
        self._is_open = False
        mean, guess = sum(self._losses) / len(self._losses), math.log(self._classes)
        if mean < guess:
            return ""
        field, rate = rate_of(self._config)
        default: float = getattr(Config, field)
        what = "a smaller step size" if rate > default else "another step size"
        return (
            f"after {self._steps} steps the loss is {mean:.3f}, and {guess:.3f} is that of a guess at {self._classes} "
            f"classes: nothing is learnt so far. Try {what} than {names_of(field)[0]} {rate:g} (default: {default:g})"
        )
