"""Tables of a comparison whose rows searched their own numbers, as Markdown. Pure functions."""

import itertools
import math
import operator
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median_low

from algorithms import Workers
from experiments import markdown
from experiments.study.comparison import REPORT, ROWS, SPLIT_WORDS, TUNING, Comparison, RunLine, Workload
from experiments.study.search import BSP_SHARE, FASTEST, parameters
from report import statistics
from report.statistics import NOT_REACHED, Estimate
from report.tables import target_text, times_text
from scripts import run_lines
from scripts.run_lines import programs

LIMIT_MARK = "*"
END_MARK = "!"
ALONE = "alone"
FROM_OTHERS = 100  # the numbers of trials with what was chosen on another cluster,
NEAR_OTHERS = 200  # and of those near the best of them
CEILING = "samples/s of all, of the best K fastest in step"
NAMES = {FASTEST: "K", BSP_SHARE: "BSP share", "sync_every": "H", "anchor": "A", "max_delay": "R", "dcasgd_lambda": "λ"}


@dataclass(frozen=True)
class Fair:
    """A comparison in which each job has its own target: that at which its trials ended."""

    made: Comparison

    @cached_property
    def its(self) -> Comparison:
        """With the runs that other jobs share."""
        return Comparison([*self.made.lines, *shared(self.made)])

    def target(self, job: Workload) -> float:
        trial = next(line for line in self.its.workloads[job] if line.phase == TUNING)
        return float(run_lines.value_in(trial.command, "target_accuracy"))

    def limit_s(self, job: Workload) -> float:
        """The seconds that a run may take: a hundred evaluations."""
        return round(100 * float(run_lines.value_in(self.its.workloads[job][0].command, "eval_seconds")), 3)

    def seconds(self, job: Workload, entry: str) -> dict[int, float]:
        """Seconds to the target by seed; infinite where it was not reached."""
        target = self.target(job)
        return {line.seed: line.seconds_to(target) for line in self.its.runs(REPORT, job, entry)}

    def rows(self, job: Workload) -> list[str]:
        """The algorithms whose runs are complete, and of one trial, in the order of their table."""
        runs = {entry: self.its.runs(REPORT, job, entry) for entry in self.its.entries}
        counts = {entry: len(lines) for entry, lines in runs.items() if len({line.trial for line in lines}) == 1}
        return [entry for entry, count in counts.items() if count and count == max(counts.values())]

    def fastest_k(self, job: Workload) -> str | None:
        """The row on the K fastest machines, K searched, with the least median."""
        rows = [entry for entry in self.rows(job) if ROWS[entry].workers is Workers.K_FASTEST]
        return min(rows, key=lambda entry: self.middle(job, entry), default=None)

    def ceiling(self, job: Workload) -> float:
        """Samples/s of all machines over those of the K fastest in step, for the best K, where computing alone takes
        time: sum of v_i over the greatest k * v_k, with the speeds v in descending order."""
        times = sorted(self.its.step_times_s(job))
        return sum(1 / each for each in times) / max(k / each for k, each in enumerate(times, 1))

    def middle(self, job: Workload, entry: str) -> float:
        return statistics.median(list(self.seconds(job, entry).values())).value

    def counted(self, job: Workload, entry: str) -> dict[int, float]:
        """The same; a run that did not reach the target counts as the limit."""
        limit_s = self.limit_s(job)
        return {seed: min(seconds, limit_s) for seed, seconds in self.seconds(job, entry).items()}

    def gain(self, job: Workload, entry: str, baseline: str) -> Estimate:
        """How many times as soon at the target as a baseline: the ratio of the medians, which lies within the interval
        of the seeds' ratios, paired."""
        its, others = self.counted(job, entry), self.counted(job, baseline)
        seeds = [seed for seed in its if seed in others]
        above, below = (statistics.median([side[seed] for seed in seeds]).value for side in (others, its))
        ratios = statistics.median([others[seed] / its[seed] for seed in seeds])
        return Estimate(above / below, ratios.low, ratios.high)

    def has_missed(self, job: Workload, entry: str) -> bool:
        return not all(map(math.isfinite, self.seconds(job, entry).values()))

    def trials(self, job: Workload, entry: str) -> dict[int, list[RunLine]]:
        """The runs of each trial: one, or one a seed where it was among the best."""
        found: dict[int, list[RunLine]] = {}
        for line in self.its.runs(TUNING, job, entry):
            found.setdefault(line.trial, []).append(line)
        return found

    def best(self, job: Workload, entry: str) -> RunLine:
        """A run of the trial that the row's own search chose: of those that were made again that of the best median."""
        trials = [lines for number, lines in self.trials(job, entry).items() if number < FROM_OTHERS]
        most = max(map(len, trials))
        again = [lines for lines in trials if len(lines) == most]
        return min(again, key=lambda lines: rank(lines, self.target(job)))[0]

    def chosen(self, job: Workload, entry: str) -> RunLine:
        """A run that is reported: it has the chosen numbers."""
        return self.its.runs(REPORT, job, entry)[0]

    def untried(self, chosen: RunLine) -> list[str]:
        """The numbers of the chosen trial of which no lesser or no greater value was tried with its momentum, though
        there are values on that side."""
        trials = [
            line for line in self.its.runs(TUNING, chosen.workload, chosen.entry) if line.momentum == chosen.momentum
        ]
        sizes = [line.step_size for line in trials]
        found = ["step_size"] if chosen.step_size in (min(sizes), max(sizes)) else []
        for its in parameters(chosen.entry, len(chosen.step_times_s)):
            value = chosen.parameters[its.name]
            tried = [line.parameters[its.name] for line in trials]
            ends = [(min(tried), False), (max(tried), True)]
            if any(value == end and its.near(value, up) != value for end, up in ends):
                found.append(its.name)
        return found


