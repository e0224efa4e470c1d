"""Figures of a comparison whose rows searched their own numbers: the crossing, and the runs of one job."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from algorithms import ENTRIES
from experiments.study.comparison import REPORT, Workload
from experiments.study.fair_tables import Fair
from report import statistics
from report.figures import legend_of_curves
from report.style import note_below
from report.tables import target_text

MISSED = 1.25  # times the limit: where medians of runs that did not reach the target are drawn


def shares(step_times_s: Sequence[float]) -> float:
    """The speed of the slow half of a cluster's machines over that of the fast half, in percent."""
    times = sorted(step_times_s)
    fast, slow = times[: len(times) // 2], times[len(times) // 2 :]
    return round(100 * sum(1 / each for each in slow) / sum(1 / each for each in fast), 1)


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
        look, moved = (
            ENTRIES[entry].look,
            0.07 * (number - (len(entries) - 1) / 2),
        )  # so that bars are beside each other
        at = [place + moved for place, _ in shown]
        top = limit_s * MISSED
        ends = [[min(value, top) for value in estimate] for estimate in medians]
        axes.errorbar(
            at,
            [value for value, *_ in ends],
            yerr=[[value - low for value, low, _ in ends], [high - value for value, _, high in ends]],
            color=look.colour,
            linestyle=look.line,
            marker=look.marker,
            elinewidth=0.7,
            label=ENTRIES[entry].title,
        )
    axes.set_yscale("log")
    axes.axhline(limit_s, color="black", linewidth=0.6, linestyle=":")
    axes.set_xticks(places, [f"{share:g}" for share in jobs])
    seconds = [each for each in (5, 10, 20, 40, 80, 150) if each <= limit_s]
    axes.yaxis.set_major_locator(FixedLocator(seconds))
    axes.yaxis.set_major_formatter(FixedFormatter([str(each) for each in seconds]))
    axes.yaxis.set_minor_locator(NullLocator())
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
        if (job.split, job.network) == (like.split, like.network) and job.cluster.split("-")[0] == like.cluster:
            times = next(line.step_times_s for line in fair.its.lines if line.workload == job)
            found[shares(times)] = job
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
