"""Searches the step size of a job on one machine alone, by successive halving on held-out samples.

Each trial trains from the same weights for as many steps, so that no other load on the machine changes the choice. The
first stage has all step sizes of a grid; the second the best of them, for longer; the third those between the best and
its neighbours. Where the best of the grid is at one of its ends, the grid grows there.
"""

import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from algorithms import ENTRIES, OWNERS
from config import LEARNING_RATES, names_of
from report import metrics
from scripts.run_lines import duration_text
from scripts.run_process import Processes
from scripts.sweep_grid import LOCAL, NETWORK_WITHOUT_N, Flags, command, counts, mode_folder
from trainer.jobs.sources import ignored_network
from trainer.metric import ACCURACY, Metric
from utils import SetupError

GRID = tuple(range(-10, -1))  # step sizes: powers of the root of 10, from 1e-5 to 0.1
LEAST, GREATEST = -20, 4
GROWS_BY = 2  # sizes at once
FIRST_SHARE = 0.5  # of the time, for the grid
BEST_ONES, LONGER = 3, 10  # step sizes of the second stage, which is at most this many times as long
PROBE_STEPS = 2
FEWEST_STEPS = 20  # of a trial
VALIDATION = 2000  # held-out samples without --validation
LIMITS = ("max_rounds", "max_seconds", "target", "target_accuracy", "eval_duration", "eval_seconds")
SPEED = ("--workers", "--cluster")  # options of emulated speeds, for which real processes need not wait here


@dataclass
class Job:
    """What is tuned, and the results of its trials."""

    on: str  # of sweep_grid.BACK_ENDS
    options: Sequence[str]  # this and the flags as a Point's
    flags: Flags
    processes: Processes
    # The metric by step size and steps; None where the training diverged
    found: dict[tuple[float, int], float | None] = field(default_factory=dict)
    metric: Metric = ACCURACY  # of the last trial that did not diverge

    def command(self, size: float, steps: int) -> list[str]:
        mode, options = "alone", [*self.options]
        if self.on == LOCAL:
            mode = "local"
            for option in SPEED:
                if option in options:
                    del options[options.index(option) : options.index(option) + 2]
        flags = {name: words for name, words in self.flags.items() if counts(name, mode) and name not in LIMITS}
        own = {"learning_rate": f"{size:g}", "max_rounds": str(steps), "eval_duration": str(steps), "seed": "0"}
        defaults: Flags = {"validation": (str(VALIDATION),)}
        if not any(ignored_network(path, "") for path in flags.get("job", ())):
            defaults = {"network": (NETWORK_WITHOUT_N,), **defaults}
        return command(self.on, mode, options, {**defaults, **flags, **{name: (word,) for name, word in own.items()}})

    def run(self, size: float, steps: int) -> float:
        """Makes a trial; returns its seconds. Raises SetupError if it failed, KeyboardInterrupt if it was stopped."""
        words, begin = self.command(size, steps), time.monotonic()
        base = self.processes.work / f"{size:g}-{steps}"
        shutil.rmtree(base, ignore_errors=True)
        ended = self.processes.do(words, mode_folder(words, base), base)
        if ended is None or self.processes.stopped:
            raise KeyboardInterrupt
        if ended.failed:
            raise SetupError(f"a trial failed: {ended.failed}; what it printed is in {base}")
        evaluator = None if ended.diverged else metrics.evaluating_device(ended.read()[1], lambda text: None)
        if evaluator is None and not ended.diverged:
            raise SetupError(f"a trial with the step size {size:g} was not evaluated; its logs are in {base}")
        if evaluator is not None:
            self.metric = evaluator.metric
        self.found[size, steps] = evaluator.accuracy_list[-1] if evaluator else None
        shutil.rmtree(base, ignore_errors=True)
        return time.monotonic() - begin

    def worth(self, size: float, steps: int) -> float:
        """The greater the better."""
        value = self.found[size, steps]
        return -math.inf if value is None else value if self.metric.more_is_better else -value


@dataclass(frozen=True)
class Best:
    """The step size that was found."""

    size: float
    value: str  # of the metric, in words
    steps: int
    end: str  # "least" or "greatest" where it is an end of all that were tried, else empty


def power(exponent: float) -> float:
    """A step size of two digits."""
    return float(f"{10 ** (exponent / 2):.2g}")


