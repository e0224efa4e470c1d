"""A comparison's tables as Markdown: tuned, untuned, over all jobs, and in detail. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from algorithms import ENTRIES
from report import statistics
from report.comparison import BY_CLASS, IID, REPORT, TUNING, UNTUNED, Comparison, Workload
from report.run_lines import programs
from report.run_tables import times_text
from report.statistics import FEWEST_RUNS, PROFILE_END, Estimate
from report.tables import accuracy_text

ALONE = ("alone", "local")  # one machine by itself: the first of these that there is
RESAMPLES = 2000  # of all jobs at once
SPLIT_WORDS = {IID: "i.i.d.", BY_CLASS: "by class"}
END_MARK = "!"  # behind a chosen step size that is the least or the greatest of those tried


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, of which the first row is the head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def page(comparison: Comparison, target: float) -> str:
    """What results/README.md shows: for each network and split the times, then all jobs together."""
    parts = []
    for phase, title in ((REPORT, "Tuned"), (UNTUNED, "One step size for all")):
        if not any(line.phase == phase for line in comparison.lines):
            continue
        for network, split in dict.fromkeys((its.network, its.split) for its in comparison.workloads_of(phase)):
            parts.append(
                f"{title}, {network}, {SPLIT_WORDS[split]}: seconds to {accuracy_text(target)} on the test set"
            )
            parts.append(times_table(comparison, phase, network, split, target))
        parts.append(f"{title}, all jobs, by the seconds to {accuracy_text(target)}")
        parts.append(jobs_table(comparison, phase, target))
    return "\n\n".join([*parts, notes(comparison)])


def notes(comparison: Comparison) -> str:
    """What the reader must know of the runs: how many, of which program, and what went wrong."""
    lines = comparison.lines
    phases = ", ".join(
        f"{count} {words}"
        for phase, words in ((TUNING, "for tuning"), (REPORT, "tuned"), (UNTUNED, "with one step size for all"))
        if (count := sum(line.phase == phase for line in lines))
    )
    made = ", ".join(programs(lines))
    said = [
        f"{len(lines)} runs ({phases}), of which {sum(line.diverged for line in lines)} diverged and "
        f"{sum(bool(line.failed) for line in lines)} failed; made by {made}.",
        f"Mean of the runs (95 % bootstrap interval); where not all reached the target, how many did. {END_MARK}: the "
        "chosen step size is the least or the greatest of those tried.",
    ]
    differences = comparison.differences()
    same = "Runs with the same seed began with the same weights and partitions, by their hashes."
    return "\n".join([*said, *([f"NOT COMPARABLE: {each}." for each in differences] or [same])])


# ------------------------------------------------------------------------------------------------- of a few jobs


def times_table(comparison: Comparison, phase: str, network: str, split: str, target: float) -> str:
    """A row an algorithm; of each cluster seconds to the target, and how many times as fast as one machine alone."""
    jobs = [job for job in comparison.workloads_of(phase) if (job.network, job.split) == (network, split)]
    rows = [["", *(cell for job in jobs for cell in (f"{job.cluster}, s", "x alone"))]]
    for entry in comparison.entries:
        cells = [
            cell
            for job in jobs
            for cell in (
                _times_cell(comparison, phase, job, entry, target),
                alone_cell(comparison, phase, job, entry, target),
            )
        ]
        if any(cells):
            rows.append([ENTRIES[entry].title, *cells])
    ceilings = [comparison.ceiling(job) for job in jobs]
    rows.append(["ceiling", *(cell for each in ceilings for cell in ("", "" if each is None else f"{each:.2f}"))])
    return markdown(rows)


def _times_cell(comparison: Comparison, phase: str, job: Workload, entry: str, target: float) -> str:
    seconds = comparison.seconds(phase, job, entry, target)
    return times_text(seconds) if seconds else ""


def alone_cell(comparison: Comparison, phase: str, job: Workload, entry: str, target: float) -> str:
    """How many times as fast as one machine alone, by the means; where not all runs of that machine reached the target,
    by the medians, if it has one. `-` where not all runs of the algorithm did."""
    seconds = comparison.seconds(phase, job, entry, target)
    alone = next((its for name in ALONE if (its := comparison.seconds(phase, job, name, target))), [])
    if not seconds or not alone or entry in ALONE:
        return ""
    all_alone = all(map(math.isfinite, alone))
    if not all(map(math.isfinite, seconds)) or math.isinf(statistics.times(alone).median.value):
        return "-"
    gain = (statistics.ratio_of_means if all_alone else statistics.ratio_of_medians)(alone, seconds)
    is_few = min(len(seconds), len(alone)) < FEWEST_RUNS
    return ("" if all_alone else "medians ") + (f"{gain.value:.2g}" if is_few else statistics.estimate_text(gain))


# --------------------------------------------------------------------------------------------------- of all jobs


@dataclass(frozen=True)
class Standing:
    """How an algorithm stands over all jobs.

    Attributes:
        ratios: the median time on each job over the best algorithm's.
        profile: the integral of its performance profile up to PROFILE_END.
        speed: the interquartile mean over runs of the best algorithm's median time over the run's time, 0 to about 1.
        faster: the probability that a run of it is faster than one of one machine alone; None for that one.
    """

    ratios: np.ndarray
    profile: Estimate
    speed: Estimate
    faster: Estimate | None


def complete_jobs(comparison: Comparison, phase: str) -> list[Workload]:
    """Those on which all algorithms of the comparison ran."""
    return [
        job for job in comparison.workloads if all(comparison.runs(phase, job, entry) for entry in comparison.entries)
    ]


def standings(comparison: Comparison, phase: str, target: float) -> dict[str, Standing]:
    """Of each algorithm, over the complete jobs; empty where there is none."""
    jobs, entries = complete_jobs(comparison, phase), comparison.entries
    if not jobs:
        return {}
    seconds = {entry: [comparison.seconds(phase, job, entry, target) for job in jobs] for entry in entries}
    medians = np.array([[statistics.median_time(np.array(runs)) for runs in seconds[entry]] for entry in entries])
    ratios = statistics.time_ratios(medians)
    # (resamples, algorithms, jobs)
    drawn = np.stack(
        [
            np.stack(
                [statistics.median_time(runs) for runs in statistics.resampled(seconds[entry], RESAMPLES, seed)], 1
            )
            for seed, entry in enumerate(entries)
        ],
        axis=1,
    )
    profiles = statistics.profile_integral(ratios)
    drawn_profiles = statistics.profile_integral(statistics.time_ratios(drawn))
    best = medians.min(axis=0)
    alone = next((name for name in ALONE if name in entries), None)
    return {
        entry: Standing(
            ratios[number],
            Estimate(float(profiles[number]), *statistics.interval(drawn_profiles[:, number])),
            statistics.interquartile_estimate(_speeds(seconds[entry], best), RESAMPLES),
            None
            if alone is None or entry == alone
            else statistics.probability_of_improvement(seconds[entry], seconds[alone], RESAMPLES),
        )
        for number, entry in enumerate(entries)
    }


def _speeds(seconds: Sequence[Sequence[float]], best: np.ndarray) -> list[np.ndarray]:
    """The best time of each job over those of the runs; 0 where a run, or everybody, did not reach the target."""
    return [
        np.zeros(len(runs)) if math.isinf(least) else least / np.array(runs)
        for runs, least in zip(seconds, best, strict=True)
    ]


def jobs_table(comparison: Comparison, phase: str, target: float) -> str:
    """A row an algorithm, the best profile first."""
    its = standings(comparison, phase, target)
    jobs = len(complete_jobs(comparison, phase))
    if not its:
        return "No job is complete yet: not all algorithms have run on it."
    rows = [
        [
            "",
            f"profile to {PROFILE_END:g}",
            "speed, of the fastest's",
            "P(faster than alone)",
            f"reached, of {jobs} job{'s' * (jobs > 1)}",
        ]
    ]
    for entry, standing in sorted(its.items(), key=lambda item: -item[1].profile.value):
        rows.append(
            [
                ENTRIES[entry].title,
                statistics.estimate_text(standing.profile),
                statistics.estimate_text(standing.speed),
                "" if standing.faster is None else statistics.estimate_text(standing.faster),
                str(int(np.isfinite(standing.ratios).sum())),
            ]
        )
    return markdown(rows)


# ------------------------------------------------------------------------------------------------------ in detail


def details(comparison: Comparison, targets: Sequence[float], tuned_to: float) -> str:
    """A page with a table for each job: scores, step sizes, times to all targets, accuracies, speeds, accidents."""
    parts = ["# The comparison in detail", notes(comparison)]
    for job in comparison.workloads:
        parts.append(f"## {job.cluster}, {SPLIT_WORDS[job.split]}, {job.network}")
        for phase in (REPORT, UNTUNED):
            if any(comparison.runs(phase, job, entry) for entry in comparison.entries):
                parts.append("Tuned:" if phase == REPORT else "One step size for all:")
                parts.append(_details_table(comparison, phase, job, targets, tuned_to))
    return "\n\n".join(parts) + "\n"


def _details_table(comparison: Comparison, phase: str, job: Workload, targets: Sequence[float], tuned_to: float) -> str:
    goals = [accuracy_text(target) for target in targets]
    scores = [f"score {goal}" for goal in goals] if phase == REPORT else []
    rows = [
        ["", "step size", *scores, *(f"s to {goal}" for goal in goals), "final acc.", "samples/s", "diverged or failed"]
    ]
    for entry in comparison.entries:
        runs = comparison.runs(phase, job, entry)
        trials = comparison.runs(TUNING, job, entry) if phase == REPORT else []
        if not runs and not trials:
            continue
        sized = runs[0] if runs else comparison.chosen(job, entry, tuned_to)
        size = sized.step_size if sized else math.nan
        momentum = "" if sized is None or sized.momentum is None else f", momentum {sized.momentum:g}"
        mark = END_MARK if trials and sized is not None and comparison.is_at_an_end(sized) else ""
        lost = sum(line.diverged or bool(line.failed) for line in (*runs, *trials))
        rows.append(
            [
                ENTRIES[entry].title,
                f"{size:.3g}{mark}{momentum}",
                *([score_text(comparison, job, entry, target) for target in targets] if scores else []),
                *(_times_cell(comparison, phase, job, entry, target) for target in targets),
                _mean_text([line.final_accuracy for line in runs if not line.diverged]),
                _mean_text([line.samples_per_s for line in runs if not line.diverged]),
                f"{lost} of {len(runs) + len(trials)}",
            ]
        )
    return markdown(rows)


def score_text(comparison: Comparison, job: Workload, entry: str, target: float) -> str:
    """The median over studies of the fastest trial, on held-out samples."""
    studies = comparison.studies(job, entry)
    if not studies:
        return ""
    score = statistics.study_score([[line.seconds_to(target) for line in trials] for trials in studies])
    return f"{score:.1f}"


def _mean_text(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < FEWEST_RUNS:
        return " ".join(f"{value:.4g}" for value in known)
    return statistics.estimate_text(statistics.mean(known))
