"""Numbers of several runs of the same jobs as text: medians with intervals. No files."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

from report import metrics, statistics
from report.metrics import Reached, SpeedUp, doubts_of
from report.runs import Run, by_mode
from report.statistics import FEWEST_RUNS, coverage, median
from report.tables import (
    aligned,
    doubt_lines,
    factor_text,
    grid_line,
    lines_beside_ssgd,
    metric_columns,
    not_apart,
    span,
)
from trainer.metric import ACCURACY, Metric


def table(runs: Sequence[Run], target: float, metric: Metric = ACCURACY) -> str:
    """One row a mode; `-` where the logs of a run lack a number."""
    rows = [["mode", "runs", "samples/s", "MB/s", *metric_columns(target, metric), "computing ratio"]]
    form = ".4f" if metric.is_accuracy else ".4g"
    devices, numbers = by_mode([run.devices for run in runs]), by_mode([run.numbers for run in runs])
    curves, times = (
        by_mode([run.curves for run in runs]),
        by_mode([metrics.times_of(run.evaluators, target) for run in runs]),
    )
    for mode, its in devices.items():
        values = [[value for _, value in curve] for curve in curves[mode]]
        ratios = [ratio for run in numbers[mode] for ratio in run.ratios.values()]
        rows.append(
            [
                mode.title,
                str(len(its)),
                values_text([metrics.throughput(run.values()) for run in its], ".1f"),
                values_text([run.traffic for run in numbers[mode]], ".2f"),
                values_text([each[-1] if each else None for each in values], form),
                values_text([metric.best(each) if each else None for each in values], form),
                times_text(*seconds_of(times[mode])),
                span(ratios, ".2f") if ratios else "-",
            ]
        )
    note = f"{intervals([*map(len, devices.values())])}; computing ratio: from the least to the greatest of all workers"
    doubts = doubt_lines({mode: doubts_of(its) for mode, its in devices.items()})
    return "\n".join([*aligned(rows), note, *grid_line(chain.from_iterable(times.values())), *doubts])


def intervals(numbers: Collection[int]) -> str:
    """What `values_text` shows of so many runs, in words."""
    enough = [
        f"median (interval that covers it with {coverage(number)}) of {number} runs"
        for number in sorted({*numbers})
        if number >= FEWEST_RUNS
    ]
    few = [f"from the least to the greatest of fewer than {FEWEST_RUNS} runs"] * (min(numbers) < FEWEST_RUNS)
    return "; ".join([*enough, *few])


def values_text(values: Sequence[float | None], form: str, least: Sequence[float] | None = None) -> str:
    """The median with its interval, or the least and the greatest of too few values; `-` where one is missing. Where
    `least` is given, each value lies between that and itself."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "-"
    if len(known) < FEWEST_RUNS:
        return span([*(least or ()), *known], form)
    return statistics.estimate_text(median(known), median(least or known))


def seconds_of(times: Sequence[Reached]) -> tuple[list[float], list[float]]:
    """The greatest and the least seconds to a target in each run; infinite where it did not reach it."""
    return [its.by_s for its in times], [its.low_s for its in times]


def times_text(seconds: Sequence[float], least: Sequence[float] | None = None) -> str:
    """Median of times to a target; where not all runs reached it how many did, and the median if it is finite. `least`
    as values_text has it."""
    if not (reached := _reached(seconds)):
        return values_text(seconds, ".1f", least)
    middle = median(seconds)
    is_known = math.isfinite(middle.value)
    return f"{statistics.estimate_text(middle, median(least or seconds))}, {reached}" if is_known else reached


def _reached(seconds: Sequence[float]) -> str:
    """`4 of 5` runs that reached a target; empty where all did."""
    reached = sum(map(math.isfinite, seconds))
    return f"{reached} of {len(seconds)}" * (reached < len(seconds))


def wide_times(times: Mapping[str, Sequence[Reached]]) -> str:
    """The times to a target, by title, of those whose evaluations are far apart, for a figure."""
    found = [
        f"{title} {times_text(*seconds_of(its))} s"
        for title, its in times.items()
        if any(each.low_s < each.by_s for each in its)
    ]
    return f"at the target between two evaluations: {', '.join(found)}" * bool(found)


def speed_up_lines(runs: Sequence[Run], target: float) -> list[str]:
    """One line a mode: its speed-up over SSGD on the same split, as time to the target."""
    return lines_beside_ssgd(by_mode([metrics.times_of(run.evaluators, target) for run in runs]), _speed_up_text)


def _speed_up_text(title: str, times: Sequence[Reached], of: str, baseline: Sequence[Reached]) -> str:
    its, beside = seconds_of(times), seconds_of(baseline)
    counts = ((title, _reached(its[0])), (of, _reached(beside[0])))
    if missed := [f"{reached} runs of {name}" for name, reached in counts if reached]:
        return f"unknown: {' and '.join(missed)} reached it"
    are_pairs = len(times) == len(baseline) >= FEWEST_RUNS
    if not are_pairs:
        its, beside = (([median(by).value], [median(least).value]) for by, least in (its, beside))
    low, high = (statistics.times_as_fast(*each) for each in ((beside[1], its[0]), (beside[0], its[1])))
    assert low is not None and high is not None  # all runs reached it
    moved, beside_moved = (any(each.is_moved for each in side) for side in (times, baseline))
    if low.value < 1 < high.value or moved != beside_moved:
        texts = (times_text(*seconds_of(side)) for side in (times, baseline))
        return not_apart(*zip((title, of), texts, (moved, beside_moved), strict=True))
    if not are_pairs:
        gain = factor_text(SpeedUp(low.value, high.value))
        return f"{gain}, by the medians of {len(times)} and {len(baseline)} runs"
    return f"{statistics.estimate_text(high, low).replace(' ', 'x ', 1)}, median of {len(times)} pairs of runs"
