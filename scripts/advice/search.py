"""Tries candidates in virtual time, with the user's own job: which one reaches the target first?

1. samples/s of every family on every number of machines, without training; the law picks the number of each family.
2. The step size of one machine alone, on a grid.
3. Every family at once, on that number and on all that are of use, with its step sizes: all train equally long, and the
   worse half ends, again and again.
4. The law with what these have shown names three candidates; they race with further seeds.

The search uses samples that training does not see. How much easier they are than the test part is measured meanwhile,
and the target is moved by that.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from algorithms import ENTRIES
from config import FIELDS, NO_NETWORK, SGD
from esync.metric import Metric
from report import job_logs
from report.metrics import Curve
from scripts.advice.candidates import FAMILIES, IN_A_ROW, Advised, Candidate, Family, nearest, sizes, starts, useful
from trainer.datasets.sources import Stream
from trainer.from_flags import target_of
from trainer.jobs.job import Job, job_of
from trainer.jobs.network import build
from trainer.network import Parameters
from trainer.simulation.paused_run import PausedRun
from trainer.simulation.virtual_job import VirtualJob
from utils import DIVERGED, SetupError

HELD_OUT, HELD_OUT_SHARE = 5000, 6  # samples for the search: at most that many, and one of so many
EVALUATION_SHARE = 0.1  # of a run's time, at most, for evaluations
FEWEST_STEPS = 50  # of all machines, between two of them
SPARSER = 2  # times the steps between two evaluations, from which a run is no measure for others
FEWEST_EVALUATIONS = 20  # until the target, also where they take more time than that
ALONE_SHARE, FAMILIES_SHARE = 0.15, 0.55  # of the time, until the step size of one machine, and the families, are known
GRID = (0, -1, 1, -2, 2)  # step sizes of one machine: powers of the root of 10, times the given one, which is the first
KEPT_SIZES = 2  # of them, after half of the time
HALVINGS = 3  # until the time of the families is over; then the race has less
FEWEST_RUNS = 3
QUANTUM = 1.15  # by which all runs train longer at a time
LATE = 1.25  # times the first one's seconds, until the others end; in a race the second
RACE_LATE = 1.3
RACERS, RIVAL = 3, 1.5  # how many, expected within these times the seconds of the first
FEWEST_SEEDS = 3  # of a race, whose own scatter counts
AHEAD, BEHIND = 2.0, 1.3  # standard errors, from which one of the last two, and one of more, has lost
EQUAL = 1.05  # times the seconds, up to which a row within noise counts as equal
LOG_SD, LAW_SD = 0.17, 0.14  # of log seconds: a seed's own, and the law's residual (results/comparison)
GAP_SD = 0.2  # of those between two that run with the same seed
LEAST_SD = 0.05  # of a few seeds that happen to agree
TIMED_SHARE = 0.1  # of the time, at most, to find out what a step takes
FEWEST_TIMED, TRIES = 20, 5  # steps of a run that is timed; step sizes, each a tenth of the one before, until one does
LEAST_SIZE = -8  # power of the grid, and the greatest with the other sign
NEEDED_STEPS = 1500  # of all machines in a run to a target, about: where not even two runs have so many, none is tried
STUB_STEPS = 1200  # of a run without training, at most
LONG_S = 1e9  # virtual seconds that no run has
SLICE_CPU_S = 0.5  # between two looks at Ctrl-C

PROGRESS = logging.getLogger("advise.progress")
PROGRESS.setLevel(logging.INFO)  # also where the runs tell of errors alone


class OutOfTime(Exception):
    """The search has used its time, or is to end now."""


@dataclass
class Tried:
    """A candidate with a step size, and its run."""

    candidate: Candidate
    step: float
    every: int  # steps of all machines between two evaluations
    run: PausedRun

    def means(self) -> Curve:
        """Of IN_A_ROW evaluations each, at the time of the last one."""
        curve = self.run.curve
        ends = range(IN_A_ROW, len(curve) + 1)
        return [(curve[end - 1][0], statistics.fmean(v for _, v in curve[end - IN_A_ROW : end])) for end in ends]

    def seconds(self, target: float, metric: Metric) -> float:
        """To the target, between two evaluations by linear interpolation; infinite where it is not reached."""
        before: tuple[float, float] | None = None
        for at_s, value in self.means():
            if metric.reached(value, target):
                if before is None or value == before[1]:
                    return at_s
                return before[0] + (at_s - before[0]) * (target - before[1]) / (value - before[1])
            before = at_s, value
        return math.inf


class Entrant(NamedTuple):
    """A candidate with a step size, in a race."""

    candidate: Candidate
    step: float

    @property
    def name(self) -> str:
        return f"{self.candidate.name} ({self.step:.2g})"


def going_on(logs: Mapping[Entrant, Sequence[float]]) -> list[Entrant]:
    """Those that race on, the leader first: it alone where it is ahead, or all are equal, or differ by the step size
    alone. Takes log seconds, by seed, with what was expected before the race as the first."""
    leader = min(logs, key=lambda each: statistics.fmean(logs[each]))
    means, errors = {}, {}
    for each in logs:
        gaps = [its - best for best, its in zip(logs[leader], logs[each], strict=True)]
        sd = GAP_SD if len(gaps) <= FEWEST_SEEDS else max(LEAST_SD, statistics.stdev(gaps))
        means[each], errors[each] = statistics.fmean(gaps), sd / len(gaps) ** 0.5
    second, *others = sorted((each for each in logs if each != leader), key=means.__getitem__)
    near = [each for each in others if means[each] < BEHIND * errors[each]]
    if means[second] < (BEHIND if near else AHEAD) * errors[second]:
        near.insert(0, second)
    are_equal = all(means[each] + AHEAD * errors[each] < math.log(EQUAL) for each in near)
    are_one = len(logs[leader]) > FEWEST_SEEDS and all(each.candidate == leader.candidate for each in near)
    return [leader] if are_equal or are_one else [leader, *near]


class Search:
    """One search; what it knows so far is sound at any moment."""

    def __init__(
        self,
        advised: Advised,
        learnt: Job,
        test: Job | None,  # the same with the test part; None: no shift is measured
        metric: Metric,
        target: float,
        budget_s: float,  # of this process
    ) -> None:
        self.advised, self._learnt, self._test = advised, learnt, test
        self._config = advised.job("esync").config
        self._batch, self._count = self._config.batch_size, len(advised.machines.workers)
        self.metric, self.wanted = metric, target
        # The step size that is given, or the default; then the best one of one machine alone
        given = self._config.settings.rate
        is_given = given != FIELDS["local_lr"].default
        self.step_of_one = given if is_given else advised.job("alone").config.settings.rate
        self._stopped = False
        self._began_s, self._budget_s = time.process_time(), budget_s
        self.every = FEWEST_STEPS  # steps of all machines between two evaluations
        self.target = target  # on the samples on which it evaluates
        self.shift: float | None = None  # how much greater the metric is on them than on the test part
        self.candidates: list[Candidate] = []
        self.tried: list[Tried] = []  # with seed 0
        self.steps: dict[Candidate, float] = {}  # the better step size of each that was tried
        self.races: dict[Entrant, list[float]] = {}  # log seconds, by seed; of ended ones a guess
        self.reached: set[Entrant] = set()  # those of which not all were ended
        self.curves: dict[Candidate, list[Curve]] = {}  # means of the tried and the raced ones
        self._pairs: list[tuple[float, float]] = []  # the metric on the held-out samples, and on the test part

    def run(self) -> None:
        """Searches until one candidate is ahead, the time is over, or it is stopped."""
        try:
            self.measure_rates()
            self._find_step()
            self._try_families()
            self._race()
        except OutOfTime:
            pass
        finally:
            for each in self.tried:
                each.run.close()
                if each.step == self.steps.get(each.candidate) and each.means():
                    self.curves.setdefault(each.candidate, []).insert(0, each.means())

    def stop(self) -> None:
        """Ends the search soon, with what is known so far."""
        self._stopped = True

    @property
    def used_s(self) -> float:
        """Seconds of this process."""
        return time.process_time() - self._began_s

    def _say(self, text: str) -> None:
        PROGRESS.info("%3.0f of %.0f s | %s", self.used_s, self._budget_s, text)

    # ---------------------------------------------------------------------------------------------- without training

    def measure_rates(self) -> None:
        """Measures samples/s of every family on every number of machines."""
        network = build(self._config.but(cpu=1), self._learnt, lambda text: None).network
        model_bytes = float(Parameters(network).num_bytes())
        for family in FAMILIES:
            # On one machine all but those with an outer step are `alone`; by class it would need the data of all.
            is_own = family.entry == "alone" or bool(dict(ENTRIES[family.entry].values).get("outer_nesterov"))
            least = 1 if is_own and not self._config.split_by_class else 2
            numbers = sizes(self._count) if family.takes_number else [1]
            for k in filter(least.__le__, numbers):
                self._look()
                self.candidates.append(self._rated(family, k, model_bytes))
        self._all = [*self.candidates]
        self.candidates = useful(self._all)
        self._say(f"{len(self.candidates)} candidates by their samples/s")

    def all_machines(self, entry: str) -> list[Candidate]:
        """The family on all machines, whether more of them are of use or not."""
        return [each for each in self._all if each.family.entry == entry and each.k == self._count]

    def _rated(self, family: Family, k: int, model_bytes: float) -> Candidate:
        job = self._of(family, k)
        rows, config = job.cluster.workers, job.config
        steps_s = [row.shortest_step_s(config.batch_size) + row.overhead_s for row in rows]
        moved_s = [2 * (8 * model_bytes / (1e6 * row.bandwidth_mbit_s) + row.latency_s) for row in rows]
        round_s = config.settings.sync_every * max(steps_s) + max(moved_s)
        seconds = max(4 * round_s, min(20 * round_s, STUB_STEPS / sum(1 / each for each in steps_s)))
        none = config.but(
            network=NO_NETWORK, job="", split_by_class=0, validation=0, max_seconds=seconds, eval_seconds=0.0
        )
        run = PausedRun(replace(job, config=none, model_bytes=model_bytes))
        run.advance(LONG_S)
        self._check(run)
        logs = job_logs.read(sorted(run.logs.iterdir()), lambda text: None)
        samples_per_s = steps = 0.0
        for log in logs:
            rounds = [one for one in log.rounds if one.elapsed_s > seconds / 3]  # the first ones ask for little
            begin_s = max((one.elapsed_s for one in log.rounds if one not in rounds), default=0.0)
            samples = sum(one.samples for one in rounds)
            samples_per_s += samples / (rounds[-1].elapsed_s - begin_s)
            steps += samples / len(rounds) / config.batch_size / len(logs)
        run.close()
        return Candidate(family, k, samples_per_s, steps, job.rows or tuple(range(k)))

    # ------------------------------------------------------------------------------------------------- with training

    def _find_step(self) -> None:
        """Finds the step size of one machine; where each machine has its own classes, that of ESync."""
        first = {each.family.entry: each for each in reversed(starts(self.candidates))}
        reference = first.get("alone") or first["esync"]
        self._measure_step(reference)
        trials = {exponent: self.begin(reference, self._size(exponent)) for exponent in GRID}
        until_s = self._began_s + ALONE_SHARE * self._budget_s
        try:
            self._together(list(trials.values()), (time.process_time() + until_s) / 2)
            while (end := self._best(trials.values())) in (trials[min(trials)], trials[max(trials)]):
                further = min(trials) - 1 if end is trials[min(trials)] else max(trials) + 1
                if not LEAST_SIZE <= further <= -LEAST_SIZE or end.run.error is not None:
                    break
                trials[further] = self.begin(reference, self._size(further))
                self._train(trials[further], end.run.seconds)
            self._together(self._in_order(trials.values())[:KEPT_SIZES], until_s, compares=True)
        finally:
            best = self._best(trials.values())
            self.tried.append(best)
            self.steps[reference] = self.step_of_one = best.step
            for each in trials.values():
                if each is not best:
                    each.run.close()
        self._evaluate_often(best)
        self._say(f"step size of one machine: {best.step:.2g} ({self._value(best)})")

    def _measure_step(self, candidate: Candidate) -> None:
        """Measures what a step and an evaluation take here, and sets how often runs are evaluated; makes the given step
        size smaller where the training diverges at once. Raises OutOfTime, and SetupError where all diverge, or the
        time is too short to try anything."""
        for _ in range(TRIES):
            trial = self.begin(candidate, self.step_of_one)
            until_s = time.process_time() + TIMED_SHARE * self._budget_s
            self._train(trial, FEWEST_TIMED * self._batch / candidate.samples_per_s, until_s)
            trial.run.advance(LONG_S, cpu_s=0.5)
            self._check(trial.run)
            trial.run.close()
            if trial.run.error is None:
                break
            self.step_of_one /= 10
        else:
            raise SetupError(f"the training diverges with all step sizes down to {10 * self.step_of_one:.2g}")
        steps = max(1.0, trial.run.seconds * candidate.samples_per_s / self._batch)
        evaluation_s = trial.run.evaluation_cpu_s / max(1, len(trial.run.curve))
        step_s = (trial.run.cpu_s - trial.run.evaluation_cpu_s) / steps
        self.every = max(FEWEST_STEPS, math.ceil(evaluation_s / step_s / EVALUATION_SHARE))
        self._say(f"a step takes {1e3 * step_s:.3g} ms here, an evaluation {1e3 * evaluation_s:.3g} ms")
        if 2 * NEEDED_STEPS * step_s > self._budget_s:
            minutes = math.ceil(4 * NEEDED_STEPS * step_s / 6) / 10  # twice as much as two runs take
            raise SetupError(f"a step takes {step_s:.2g} s here: give --minutes {minutes:g} to try some")

    def _evaluate_often(self, tried: Tried) -> None:
        """Further runs have enough evaluations until the target, if this one has reached it."""
        if (seconds := self._seconds(tried)) < math.inf:
            steps = seconds * tried.candidate.samples_per_s / self._batch
            self.every = max(1, min(self.every, math.ceil(steps / FEWEST_EVALUATIONS)))

    def _size(self, exponent: int) -> float:
        return float(f"{self.step_of_one * 10 ** (exponent / 2):.2g}")

    def _try_families(self) -> None:
        """Every family on the law's number of machines, and on all that are of use, with its step sizes; the worse ones
        end, again and again: first the step sizes, then the candidates."""
        if (one := self.tried[0]).every > SPARSER * self.every:  # as it is, it would be late by that alone
            self.tried = [self.begin(one.candidate, one.step)]
            one.run.close()
        known = [each.candidate for each in self.tried]
        runs = [*self.tried]
        for each in starts(self.candidates):
            if each not in known:
                runs += [self.begin(each, self.step_of_one * factor) for factor in dict.fromkeys(self.factors(each))]
        self.tried = runs
        share_s = (FAMILIES_SHARE * self._budget_s - self.used_s) / HALVINGS
        try:
            while not self._together(runs, time.process_time() + share_s, compares=runs is not self.tried):
                runs = self._better(runs)
        finally:  # also where Ctrl-C, or the time, ends the search here
            for run in self._in_order(self.tried):
                self.steps.setdefault(run.candidate, run.step)
        self._evaluate_often(self._best(self.tried))
        if self.shift is not None:
            told = self.metric.text(abs(self.shift))
            sign = "more" if self.shift > 0 else "less"
            self._say(f"the held-out samples give {told} {sign} than the test part")

    def _better(self, runs: Sequence[Tried]) -> list[Tried]:
        """Of each candidate the better step size, or the better half of the candidates."""
        at_s = self._common_s(runs)
        ordered = self._in_order(runs, at_s)
        best = ordered[0]
        self._say(f"{len(runs)} runs, best after {at_s:.3g} s: {best.candidate.name}, step size {best.step:.2g}")
        of_each = list({each.candidate: each for each in reversed(ordered)}.values())
        return of_each if len(of_each) < len(runs) else ordered[: max(FEWEST_RUNS, len(runs) // 2)]

    def factors(self, candidate: Candidate) -> tuple[float, ...]:
        """Of its step sizes, in those of one machine."""
        is_sgd = self._config.settings.optimizer == SGD
        return candidate.family.factors(candidate.k) if is_sgd else candidate.family.own_factors

    def _race(self) -> None:
        """Races those that should be the fastest, with further seeds."""
        racers = self.racers()
        self._say(f"race: {', '.join(each.name for each in racers)}")
        self.races = {each: [] for each in racers}
        before = {each: math.log(self.expected_s(each.candidate)) for each in racers}
        cost_s = 0.0
        for seed in range(1, 100):
            if self.used_s + 0.8 * cost_s > self._budget_s or len(racers) < 2:
                return
            begin_s = self.used_s
            runs = [self.begin(*each, seed) for each in racers]
            try:
                self._together(runs, self._began_s + self._budget_s, RACE_LATE)
                times_s = [self._seconds(each) for each in runs]
            finally:
                for run in runs:
                    run.run.close()
                    if run.means():
                        self.curves.setdefault(run.candidate, []).append(run.means())
            if min(times_s) == math.inf:
                return
            late = math.log(RACE_LATE * min(times_s)) + LOG_SD
            for each, seconds in zip(racers, times_s, strict=True):
                self.races[each].append(math.log(seconds) if seconds < math.inf else late)
                if seconds < math.inf:
                    self.reached.add(each)
            told = [f"{each.name} {seconds:.3g} s" for each, seconds in zip(racers, times_s, strict=True)]
            self._say(f"seed {seed}: {', '.join(told)}")
            racers = going_on({each: [before[each], *self.races[each]] for each in racers})
            cost_s = (self.used_s - begin_s) * len(racers) / len(runs)

    def racers(self) -> list[Entrant]:
        """Those that are expected to be the fastest, of each family at most one by the law alone, and the first with a
        step size between those that were tried."""
        expected_s = {each: self.expected_s(each) for each in self.candidates}
        most_s = RIVAL * min(expected_s.values(), default=math.inf)
        chosen: list[Candidate] = []
        guessed, times_s = set(), self.times_s()
        for each in sorted((one for one in expected_s if expected_s[one] < most_s), key=expected_s.__getitem__):
            is_guess = each not in times_s
            if len(chosen) < RACERS and not (is_guess and each.family in guessed):
                chosen.append(each)
                guessed |= {each.family} if is_guess else set()
        entrants = [Entrant(each, self._step_before(each)) for each in chosen]
        if entrants:
            best, step = entrants[0]
            of = nearest(best, self.steps)
            tried = [each.step for each in self.tried if each.candidate == of and each.step != step]
            between = math.sqrt(step * min(tried, key=lambda each: abs(math.log(each / step)))) if tried else 0.7 * step
            entrants.append(Entrant(best, between))
        return entrants

    def step_of(self, candidate: Candidate) -> float:
        """The step size with which it was the fastest, or its family."""
        races = {each.step: logs for each, logs in self.races.items() if each.candidate == candidate and logs}
        most = max(map(len, races.values()), default=0)
        lasting = {step: statistics.fmean(logs) for step, logs in races.items() if len(logs) == most}
        return min(lasting, key=lasting.__getitem__, default=self._step_before(candidate))

    def _step_before(self, candidate: Candidate) -> float:
        """The step size that was the better one before the race, of the nearest that was tried; 0 where none was."""
        tried = nearest(candidate, self.steps)
        return self.steps[tried] if tried is not None else 0.0

    def logs_of(self, candidate: Candidate) -> dict[int, float]:
        """Log seconds of its runs with that step size, by seed: of the race, and where that is short the one before,
        with seed 0."""
        entrant = Entrant(candidate, self.step_of(candidate))
        logs = self._raced(entrant)
        if len(logs) < 2:  # the run that was chosen for its time tells of too short a one
            logs |= self._before(entrant, any_every=not logs)
        return logs

    def _raced(self, entrant: Entrant) -> dict[int, float]:
        return dict(enumerate(self.races[entrant], 1)) if entrant in self.reached else {}

    def _before(self, entrant: Entrant, any_every: bool) -> dict[int, float]:
        same = (each for each in self.tried if (each.candidate, each.step) == entrant)
        seconds = [self._seconds(each) for each in same if any_every or each.every == self.every]
        return {0: math.log(min(seconds))} if min(seconds, default=math.inf) < math.inf else {}

    def times_s(self) -> dict[Candidate, float]:
        """Seconds of the candidates that have reached the target: geometric means over seeds, as if all had had those
        of the one that raced longest. A seed makes all of them faster or slower."""
        longest = max(self.races, key=lambda each: len(self._raced(each)), default=None)
        luck: dict[int, float] = {}
        if longest is not None and len(raced := self._raced(longest)) >= FEWEST_SEEDS:
            mean = statistics.fmean(raced.values())
            luck = {seed: log - mean for seed, log in (raced | self._before(longest, any_every=True)).items()}
        logs = {each: self.logs_of(each) for each in self.candidates}
        return {
            each: math.exp(statistics.fmean(log - luck.get(seed, 0.0) for seed, log in its.items()))
            for each, its in logs.items()
            if its
        }

    def expected_s(self, candidate: Candidate) -> float:
        """Seconds to the target, tried or by the law; infinite where the nearest one that was tried did not reach the
        target."""
        times_s = self.times_s()
        raced = [each.candidate for each, logs in self.races.items() if logs]
        known = nearest(candidate, [*times_s, *self.steps, *raced])
        return candidate.seconds(times_s[known] / known.seconds(1.0)) if known in times_s else math.inf

    # ----------------------------------------------------------------------------------------------------- runs

    def _of(self, family: Family, k: int) -> VirtualJob:
        job = self.advised.job(family.entry, family.words(k))
        config = job.config.but(max_rounds=0, max_seconds=LONG_S, target_accuracy=0.0, target=None, quiet=1)
        return replace(job, config=config.but(ckpt_frequency=0, resume=0))

    def begin(self, candidate: Candidate, step: float, seed: int = 0) -> Tried:
        job = self._of(candidate.family, candidate.k)
        config = job.config.but(seed=job.config.seed + seed, eval_seconds=self.evaluation_s(candidate))
        job = replace(job, config=config.but(**{candidate.family.field: step}))
        return Tried(candidate, step, self.every, PausedRun(job, self._learnt, self._test))

    def evaluation_s(self, candidate: Candidate) -> float:
        """Virtual seconds between two evaluations."""
        return self.every * self._batch / candidate.samples_per_s

    def best_seen(self) -> str:
        """Why there is no answer, in words."""
        best = self._best(self.tried) if self.tried else None
        if best is not None and best.run.error is not None:
            return f"the training diverges with all step sizes that were tried: {best.run.error}"
        if best is None or not best.means():
            return "the search has ended before it could evaluate a run: give --minutes more"
        value = self.metric.best(value for _, value in best.means())
        shift = self.shift or 0.0
        return (
            f"no candidate reached {self.wanted:g} within the time: the best {self.metric.name} on "
            f"the held-out samples is {self.metric.text(value - shift)}, by {best.candidate.name} after "
            f"{best.means()[-1][0]:.3g} s; give another target, or more --minutes"
        )

    def _together(self, runs: Sequence[Tried], until_s: float, late: float = LATE, compares: bool = False) -> bool:
        """Trains all equally long in virtual time, until this time of the process; once one has reached the target, the
        others to `late` times its seconds. Returns whether that is done. Where it `compares`, the target moves. Raises
        OutOfTime."""
        now_s = self._common_s(runs) or FEWEST_STEPS * self._batch / max(each.candidate.samples_per_s for each in runs)
        while True:
            end_s = late * min(map(self._seconds, runs))
            now_s = min(now_s * QUANTUM, end_s)
            going = [each for each in runs if not each.run.is_over and self._seconds(each) == math.inf]
            for each in going:
                each.run.compares = compares
                if not self._train(each, now_s, until_s):
                    return False
            if compares:
                self._move_target(going)
            if not going or now_s >= end_s:
                return True

    def _train(self, tried: Tried, now_s: float, until_s: float = math.inf) -> bool:
        """Trains to this virtual moment, or to the target. Returns whether that is done by this time of the process."""
        while tried.run.seconds < now_s and not tried.run.is_over and self._seconds(tried) == math.inf:
            self._look()
            if time.process_time() >= until_s:
                return False
            tried.run.advance(now_s, SLICE_CPU_S)
            self._check(tried.run)
        return True

    def _common_s(self, runs: Iterable[Tried]) -> float:
        """Virtual seconds that all have trained, but those that have ended."""
        return min((each.run.seconds for each in runs if not each.run.is_over), default=0.0)

    def _move_target(self, runs: Iterable[Tried]) -> None:
        """By how much greater the metric is on the held-out samples than on the test part, in all evaluations of these
        runs so far: those at the target alone would be lucky ones."""
        for each in runs:
            self._pairs += each.run.pairs
            each.run.pairs.clear()
        if self._pairs:
            self.shift = statistics.fmean(held - test for held, test in self._pairs)
            self.target = self.wanted + self.shift

    def _look(self) -> None:
        if self._stopped or self.used_s > self._budget_s:
            raise OutOfTime

    def _check(self, run: PausedRun) -> None:
        """Raises the error that has ended a run, unless its training has diverged."""
        if run.error is not None and DIVERGED not in str(run.error):
            raise run.error

    def _seconds(self, tried: Tried) -> float:
        return tried.seconds(self.target, self.metric)

    def _in_order(self, runs: Iterable[Tried], at_s: float = math.inf) -> list[Tried]:
        """The best first: the soonest at the target, then those with the best metric; as they were at this moment."""
        sign = -1 if self.metric.more_is_better else 1

        def key(each: Tried) -> tuple[float, float]:
            seconds = self._seconds(each)
            values = [sign * value for mean_s, value in each.means() if mean_s <= at_s and each.run.error is None]
            return seconds if seconds <= at_s else math.inf, values[-1] if values else math.inf

        return sorted(runs, key=key)

    def _best(self, runs: Iterable[Tried]) -> Tried:
        return self._in_order(runs)[0]

    def _value(self, tried: Tried) -> str:
        if (seconds := self._seconds(tried)) < math.inf:
            return f"target after {seconds:.3g} s"
        at_s, value = tried.means()[-1] if tried.means() else (0.0, math.nan)
        return f"{self.metric.name} {self.metric.text(value)} after {at_s:.3g} s" if at_s else "no value"


def prepared(advised: Advised) -> tuple[Job, Metric, float]:
    """The job with all its samples, its metric and the target. Raises SetupError if the target is none of the job's."""
    config, given = advised.job("esync").config.but(cpu=1), advised.given
    whole = job_of(config)
    if whole.test is None:
        raise SetupError("the job has no test samples, and a target needs them: give some in data(folder)")
    metric = build(config, whole, lambda text: None).metric
    target = target_of(config.but(target_accuracy=given.target_accuracy or 0.0, target=given.target), metric)
    assert target is not None
    return whole, metric, target


def search_for(advised: Advised) -> Search:
    """A search, which has not begun. Raises SetupError if the job, or its target, is none that can be searched for."""
    whole, metric, target = prepared(advised)
    learnt, test = whole, None
    if whole.train is not None and not isinstance(whole.train, Stream):
        asked = advised.job("esync").config.validation
        advised.held_out = asked or min(HELD_OUT, len(whole.train) // HELD_OUT_SHARE)
        test = None if asked else whole
        learnt = job_of(advised.job("esync").config.but(cpu=1))
    return Search(advised, learnt, test, metric, target, 60 * advised.given.minutes)
