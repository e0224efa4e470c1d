"""A comparison's tables as Markdown: tuned, untuned, and in detail. Pure functions."""

import math
from collections.abc import Mapping, Sequence

from algorithms import ENTRIES, Workers
from experiments import markdown
from experiments.study.comparison import ALONE, REPORT, TUNING, UNTUNED, Comparison, RunLine, Workload
from report import statistics
from report.run_tables import times_text
from report.statistics import FEWEST_RUNS, NOT_REACHED
from report.tables import target_text
from scripts.run_lines import BY_CLASS, IID, programs

SPLIT_WORDS = {IID: "i.i.d.", BY_CLASS: "by class"}
END_MARK = "!"  # behind a chosen step size that is the least or the greatest of those tried


def page(comparison: Comparison, target: float) -> str:
    """The tables of the study's page: the times to the target for each network and split."""
    parts = []
    for phase, title in ((REPORT, "Tuned"), (UNTUNED, "One step size for all")):
        if not any(line.phase == phase for line in comparison.lines):
            continue
        for network, split in dict.fromkeys((its.network, its.split) for its in comparison.workloads_of(phase)):
            words = f"{title}, {network}, {SPLIT_WORDS[split]}: seconds to {target_text(target)} on the test set"
            parts += [words, times_table(comparison, phase, network, split, target)]
    return "\n\n".join([*parts, notes(comparison)])


def notes(comparison: Comparison) -> str:
    """Notes on the runs: their number, program and failures."""
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
        f"Median of the seeds ({_intervals(comparison)}); where not all reached the target, how many did. "
        f"`{NOT_REACHED}`: not reached; an interval that ends with it is open. {END_MARK}: the chosen step size is the "
        "least or the greatest of those tried.",
        "x alone: how many times as soon at the target as the fastest machine alone, the median of the seeds' ratios; "
        "its last row is the sum of the machines' speeds over the greatest, which bounds samples/s, not times.",
        *_rule(comparison),
        *_chosen_workers(comparison),
        *repeated(comparison),
    ]
    differences = comparison.differences()
    same = "Runs with the same seed began with the same weights and partitions, by their hashes."
    return "\n".join([*said, *([f"NOT COMPARABLE: {each}." for each in differences] or [same])])


def _rule(comparison: Comparison) -> list[str]:
    """A sentence on when runs are at a target; none where the first evaluation at it counts."""
    return [
        f"A run is at the target from the evaluation on with which the mean of {in_a_row} in a row is."
        for in_a_row in sorted({line.in_a_row for line in comparison.lines} - {1})
    ]


def _chosen_workers(comparison: Comparison) -> list[str]:
    """A sentence on how many workers took part in the rows that choose the fastest."""
    chosen = dict.fromkeys(
        f"{line.workers} of {len(line.step_times_s)} machines of {line.cluster}"
        for line in comparison.lines
        if ENTRIES[line.entry].workers is Workers.K_FASTEST and line.workers
    )
    return [f"The fastest: {', '.join(chosen)}."] if chosen else []


def _intervals(comparison: Comparison) -> str:
    """The ends and the coverage of the intervals, for each number of seeds."""
    counts = {
        len(runs)
        for phase in (REPORT, UNTUNED)
        for job in comparison.workloads_of(phase)
        for entry in comparison.entries
        if (runs := comparison.runs(phase, job, entry))
    }
    return "; ".join(
        f"{'least to greatest' if statistics.places(runs)[0] == 0 else 'interval'} of {runs}, "
        f"which covers the median with {statistics.coverage(runs)}"
        for runs in sorted(counts)
    )


def repeated(comparison: Comparison) -> list[str]:
    """Sentences on rows that are the same runs under two names, or on several jobs, and so no further evidence."""
    jobs, entries, said = comparison.workloads_of(REPORT), comparison.entries, []
    for number, entry in enumerate(entries):
        for other in entries[number + 1 :]:
            same = [job for job in jobs if comparison.are_same((job, entry), (job, other))]
            if same:
                said.append(f"{ENTRIES[other].title} is {ENTRIES[entry].title}, run by run, on {_named(same)}.")
        first = next((job for job in jobs if comparison.runs(REPORT, job, entry)), None)
        same = [job for job in jobs if first and comparison.are_same((first, entry), (job, entry))]
        if len(same) > 1:
            said.append(f"{ENTRIES[entry].title} is the same runs, but for the clock, on {_named(same)}.")
    return said


def _named(jobs: Sequence[Workload]) -> str:
    return ", ".join(f"{job.cluster} ({SPLIT_WORDS[job.split]})" for job in jobs)


# ------------------------------------------------------------------------------------------------- of a few jobs


