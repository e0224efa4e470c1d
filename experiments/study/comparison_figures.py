"""Figures of a comparison whose rows searched their own numbers, for a column of a paper, also in grey: the runs of one
job, and the crossing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from algorithm_row import Entry, Look
from experiments.study.comparison import REPORT, ROWS, Workload
from experiments.study.comparison_tables import Fair, family
from report import statistics
from report.figures import band, curve_look, draw_band, legend_of_curves
from report.style import note_below
from report.tables import span, target_text

MISSED = 1.25  # times the limit: where medians of runs that did not reach the target are drawn
BELOW_TARGET, ABOVE_TARGET = 0.08, 0.01  # accuracies of a job's figure, from the target on
# Few rows share a figure here, so they can differ more than the looks of all algorithms: also in lightness.
LOOKS = {
    "esync": Look("#0072B2", "-", "o", ""),
    "esync-outer": Look("#D55E00", "-", "s", ""),
    "fastest-outer": Look("#009E73", "--", "D", ""),
    "fastest-sync": Look("#E69F00", "--", "^", ""),
    "decoupled": Look("#882255", "-.", "P", ""),
    "async-local": Look("#56B4E9", "-.", "v", ""),
    "sync": Look("#AA8866", ":", "X", ""),
    "alone": Look("#000000", ":", "*", ""),
}


def entry_of(name: str) -> Entry:
    """The algorithm with its look in these figures."""
    entry = ROWS[name]
    return replace(entry, look=LOOKS[name]) if name in LOOKS else entry


def draw_job(figure: Figure, job: Workload, fair: Fair, entries: Sequence[str]) -> None:
    """Above, the means of three evaluations over time of each algorithm's runs as a band, up to the end of the first
    run; below, each run's time to the target, or its end with an open marker if it did not reach it, and the median."""
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 0.26 * len(entries) + 0.1])
    target = fair.target(job)
    for number, entry in enumerate(map(entry_of, entries)):
        runs = fair.its.runs(REPORT, job, entry.name)
        colour, seconds = entry.look.colour, [line.seconds_to(target) for line in runs]
        its = band(curves) if (curves := [line.smooth_curve for line in runs if line.smooth_curve]) else None
        if its is not None:
            draw_band(above, its, 1.0, curve_look(entry, len(its.at), number, len(entries)))
        ends = zip(seconds, runs, strict=True)
        points = [(each if math.isfinite(each) else line.curve[-1][0], each) for each, line in ends if line.curve]
        for place, (at, each) in enumerate(points):
            aside = number + 0.12 * [before for before, _ in points[:place]].count(at)  # so equal times are seen
            face, edge = (colour, "white") if math.isfinite(each) else ("none", colour)
            below.plot([at], [aside], marker=entry.look.marker, mfc=face, mec=edge, mew=0.4, markersize=3.8)
        if math.isfinite(middle := statistics.median(seconds).value):
            below.plot([middle, middle], [number - 0.4, number + 0.4], color=colour, linewidth=1.2, zorder=1)
    above.axhline(target, color="black", linewidth=0.6)
    above.set_ylabel("test accuracy")
    above.set_ylim(target - BELOW_TARGET, target + ABOVE_TARGET)
    below.set_yticks([])
    below.set_ylim(len(entries) - 0.5, -0.5)
    below.set_xscale("log")
    _tick_seconds(below.xaxis, fair.limit_s(job))
    below.set_xlim(left=fair.limit_s(job) / 50)
    below.set_xlabel("time (s)")
    below.set_ylabel(f"to {target_text(target)}")
    legend_of_curves(figure, above)
    figure.set_figheight(4.6)
    note_below(
        figure,
        f"{job.network} on {job.cluster}. Above: means of three evaluations, medians of "
        f"{span({len(fair.its.runs(REPORT, job, entry)) for entry in entries})} runs with their intervals, up to the "
        "first run's end. Below: each run's time, rows in the legend's order; open: ended without the target.",
    )


def shares(step_times_s: Sequence[float]) -> float:
    """The speed of the slow half of a cluster's machines over that of the fast half, in percent."""
    times = sorted(step_times_s)
    fast, slow = times[: len(times) // 2], times[len(times) // 2 :]
    return round(100 * sum(1 / each for each in slow) / sum(1 / each for each in fast), 1)


def _tick_seconds(axis: Axis, limit_s: float) -> None:
    """The ticks of a logarithmic axis."""
    seconds = [each for each in (2, 5, 10, 20, 40, 80, 150) if each <= limit_s]
    axis.set_major_locator(FixedLocator(seconds))
    axis.set_major_formatter(FixedFormatter([str(each) for each in seconds]))
    axis.set_minor_locator(NullLocator())


def draw_crossing(figure: Figure, jobs: Mapping[float, Workload], fair: Fair, entries: Sequence[str]) -> None:
    """Seconds to the target over the slow half's share of speed, a line an algorithm.

    Args:
        jobs: by share of speed in percent, ascending.
    """
    axes = figure.subplots()
    limit_s = max(map(fair.limit_s, jobs.values()))
    places = list(range(len(jobs)))
    for number, entry in enumerate(entries):
        shown = [(place, job) for place, job in zip(places, jobs.values(), strict=True) if entry in fair.rows(job)]
        if not shown:
            continue
        medians = [statistics.median(list(fair.seconds(job, entry).values())) for _, job in shown]
        look, moved = entry_of(entry).look, 0.07 * (number - (len(entries) - 1) / 2)  # so bars are beside each other
        at = [place + moved for place, _ in shown]
        ends = [[min(value, limit_s * MISSED) for value in estimate] for estimate in medians]
        axes.errorbar(
            at,
            [value for value, *_ in ends],
            yerr=[[value - low for value, low, _ in ends], [high - value for value, _, high in ends]],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            elinewidth=0.7,
            label=ROWS[entry].title,
        )
    axes.axhline(limit_s, color="black", linewidth=0.6, linestyle=":")
    axes.set_xticks(places, [f"{share:g}" for share in jobs])
    axes.set_yscale("log")
    _tick_seconds(axes.yaxis, limit_s)
    axes.set_xlabel("speed of the slow half, % of the fast half's")
    target = fair.target(next(iter(jobs.values())))
    axes.set_ylabel(f"seconds to {target_text(target)}")
    legend_of_curves(figure, axes)
    figure.set_figheight(3.6)
    note_below(
        figure,
        "Medians of the seeds, and their intervals; above the dotted line: not reached in time.",
    )


def crossing_jobs(fair: Fair, like: Workload) -> dict[float, Workload]:
    """The jobs that differ from this one in the slow half's speed alone, by that in percent, ascending."""
    found = {}
    for job in fair.its.workloads_of(REPORT):
        if family(job) == family(like):
            found[shares(fair.its.step_times_s(job))] = job
    return dict(sorted(found.items()))


def ahead_at(fair: Fair, jobs: Mapping[float, Workload], entry: str, baseline: str | None) -> list[float]:
    """The shares at which an algorithm is ahead of a baseline by the whole interval, ascending.

    Args:
        baseline: None: the best row on the fastest machines of each job.
    """
    found = []
    for share, job in jobs.items():
        over = fair.fastest_k(job) if baseline is None else baseline
        if over and {entry, over} <= set(fair.rows(job)) and not fair.has_missed(job, entry):
            found += [share] if fair.gain(job, entry, over).low > 1 else []
    return found
