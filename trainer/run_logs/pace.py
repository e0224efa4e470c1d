"""Whether workers keep the speeds that they emulate, and what evaluations cost them.

A worker pads its steps (--min-step-time, --sample-time, straggler traces). If a step computes for longer than that, the
worker is slower than the device that it emulates, and a comparison is one of other workers than were asked for. Workers
warn before they train, where the cores cannot be enough, and at the end, where they were not. Tables and figures warn
from the logs. In virtual time computing takes no time, and the logs have no entries.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from trainer.run_logs.rounds import Round, is_quantity
from utils import usable_cores

EMULATED = "emulated_s"  # in a round's log: the mean of its steps' emulated times
SLOWER = 1.2  # a step above this multiple of the emulated time is too slow
EVALUATION_SHARE = 0.1  # share of a worker's time above which a warning names it
SAMPLED = 1000  # rounds of a worker of which it remembers the pace
MOST_NAMES = 2  # of workers in one sentence

PACE_ADVICE = (
    "for the emulated speeds take fewer workers, longer step times, a smaller network or batch, or more cores with "
    "nothing else to do"
)
EVALUATION_ADVICE = (
    "for less evaluation give a larger -e or --eval-seconds, or evaluate beside training with --evaluator 1, where a "
    "core is free"
)
EVALUATOR_ADVICE = "for times that can be compared give all runs --evaluator 0, or more cores with nothing else to do"


class Pace(NamedTuple):
    """A worker's pace over its whole job."""

    step_s: float  # mean step time of the round with the median slowness; 0 where no step is padded
    emulated_s: float  # emulated step time of that round
    evaluation_share: float  # share of evaluations in the time until the last round's, which delays no training

    @property
    def slowness(self) -> float:
        """Ratio of a step's time to its emulated time; 0 where no step is padded."""
        return self.step_s / self.emulated_s if self.emulated_s else 0.0