def shared(made: Comparison) -> list[RunLine]:
    """The runs of rows on the K fastest machines that a job need not make, since another one of the crossing made them.

    Where the K machines chosen there are as fast here, and the others no faster than there, a greater K is no better
    here either, and the same seeds give the same runs.
    """
    found = []
    times_s = {line.workload: sorted(line.step_times_s) for line in made.lines}
    for job, entry in itertools.product(made.workloads_of(REPORT), made.entries):
        of_few = ROWS[entry].workers in (Workers.FASTEST, Workers.K_FASTEST)
        for other in made.workloads if of_few and not made.runs(REPORT, job, entry) else ():
            if not (runs := made.runs(REPORT, other, entry)) or family(other) != family(job):
                continue
            chosen, here, there = runs[0].workers, times_s[job], times_s[other]
            same_number = len(here) == len(there)
            if same_number and here[:chosen] == there[:chosen] and all(map(operator.ge, here, there)):
                same = [*made.runs(TUNING, other, entry), *runs]
                found += [replace(line, cluster=job.cluster, step_times_s=here) for line in same]
                break
    return found


def family(job: Workload) -> tuple[str, ...]:
    """The same for the jobs of the crossing, whose clusters differ in the slow half's speed."""
    return (re.sub(r"^half-\d+$", "half", job.cluster), *job[1:])


def rank(lines: Sequence[RunLine], target: float) -> tuple[float, float]:
    """The order of trials: median seconds to the target; of those that did not reach it the greater accuracy is better.

    Args:
        lines: of the trial, one a seed.
    """
    return (
        median_low([line.seconds_to(target) for line in lines]),
        -median_low([line.best_accuracy for line in lines]),
    )


def times_table(fair: Fair, jobs: Sequence[Workload]) -> str:
    """A row an algorithm, a column a cluster: seconds to its target."""
    heads = [f"{job.cluster}, to {target_text(fair.target(job))}" for job in jobs]
    rows = [["", *heads]]
    for entry in ROWS:
        cells = [times_text(list(fair.seconds(job, entry).values())) if entry in fair.rows(job) else "" for job in jobs]
        if any(cells):
            rows.append([ROWS[entry].title, *cells])
    rows.append(["limit", *(f"{fair.limit_s(job):g}" for job in jobs)])
    return markdown.table(rows)


def gains_table(fair: Fair, jobs: Sequence[Workload]) -> str:
    """How many times as fast each algorithm is as the best row on the fastest machines, and as one machine alone."""
    heads = [cell for job in jobs for cell in (f"{job.cluster}: / {_title(fair.fastest_k(job))}", "/ alone")]
    rows = [["", *heads]]
    for entry in ROWS:
        cells = [gain_text(fair, job, entry, baseline) for job in jobs for baseline in (fair.fastest_k(job), ALONE)]
        if any(cells):
            rows.append([ROWS[entry].title, *cells])
    rows.append([CEILING, *(cell for job in jobs for cell in (f"{fair.ceiling(job):.2f}", ""))])
    return markdown.table(rows)


def _title(entry: str | None) -> str:
    return "fastest-k" if entry is None else ROWS[entry].title


def gain_text(fair: Fair, job: Workload, entry: str, baseline: str | None) -> str:
    """`1.3 (1.1 to 1.5)`, with a mark where a run counts as the limit; empty for the baseline itself, or where one was
    not run."""
    if baseline is None or entry == baseline or not {entry, baseline} <= set(fair.rows(job)):
        return ""
    missed = fair.has_missed(job, entry) or fair.has_missed(job, baseline)
    return statistics.estimate_text(fair.gain(job, entry, baseline)) + (LIMIT_MARK if missed else "")


