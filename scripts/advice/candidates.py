"""What advise.py chooses from: the user's job on any number of machines, and the law that says how long each will take.

The law is that of scripts/launch/best_number.py: samples to a target = a (1 + K / 3 + h / 10), with a number `a` of
each family; seconds are samples over samples/s.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import simulate
from algorithms import ENTRIES, OWNERS
from scripts.launch.best_number import growth
from trainer.simulation import cluster_file
from trainer.simulation.virtual_job import VirtualJob

LEAST_GAIN = 1.02  # in samples/s, by which further machines are of use
MOST_SIZES = 10  # numbers of machines of a family whose samples/s are measured
FAR = 1.5  # times the machines, from which the law of samples is not trusted
IN_A_ROW = 3  # evaluations whose mean has to be at the target


@dataclass(frozen=True)
class Family:
    """An algorithm with its flags, on any number of machines."""

    entry: str  # of algorithms.ENTRIES
    prior: float  # `a` of the law, in samples, for mlp to 0.85; only ratios count
    # Step sizes that are tried, in those of one machine alone, on K machines; of an optimizer with a step of its own
    # size, such as Adam, the second
    factors: Callable[[int], tuple[float, ...]]
    own_factors: tuple[float, ...]

    @property
    def field(self) -> str:
        """The field of Config with its step size."""
        return OWNERS[self.entry].settings.rate_field

    @property
    def takes_number(self) -> bool:
        """Whether --fastest says how many take part."""
        return ENTRIES[self.entry].workers.takes_number

    def words(self, k: int) -> tuple[str, ...]:
        """What the command line says of its K machines."""
        return ("--fastest", str(k)) if self.takes_number else ()


# A step with the mean of K gradients may be up to K times as long. An outer step of 0.7 / (1 - 0.9) makes the steps of
# a round 7 times as long: too much for Adam's.
FAMILIES = (
    Family("alone", 111e3, lambda k: (1.0,), (1.0,)),
    Family("sync", 83e3, lambda k: (k**0.5, float(k)), (1.0, 2.0)),
    Family("local-sgd", 72e3, lambda k: (1.0, 2.0), (1.0, 2.0)),
    Family("esync", 64e3, lambda k: (1.0, 2.0), (1.0, 2.0)),
    Family("esync-outer", 50e3, lambda k: (0.7, 1.6), (1 / 7, 0.5)),
    Family("fastest-outer", 45e3, lambda k: (0.7, 1.6), (1 / 7, 0.5)),
)


@dataclass(frozen=True)
class Candidate:
    """A family on its K fastest machines."""

    family: Family
    k: int
    samples_per_s: float  # of all of them
    steps: float  # mean local steps of a worker in a round
    rows: tuple[int, ...] = ()  # of its machines in the cluster

    def seconds(self, a: float) -> float:
        return a * growth(self.k, self.steps) / self.samples_per_s

    @property
    def name(self) -> str:
        return f"{self.family.entry} on {self.k}"


def words_of(*pairs: tuple[str, object]) -> list[str]:
    """Flags and their values, of those that have one."""
    return [str(word) for pair in pairs if pair[1] for word in pair]


class Advised:
    """The job, on any number of the cluster's machines."""

    def __init__(
        self, given: argparse.Namespace, cluster: str, flags: Sequence[str], names: Sequence[str] = ()
    ) -> None:
        """`given`: the options of advise.py; `flags`: those of the job; `names`: of the machines, if they have any."""
        self.given, self.cluster, self.flags, self.names = given, cluster, flags, names
        self.machines = cluster_file.read(cluster_file.find(cluster))
        self.held_out = 0  # training samples on which the job is evaluated

    def job(self, entry: str, words: Sequence[str] = ()) -> VirtualJob:
        """Raises SetupError if the flags are wrong."""
        beside = ",".join(each.entry for each in FAMILIES)
        own = ["-m", entry, "--cluster", self.cluster, "--beside", beside, *words, "--max-seconds", "1e9"]
        held_out = words_of(("--validation", self.held_out))
        return simulate.parse([*own, *self.given.what, *self.flags, *held_out])[1][0].job


def sizes(count: int) -> list[int]:
    """Numbers of machines to look at: all up to MOST_SIZES, else about as many, closer where they are few."""
    if count <= MOST_SIZES:
        return list(range(1, count + 1))
    return sorted({round(count ** (place / (MOST_SIZES - 1))) for place in range(MOST_SIZES)})


def useful(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Without those of a family whose further machines add no samples/s."""
    found: list[Candidate] = []
    best: dict[str, float] = {}
    for each in sorted(candidates, key=lambda one: one.k):
        if each.samples_per_s > LEAST_GAIN * best.get(each.family.entry, 0.0):
            best[each.family.entry] = each.samples_per_s
            found.append(each)
    return found


def starts(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Of each family the number of machines that the law expects to be the fastest, of equal ones the fewest; and the
    greatest number where that is far from it: there the law says least."""
    of_family: dict[Family, list[Candidate]] = {}
    for each in candidates:
        of_family.setdefault(each.family, []).append(each)
    found = []
    for family, its in of_family.items():
        first = min(its, key=lambda each: each.seconds(family.prior))
        widest = max(its, key=lambda each: each.k)
        found += [first, widest] if widest.k >= FAR * first.k else [first]
    return found


def nearest(candidate: Candidate, others: Iterable[Candidate]) -> Candidate | None:
    """The one of its family whose number of machines is the most similar; None where there is none."""
    of_family = [each for each in others if each.family == candidate.family]
    return min(of_family, key=lambda each: abs(math.log(each.k / candidate.k)), default=None)
