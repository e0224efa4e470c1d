"""The offline search for Sync-Switch's switch point: the next trial, and the result of all. Pure functions.

A trial trains `bsp_steps` with BSP and the rest of `total_steps` with ASP. The switch point is the smallest share of
BSP whose converged accuracy is, on average, at most `margin` below BSP's own. First comes BSP alone, then ASP alone,
then bisection between the smallest share that passed and the largest below it that failed. All earlier trials, of any
margin, are used. Accuracies are noisy, so a smaller share may pass where a larger one fails: the answer is the smallest
share that was tried and passed.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

ROUNDING = 1e-9  # accuracies are fractions of a test set; a difference of exactly the margin is within it

# The paper's convergence (Li et al., ICDCS 2021): the test accuracy changes by less than 0.1 % over five evaluations.
EVALUATIONS = 5
CHANGE = 0.001


class Plan(NamedTuple):
    """A trial to run."""

    bsp_steps: int
    seed: int


@dataclass(frozen=True)
class Trial:
    """A finished trial."""

    bsp_steps: int
    asp_steps: int
    seed: int
    accuracy: float | None  # as `converged_accuracy` has it; None: the trial diverged
    seconds: float  # of the training; where it diverged, of the job
    converged: bool = True

    @property
    def bsp_share(self) -> float:
        return bsp_share(self.bsp_steps, self.bsp_steps + self.asp_steps)


@dataclass(frozen=True)
class Goal:
    """The settings of a search."""

    total_steps: int  # of a trial, from 1 on
    margin: float  # accuracy, from 0 on
    resolution: float  # of the share of BSP, above 0
    seeds: tuple[int, ...]  # of the trials of each share


@dataclass(frozen=True)
class Mean:
    """The trials of one share together."""

    bsp_steps: int
    accuracy: float | None  # None: one of them diverged
    seconds: float


def converged_accuracy(accuracies: Sequence[float]) -> tuple[float, bool]:
    """The mean of a trial's last five evaluations, or of all where there are fewer, and whether it has converged. An
    earlier plateau, at the level of guessing or under BSP before the switch, does not count.

    Args:
        accuracies: of all evaluations in their order, at least one.
    """
    last = accuracies[-EVALUATIONS:]
    return sum(last) / len(last), len(last) == EVALUATIONS and max(last) - min(last) < CHANGE - ROUNDING


def bsp_share(bsp_steps: int, total_steps: int) -> float:
    """The share of the steps under BSP, from 0 to 1."""
    return bsp_steps / total_steps


def phases(bsp_steps: int, total_steps: int) -> tuple[str, tuple[int, ...]]:
    """main.py's --switch-order of a trial, and the steps of each phase."""
    if bsp_steps == total_steps:
        return "1", (total_steps,)
    if bsp_steps == 0:
        return "0", (total_steps,)
    return "10", (bsp_steps, total_steps - bsp_steps)


def means(trials: Collection[Trial], seeds: Collection[int]) -> dict[int, Mean]:
    """The means of the shares that have a trial with every seed, by steps of BSP."""
    found: dict[int, Mean] = {}
    for bsp_steps in {trial.bsp_steps for trial in trials}:
        runs = [trial for trial in trials if trial.bsp_steps == bsp_steps and trial.seed in seeds]
        if {run.seed for run in runs} == set(seeds):
            accuracies = [run.accuracy for run in runs if run.accuracy is not None]
            accuracy = sum(accuracies) / len(runs) if len(accuracies) == len(runs) else None
            found[bsp_steps] = Mean(bsp_steps, accuracy, sum(run.seconds for run in runs) / len(runs))
    return found


def verdicts(complete: Mapping[int, Mean], goal: Goal) -> dict[int, bool]:
    """Whether a share's accuracy is within the margin (not where it diverged), by steps of BSP. Empty until BSP's own
    is known."""
    bsp = complete.get(goal.total_steps)
    if bsp is None or bsp.accuracy is None:
        return {}
    limit = bsp.accuracy - goal.margin - ROUNDING
    return {steps: mean.accuracy is not None and mean.accuracy >= limit for steps, mean in complete.items()}


def smallest_within(trials: Collection[Trial], goal: Goal) -> Mean | None:
    """The smallest share tried that was within the margin; None before BSP itself was tried."""
    complete = means(trials, goal.seeds)
    good = [steps for steps, is_within in verdicts(complete, goal).items() if is_within]
    return complete[min(good)] if good else None


def next_trial(trials: Collection[Trial], goal: Goal) -> Plan | None:
    """The next trial; None once the answer is found to the resolution."""
    bsp_steps = _next_bsp_steps(means(trials, goal.seeds), goal)
    if bsp_steps is None:
        return None
    done = {trial.seed for trial in trials if trial.bsp_steps == bsp_steps}
    return Plan(bsp_steps, next(seed for seed in goal.seeds if seed not in done))


def _next_bsp_steps(complete: Mapping[int, Mean], goal: Goal) -> int | None:
    for bound in (goal.total_steps, 0):
        if bound not in complete:
            return bound
    is_within = verdicts(complete, goal)
    smallest = min(steps for steps in complete if is_within[steps])
    if smallest == 0:
        return None
    # No share between these two was tried, so none is tried twice.
    below = max(steps for steps in complete if steps < smallest)
    if smallest - below <= max(1.0, goal.resolution * goal.total_steps):
        return None
    return (below + smallest) // 2
