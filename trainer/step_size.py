"""Describes a step size in terms of the mean loss, and checks that the first steps with it learn anything. Pure.

Step sizes act on the loss summed over a batch of B samples, so eta is eta * B of the mean loss, which most other
programs and papers call the learning rate. A uniform guess at C classes has a mean loss of ln C: a network that is not
below it after some steps has learnt nothing.
"""

import math

from algorithm_row import AlgorithmFlags
from config import FIELDS, SGD, Config, names_of
from flag_values import parse_schedule

FEWEST_SAMPLES = 1000  # of a worker: after FIRST steps of one sample each a sound run may still be guessing
FIRST = 100  # local steps of a worker; the losses of the second half count


def describe(config: Config, num_workers: int) -> str:
    """The mode's step size in words, with its flag and its value for the mean loss."""
    its = config.settings
    flag = names_of(its.rate_field)[0]
    times = "" if parse_schedule(its.lr_schedule).is_constant else f", times --lr-schedule {its.lr_schedule}"
    if its.optimizer != SGD:
        return f"step size: {flag} {its.rate:g} is {its.optimizer}'s, whatever the batch size{times}{_outer(its)}"
    phases = [
        (name, f"{rate:g} of the loss summed over {size} samples, which is {rate * size:g} of the mean loss")
        for name, rate, size in its.step_sizes(config.batch_size, num_workers)
    ]
    if not phases[0][0]:
        return f"step size: {flag} {phases[0][1]}{times}"
    return f"step size by phase: {'; '.join(' '.join(phase) for phase in phases)}{times}"


def _outer(settings: AlgorithmFlags) -> str:
    """What an outer optimiser makes of the steps of one such as Adam, whose length does not fall with the gradient."""
    if not settings.outer_momentum:
        return ""
    longer = settings.global_lr / (1 - settings.outer_momentum)
    return f"; the outer optimiser makes a round's steps up to {longer:.3g} times as long: try a step as much smaller"


class FirstSteps:
    """Checks the losses of a worker's first steps after the warm-up, whose steps are too small.

    With 0 classes nothing is checked.
    """

    def __init__(self, config: Config, classes: int) -> None:
        self._config = config
        self._classes = classes
        schedules = config.settings.lr_schedule, config.settings.phase_lr_schedule[0]
        self._warm_up = max(parse_schedule(schedule).warmup for schedule in schedules)
        self._steps = 0
        self._losses: list[float] = []  # mean over a batch's samples
        # With --split-by-class a worker's losses are those of its own classes, which it may learn last.
        self._is_open = classes > 1 and not config.split_by_class

    def warning(self, steps: int, samples: int, loss: float | None) -> str:
        """Returns a warning once, else an empty string; called after each round with this worker's steps in it, the
        samples of all workers so far, and the last batch's loss (None: not finite)."""
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
        field, rate = self._config.settings.rate_field, self._config.settings.rate
        default: float = FIELDS[field].default
        what = "a smaller step size" if rate > default else "another step size"
        return (
            f"after {self._steps} steps the loss is {mean:.3f}, and {guess:.3f} is that of a guess at {self._classes} "
            f"classes: nothing is learnt so far. Try {what} than {names_of(field)[0]} {rate:g} (default: {default:g})"
            + (", or look at what prepare() returns" if self._config.job else "")
        )