class WorkerPace:
    """A worker's pace, by its rounds in their order. Those whose emulated time is not known do not count."""

    def __init__(self, rounds: Iterable[Round] = (), begin_s: float = 0.0, most: float = math.inf) -> None:
        """The first round began at `begin_s`. Memory grows with the rounds up to `most`: of more each is as likely
        remembered."""
        self.begin_s, self._most = begin_s, most
        self._sample: list[tuple[float, float]] = []  # mean and emulated step time of rounds with padded steps
        self._seen = 0  # such rounds
        self._evaluation_s = 0.0  # but in the last round
        self._last: Round | None = None
        self._draw = random.Random(0).randrange
        for one in rounds:
            self.add(one)

    def add(self, one: Round) -> None:
        """Called with each round."""
        if one.emulated_s is None:
            return
        self._evaluation_s += self._last.evaluation_s if self._last else 0.0
        self._last = one
        if one.complete and one.emulated_s > 0:
            self._seen += 1
            place = len(self._sample) if self._seen <= self._most else self._draw(self._seen)
            if place < self._most:
                self._sample[place : place + 1] = [((one.computing_s or 0.0) / one.complete, one.emulated_s)]

    @property
    def pace(self) -> Pace | None:
        """None where no round counts, or one has impossible numbers."""
        if self._last is None:
            return None
        in_order = sorted(self._sample, key=lambda times: times[0] / times[1])
        median = in_order[(len(in_order) - 1) // 2] if in_order else (0.0, 0.0)
        trained_s = self._last.elapsed_s - self._last.evaluation_s - self.begin_s
        share = self._evaluation_s / trained_s if trained_s > 0 else 0.0
        pace = Pace(*median, share)
        return pace if all(map(is_quantity, pace)) and share <= 1 else None  # times in logs may be anything


def add_emulated(rounds: Iterable[Round], run: Mapping[str, Any]) -> None:
    """Gives rounds of earlier versions, whose logs lack them, their emulated times by run.json, which tells them
    neither in virtual time, nor where a trace made steps longer for a while."""
    config = run.get("config")
    if not isinstance(config, dict) or "virtual" in run or config.get("straggler_trace"):
        return
    step_s, sample_s = config.get("min_step_time"), config.get("sample_time", 0.0)
    for one in rounds if is_quantity(step_s) and is_quantity(sample_s) else ():
        if one.emulated_s is None:
            one.emulated_s = step_s + sample_s * one.samples / max(1, one.complete)


class Doubts(NamedTuple):
    """Warnings for readers of a job's numbers; each empty where all is well."""

    pace: str
    evaluation: str
    evaluator: str

    @property
    def advice(self) -> list[str]:
        """What to change."""
        advice = (PACE_ADVICE, EVALUATION_ADVICE, EVALUATOR_ADVICE)
        return [text for text, doubt in zip(advice, self, strict=True) if doubt]

    def __bool__(self) -> bool:
        return any(self)

    def __str__(self) -> str:
        return "; ".join(filter(None, self))


def doubts(workers: Iterable[tuple[str, Pace | None]], moved: Sequence[str] = ()) -> Doubts:
    """The doubts about the workers of one or more jobs, each with its name. `moved` says when each of them took the
    evaluations over from the process beside it."""
    known = [(name, pace) for name, pace in workers if pace is not None]
    slow = sorted((one for one in known if one[1].slowness > SLOWER), key=lambda one: -one[1].slowness)
    busy = sorted((one for one in known if one[1].evaluation_share > EVALUATION_SHARE), key=lambda one: -one[1][2])
    slow_texts = [f"{name} ({pace.step_s:.3g} s in place of {pace.emulated_s:.3g} s)" for name, pace in slow]
    busy_texts = [f"{pace.evaluation_share:.0%} of the time of {name}" for name, pace in busy]
    return Doubts(
        f"a step took longer than it emulates on {_listed(slow_texts)}" if slow else "",
        f"evaluations took {_listed(busy_texts)}" if busy else "",
        _listed(moved),
    )


def _listed(texts: Sequence[str]) -> str:
    more = len(texts) - MOST_NAMES
    return ", ".join([*texts[:MOST_NAMES], *([f"and {more} more worker(s)"] if more > 0 else [])])


# ------------------------------------------------------------------------------------------------ before training


class Load(NamedTuple):
    """What a worker tells the others after its test steps."""

    host: str
    cores: Sequence[int]  # numbers of the cores that its process may use
    took_s: float  # wall time of a test step
    busy_s: float  # core time of a test step, which other processes do not lengthen; 0: not known
    emulated_s: float  # emulated step time; 0: none


def overloaded(loads: Sequence[Load]) -> dict[str, str]:
    """By host, why its workers cannot keep their pace together: their steps need more cores than there are. Workers
    that pad no step do not count, since they take the rest."""
    found = {}
    for host in dict.fromkeys(load.host for load in loads):
        padded = [load for load in loads if load.host == host and load.emulated_s]
        cores = len({core for load in padded for core in load.cores})
        needed = sum(load.busy_s / load.emulated_s for load in padded)
        if needed > cores:
            found[host] = (
                f"steps of the {len(padded)} worker(s) on {host} need {needed:.1f} cores at the emulated speeds, and "
                f"have {cores}: steps will take longer; {PACE_ADVICE}"
            )
    return found


def too_slow(load: Load) -> str:
    """Why a worker cannot keep its pace, though no other one shares its cores; empty if it can, or if that is not
    known."""
    # Several threads make the wall time shorter than the core time, other processes make it longer.
    step_s = min(load.took_s, load.busy_s)
    if not load.emulated_s or step_s <= SLOWER * load.emulated_s:
        return ""
    return (
        f"a test step took {step_s:.3g} s, and this worker emulates {load.emulated_s:.3g} s: its steps will take "
        f"longer; {PACE_ADVICE}"
    )


class Pacing(WorkerPace):
    """A worker's warnings on its pace; in virtual time there are none."""

    def __init__(self, host: str, gather: Callable[[Load], Sequence[Any] | None], busy: Callable[[], float]) -> None:
        """`gather` brings the loads of all workers together, by rank; None where that is not possible. `busy` returns
        the core seconds of this process; 0 where they are not known."""
        super().__init__(most=SAMPLED)
        self._host, self._gather, self.busy = host, gather, busy

    def before_training(self, took_s: float, busy_s: float, emulated_s: float) -> list[str]:
        """The warnings after the test steps; all workers call it. Arguments as Load's."""
        mine = Load(self._host, usable_cores(), took_s, busy_s, emulated_s)
        loads = [Load(*each) for each in self._gather(mine) or [mine]]
        if why := overloaded(loads).get(self._host):
            first = next(load for load in loads if load.host == self._host)
            return [why] if first == mine else []  # one of the host says it
        return list(filter(None, [too_slow(mine)]))

    def at_the_end(self) -> list[str]:
        """The warnings on the whole job."""
        found = doubts([("this worker", self.pace)])
        return [*filter(None, found), *found.advice]