def numbers_table(fair: Fair, jobs: Iterable[Workload]) -> str:
    """What the search chose; a mark where it is at an end of what was tried."""
    rows = [["", "job", "step size", "momentum", "own", "trials", "samples/s", "MB/s", "missed", "diverged"]]
    for job in jobs:
        for entry in fair.rows(job):
            chosen = fair.chosen(job, entry)
            ends, trials = fair.untried(chosen), fair.its.runs(TUNING, job, entry)
            runs = fair.its.runs(REPORT, job, entry)
            own = [
                f"{NAMES.get(name, name)} {value:g}{END_MARK if name in ends else ''}"
                for name, value in chosen.parameters.items()
            ]
            speeds = [
                [number for number in numbers if number is not None]
                for numbers in ([line.samples_per_s for line in runs], [line.mb_per_s for line in runs])
            ]
            medians = [f"{statistics.median(each).value:.3g}" if each else NOT_REACHED for each in speeds]
            missed = sum(map(math.isinf, fair.seconds(job, entry).values()))
            rows.append(
                [
                    ROWS[entry].title,
                    ", ".join(job[:2]),
                    f"{chosen.step_size:.3g}{END_MARK if 'step_size' in ends else ''}",
                    f"{chosen.momentum:g}",
                    ", ".join(own),
                    f"{len(fair.trials(job, entry))}",
                    *medians,
                    f"{missed} of {len(runs)}",
                    str(sum(not line.has_model for line in (*trials, *runs))),
                ]
            )
    return markdown.table(rows)


def notes(fair: Fair) -> str:
    """What the runs are, how sure the numbers are, and which rows are the same runs."""
    lines, its = fair.made.lines, fair.its
    tuning = sum(line.phase == TUNING for line in lines)
    counts = sorted({len(its.runs(REPORT, job, entry)) for job in its.workloads for entry in fair.rows(job)})
    covered = "; ".join(f"of {runs} runs it covers the median with {statistics.coverage(runs)}" for runs in counts)
    said = [
        f"{len(lines)} runs, {tuning} of them trials; {sum(line.diverged for line in lines)} diverged and "
        f"{sum(bool(line.failed) for line in lines)} failed; made by {', '.join(programs(lines))}.",
        f"A time is the median with its interval by order statistics ({covered}). `{NOT_REACHED}`: not reached; where "
        "not all runs reached the target, how many did.",
        "A ratio is that of the medians, its interval that of the seeds' ratios. "
        f"`{LIMIT_MARK}`: a run that did not reach the target counts as the limit.",
        f"`{END_MARK}`: no lesser, or no greater, value was tried with the same momentum.",
        *_repeated(its),
        *_shared_text(fair),
        *(
            [f"NOT COMPARABLE: {each}." for each in its.differences()]
            or ["Runs with the same seed began with the same weights and partitions, by their hashes."]
        ),
    ]
    return "\n\n".join(said)


def _repeated(its: Comparison) -> list[str]:
    """Sentences on rows that are the same runs under two names, or on several jobs, and so no further evidence."""
    jobs, said = its.workloads_of(REPORT), []
    for entry, other in itertools.combinations(its.entries, 2):
        if same := [job for job in jobs if its.are_same((job, entry), (job, other))]:
            said.append(f"{ROWS[other].title} is {ROWS[entry].title}, run by run, on {_named(same)}.")
    for entry in its.entries:
        first = next((job for job in jobs if its.runs(REPORT, job, entry)), None)
        same = [job for job in jobs if first and its.are_same((first, entry), (job, entry))]
        if len(same) > 1:
            said.append(f"{ROWS[entry].title} is the same runs, but for the clock, on {_named(same)}.")
    return said


def _named(jobs: Sequence[Workload]) -> str:
    return ", ".join(f"{job.cluster} ({SPLIT_WORDS[job.split]})" for job in jobs)


def _shared_text(fair: Fair) -> list[str]:
    """A sentence on the rows whose runs another job made."""
    rows: dict[str, list[str]] = {}
    for job in fair.made.workloads_of(REPORT):
        for entry in fair.rows(job):
            if not fair.made.runs(REPORT, job, entry):
                rows.setdefault(job.cluster, []).append(ROWS[entry].title)
    named = "; ".join(f"{cluster}: {', '.join(titles)}" for cluster, titles in rows.items())
    return [f"By construction the runs of another cluster, and made there alone: {named}."] if named else []


def page(fair: Fair, jobs: Sequence[Workload]) -> str:
    """The tables of these jobs, by network and split."""
    parts = []
    for network, split in dict.fromkeys((job.network, job.split) for job in jobs):
        these = [job for job in jobs if (job.network, job.split) == (network, split)]
        words = f"{network}, {SPLIT_WORDS[split]}"
        parts += [f"{words}: seconds to a test accuracy", times_table(fair, these)]
        parts += [f"{words}: times as fast as the best row on the fastest machines, and as one alone"]
        parts += [gains_table(fair, these)]
    return "\n\n".join([*parts, notes(fair)])
