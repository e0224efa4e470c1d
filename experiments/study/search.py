"""How the numbers of a row are searched: step size, momentum and the row's own parameters together. Pure functions.

Every row has the same number of quasi-random trials. Then come trials near the best one, which differ from it in one
number, until none of these is better or there are MOST_NEAR of them for each number.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from algorithms import Workers
from experiments.study.comparison import ROWS, RunLine

SEED = 2026  # of the shift of the points
MOST_NEAR = 5  # trials near the best one for each number that is searched, momentum too
STEP_SIZE, FASTEST, BSP_SHARE = "step_size", "fastest", "bsp_share"  # numbers that are no field of Config
# Irrational steps of the further coordinates: the fractional parts of multiples of these are evenly spread.
_STEPS = (0.6180339887, 0.4142135624)
NEAR = 1.6  # less than the factor between two of six step sizes


@dataclass(frozen=True)
class Parameter:
    """A number that is searched for.

    Attributes:
        name: a field of Config, or of the names above.
        low, high: the range of the first trials.
        least, most: beyond these there are no values, or none that makes sense.
        is_whole: a whole number.
        is_even: the first trials are evenly spread, and near ones differ by one; else their logarithms are, and near
            ones differ by a factor of NEAR.
    """

    name: str
    low: float
    high: float
    least: float = 0.0
    most: float = float("inf")
    is_whole: bool = True
    is_even: bool = False

    def at(self, place: float) -> float:
        """The value at a place, 0 to below 1, of the range."""
        if self.is_even:
            return int(self.low + place * (self.high + 1 - self.low))
        return self._rounded(self.low * (self.high / self.low) ** place)

    def near(self, value: float, up: bool) -> float:
        """The next value on one side; the value itself where there is none."""
        further = self._rounded(value * (NEAR if up else 1 / NEAR))
        if self.is_even or (self.is_whole and further == value):
            further = value + (1 if up else -1)
        return min(self.most, max(self.least, further))

    def _rounded(self, value: float) -> float:
        return max(1, round(value)) if self.is_whole else float(f"{value:.3g}")


def parameters(entry: str, workers: int) -> tuple[Parameter, ...]:
    """A row's own parameters, beside step size and momentum.

    Args:
        workers: of the cluster.
    """
    local_steps = Parameter("sync_every", 2, 32, least=1)
    found = {
        "esync-outer": (Parameter("anchor", 1, 16, least=1),),
        "esync-outer-k": (Parameter("anchor", 1, 16, least=1),),
        "esync-outer-aware": (Parameter("anchor", 1, 16, least=1),),
        "esync-anchor": (Parameter("anchor", 2, 16, least=2),),  # 1 is ESync
        "backup": (Parameter("backup", 1, workers - 1, 1, workers - 1, is_even=True),),
        "dcasgd": (Parameter("dcasgd_lambda", 0.004, 0.4, is_whole=False),),
        "ringmaster": (Parameter("max_delay", 2, 64, least=1),),
        "ssp": (Parameter("staleness", 1, 32, least=1),),
        "local-sgd": (local_steps,),
        "fastest-local": (local_steps,),
        "fastest-outer": (local_steps,),
        "async-local": (local_steps,),
        "decoupled": (local_steps, Parameter("quorum", 1, workers, 1, workers, is_even=True)),
        "sync-switch": (Parameter(BSP_SHARE, 0.02, 0.5, most=1.0, is_whole=False),),
    }
    k = Parameter(FASTEST, 1, workers, 1, workers, is_even=True)
    return ((k,) if ROWS[entry].workers is Workers.K_FASTEST else ()) + found.get(entry, ())


@dataclass(frozen=True)
class Trial:
    """Numbers of a row that are tried together.

    Attributes:
        values: of STEP_SIZE without momentum, and of the row's own parameters.
    """

    momentum: float
    values: Mapping[str, float]

    @classmethod
    def of(cls, line: RunLine) -> "Trial":
        """The trial that a run belongs to."""
        momentum = line.momentum or 0.0
        return cls(momentum, {STEP_SIZE: float(f"{line.step_size / (1 - momentum):.3g}"), **line.parameters})

    @property
    def step_size(self) -> float:
        """With momentum as much less as its steps sum up more: v <- mu * v + gradient adds up to 1 / (1 - mu)
        gradients. So one range suits all momenta."""
        return float(f"{self.values[STEP_SIZE] * (1 - self.momentum):.3g}")

    @property
    def own(self) -> dict[str, float]:
        """The values of the row's own parameters."""
        return {name: value for name, value in self.values.items() if name != STEP_SIZE}


def first_trials(searched: Sequence[Parameter], momenta: Sequence[float], trials: int) -> list[Trial]:
    """The quasi-random trials of a row, as many with each momentum.

    Of each momentum they are a Hammersley set: the step sizes are equally far apart, the other numbers follow a
    Kronecker sequence, and all are moved by one random vector round the end (Cranley and Patterson 1976). Step sizes in
    the middle of the range come first: a good trial bounds the time of the later ones.

    Args:
        searched: the step size, then the row's own parameters.
        trials: in all.
    """
    each, found = trials // len(momenta), []
    for number, momentum in enumerate(momenta):
        moved = np.random.default_rng((SEED, number)).random(1 + len(_STEPS))
        for point in range(each):
            places = [point / each, *(point * step for step in _STEPS)]
            spread = [float((place + shift) % 1) for place, shift in zip(places, moved, strict=True)]
            values = {its.name: its.at(place) for its, place in zip(searched, spread, strict=False)}
            found.append((abs(spread[0] - 0.5), number, Trial(momentum, values)))
    return [trial for *_, trial in sorted(found, key=lambda each: each[:2])]


def near(searched: Sequence[Parameter], momenta: Sequence[float], best: Trial) -> list[Trial]:
    """The trials that differ from the best one in one number."""
    sides = [
        replace(best, values={**best.values, its.name: value})
        for its in searched
        for up in (True, False)
        if (value := its.near(best.values[its.name], up)) != best.values[its.name]
    ]
    return [*sides, *(replace(best, momentum=momentum) for momentum in momenta if momentum != best.momentum)]