class Search:
    """The trials of a search, which end in about `budget_s` seconds."""

    def __init__(self, job: Job, budget_s: float, say: Callable[[str], None]) -> None:
        self._job, self._left_s, self._say = job, budget_s, say
        self._start_s = self._step_s = 0.0  # of a trial

    def best(self) -> Best:
        """Raises SetupError if the time is too short, a trial failed, or the training diverges with all step sizes,
        KeyboardInterrupt if it was stopped."""
        budget_s = self._left_s
        self._probe(budget_s)
        grid: list[float] = [*GRID]
        trials = len(grid) + GROWS_BY
        steps = self._steps(self._left_s * FIRST_SHARE, trials)
        if steps < FEWEST_STEPS:
            needed_s = trials * (self._start_s + FEWEST_STEPS * self._step_s) / FIRST_SHARE + budget_s - self._left_s
            least = math.ceil(needed_s / 6) / 10
            raise SetupError(f"--tune {budget_s / 60:g} is too short for this job: give at least {least:.1f} minutes")
        self._try(grid, steps)
        while more := _beyond(grid, self._order(grid, steps)[0]):
            if len(more) * (self._start_s + steps * self._step_s) > self._left_s:
                break
            self._say(f"the best is at an end of {power(grid[0]):g} to {power(grid[-1]):g}: the range grows")
            self._try(more, steps)
            grid = sorted({*grid, *more})
        chosen = [each for each in self._order(grid, steps)[:BEST_ONES] if math.isfinite(self._worth(each, steps))]
        if not chosen:
            raise SetupError(
                f"the training diverges with all step sizes from {power(grid[0]):g} to {power(grid[-1]):g}"
            )
        longer = max(steps, min(LONGER * steps, self._steps(self._left_s, len(chosen) + 2)))
        self._try(chosen, longer)
        first = self._order(chosen, longer)[0]
        between = [first - 0.5, first + 0.5]
        self._try(between, longer)
        found = self._order([*chosen, *between], longer)[0]
        end = "least" if found <= grid[0] else "greatest" if found >= grid[-1] else ""
        value = self._job.metric.text(self._job.found[power(found), longer] or 0.0)
        return Best(power(found), f"{self._job.metric.name} {value}", longer, end)

    def _probe(self, budget_s: float) -> None:
        """Measures a start, and a step by a trial that takes longer than that."""
        steps = PROBE_STEPS
        self._start_s = took_s = self._run(power(GRID[0]), steps)
        while took_s < min(2 * self._start_s, budget_s / 20) or not self._step_s:
            steps *= 8
            took_s = self._run(power(GRID[0]), steps)
            self._step_s = max(0.0, took_s - self._start_s) / steps
        self._say(f"a start takes {self._start_s:.1f} s, a step {1e3 * self._step_s:.2g} ms")

    def _steps(self, seconds: float, trials: int) -> int:
        """How many steps each of some trials can take."""
        return int((seconds / trials - self._start_s) / self._step_s)

    def _run(self, size: float, steps: int) -> float:
        took_s = self._job.run(size, steps)
        self._left_s -= took_s
        return took_s

    def _try(self, exponents: Sequence[float], steps: int) -> None:
        for size in map(power, exponents):
            self._run(size, steps)
            value = self._job.found[size, steps]
            result = "diverged" if value is None else self._job.metric.text(value)
            left = duration_text(max(0.0, self._left_s))
            self._say(f"step size {size:g}, {steps} steps: {result}; {left} left")

    def _worth(self, exponent: float, steps: int) -> float:
        return self._job.worth(power(exponent), steps)

    def _order(self, exponents: Sequence[float], steps: int) -> list[float]:
        """The best first."""
        return sorted(exponents, key=lambda each: -self._worth(each, steps))


def _beyond(grid: Sequence[float], best: float) -> list[float]:
    """The step sizes next to the end of the grid at which the best one is; none where it is at no end."""
    if best == grid[0]:
        return [each for each in (best - 1, best - 2)[:GROWS_BY] if each >= LEAST]
    return [each for each in (best + 1, best + 2)[:GROWS_BY] if each <= GREATEST] if best == grid[-1] else []


def advice(best: Best) -> list[str]:
    """The lines for the user: flags, and in which modes they count."""
    size = f"{best.size:g}"
    by_rate = {
        rate: [name for name, entry in ENTRIES.items() if entry is OWNERS[name] and rate in OWNERS[name].flags]
        for rate in LEARNING_RATES
    }
    alone = [name for name in by_rate["learning_rate"] if not OWNERS[name].waits or name == "ssp"]
    mean = [name for name in by_rate["learning_rate"] if name not in alone]
    rate, local_rate = (names_of(field)[0] for field in LEARNING_RATES)
    rows = [
        (f"{local_rate} {size}", f"{', '.join(by_rate['local_lr'])}: each worker takes such steps"),
        (
            f"{rate} {size}",
            f"{', '.join(mean)}: the mean of the workers' gradients, each summed over its batch, is as long a step; "
            "with N workers up to N times as much may train faster",
        ),
        (f"{rate} {size}/N", f"{', '.join(alone)}: each of the N workers' gradients is a step of its own"),
        (f"{names_of('global_lr')[0]} 1", "the mean of the models; 0.7 with an outer optimiser, as esync-outer has it"),
    ]
    width = max(len(flag) for flag, _ in rows)
    lines = [
        f"{best.value} on the held-out samples after {best.steps} steps of one machine alone with",
        *(f"  {flag.ljust(width)}  {text}" for flag, text in rows),
    ]
    if best.end:
        lines.append(
            f"this is the {best.end} step size that was tried: give --tune more minutes, and the search continues there"
        )
    return lines