def beside(parts: Mapping[str, Comparison], target: float) -> str:
    """Comparisons of the same jobs, such as one for each momentum, side by side: a table for each job."""
    texts = []
    for job in dict.fromkeys(job for its in parts.values() for job in its.workloads_of(REPORT)):
        heads = (cell for name in parts for cell in (f"{name}: s", "step size"))
        rows = [["", *heads, "samples/s", "MB/s a worker"]]
        for entry in ENTRIES:
            cells = [cell for its in parts.values() for cell in _cells_beside(its, job, entry, target)]
            runs = [line for its in parts.values() for line in its.runs(REPORT, job, entry) if line.has_model]
            sent = [line.mb_per_s / line.workers for line in runs if line.mb_per_s is not None]
            speeds = (([line.samples_per_s for line in runs], ".0f"), (sent, ".2g"))
            medians = (f"{statistics.median(each).value:{form}}" if each else "-" for each, form in speeds)
            if any(cells):
                rows.append([ENTRIES[entry].title, *cells, *medians])
        words = f"{job.network} on {job.cluster}, {SPLIT_WORDS[job.split]}: seconds to {target_text(target)}"
        texts += [f"{words} on the test set; MB/s: sent and received", markdown.table(rows)]
    said = dict.fromkeys(line for name, its in parts.items() for line in f"{name}: {notes(its)}".splitlines())
    return "\n\n".join([*texts, "\n".join(said)])


def _cells_beside(its: Comparison, job: Workload, entry: str, target: float) -> tuple[str, str]:
    runs = its.runs(REPORT, job, entry)
    return (_times_cell(its, REPORT, job, entry, target), _size_text(its, runs[0])) if runs else ("", "")


def _size_text(its: Comparison, line: RunLine) -> str:
    """A run's step size, with its mark where it was chosen and is at an end of those tried."""
    is_chosen = line.phase != UNTUNED and its.runs(TUNING, line.workload, line.entry)
    return f"{line.step_size:.3g}{END_MARK if is_chosen and its.is_at_an_end(line) else ''}"


def times_table(comparison: Comparison, phase: str, network: str, split: str, target: float) -> str:
    """A row an algorithm; of each cluster seconds to the target, and how many times as fast as one machine alone."""
    jobs = [job for job in comparison.workloads_of(phase) if (job.network, job.split) == (network, split)]
    rows = [["", *(cell for job in jobs for cell in (f"{job.cluster}, s", "x alone"))]]
    for entry in comparison.entries:
        cells = [
            cell_of(comparison, phase, job, entry, target) for job in jobs for cell_of in (_times_cell, alone_cell)
        ]
        if any(cells):
            rows.append([ENTRIES[entry].title, *cells])
    speeds = [comparison.speed_of_all(job) for job in jobs]
    rows.append(["samples/s at best", *(cell for its in speeds for cell in ("", "" if its is None else f"{its:.2f}"))])
    return markdown.table(rows)


def _times_cell(comparison: Comparison, phase: str, job: Workload, entry: str, target: float) -> str:
    seconds = comparison.seconds(phase, job, entry, target)
    return times_text(seconds) if seconds else ""


def alone_cell(comparison: Comparison, phase: str, job: Workload, entry: str, target: float) -> str:
    """How many times as fast as one machine alone; `-` where not all runs of the algorithm, or less than half of that
    machine's, reached the target."""
    alone = comparison.alone(phase, job)
    if alone is None or entry in ALONE or not comparison.runs(phase, job, entry):
        return ""
    gain = comparison.times_as_fast(phase, job, entry, alone, target)
    if gain is None or not 0 < gain.value < math.inf or gain.low == 0:
        return "-"
    few = len(comparison.runs(phase, job, entry)) < FEWEST_RUNS
    return f"{gain.value:.2g}" if few else statistics.estimate_text(gain)


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
    goals = [target_text(target) for target in targets]
    scores = [f"score {goal}" for goal in goals] if phase == REPORT else []
    times = [f"s to {goal}" for goal in goals]
    rows = [["", "step size", *scores, *times, "final acc.", "samples/s", "diverged or failed"]]
    for entry in comparison.entries:
        runs = comparison.runs(phase, job, entry)
        trials = comparison.runs(TUNING, job, entry) if phase == REPORT else []
        if not runs and not trials:
            continue
        sized = runs[0] if runs else comparison.chosen(job, entry, tuned_to)
        size = _size_text(comparison, sized) if sized else "nan"
        momentum = "" if sized is None or sized.momentum is None else f", momentum {sized.momentum:g}"
        lost = sum(not line.has_model for line in (*runs, *trials))
        rows.append(
            [
                ENTRIES[entry].title,
                f"{size}{momentum}",
                *([score_text(comparison, job, entry, target) for target in targets] if scores else []),
                *(_times_cell(comparison, phase, job, entry, target) for target in targets),
                _median_text([line.final_accuracy for line in runs if not line.diverged]),
                _median_text([line.samples_per_s for line in runs if not line.diverged]),
                f"{lost} of {len(runs) + len(trials)}",
            ]
        )
    return markdown.table(rows)


def score_text(comparison: Comparison, job: Workload, entry: str, target: float) -> str:
    """AlgoPerf's score: the median over studies of the fastest trial, on held-out samples."""
    studies = comparison.studies(job, entry)
    if not studies:
        return ""
    fastest_s = [min(line.seconds_to(target) for line in trials) for trials in studies]
    return f"{statistics.median(fastest_s).value:.1f}"


def _median_text(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < FEWEST_RUNS:
        return " ".join(f"{value:.4g}" for value in known)
    return statistics.estimate_text(statistics.median(known))
