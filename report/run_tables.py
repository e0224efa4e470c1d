"""Numbers of several runs of the same jobs as text: medians with intervals. No files."""

from collections.abc import Collection, Sequence

from report import metrics, statistics
from report.metrics import SSGD, compared, doubts_of
from report.runs import Run, by_mode
from report.statistics import FEWEST_RUNS, coverage
from report.tables import aligned, doubt_lines, metric_columns, span
from trainer.metric import ACCURACY, Metric


def table(runs: Sequence[Run], target: float, metric: Metric = ACCURACY) -> str:
    """One row a mode; `-` where the logs of a run lack a number."""
    rows = [["mode", "runs", "samples/s", "MB/s", *metric_columns(target, metric), "computing ratio"]]
    form = ".4f" if metric.is_accuracy else ".4g"
    devices, numbers = by_mode([run.devices for run in runs]), by_mode([run.numbers for run in runs])
    curves = by_mode([run.curves for run in runs])
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
                times_text([statistics.time_to_target(curve, target, metric) for curve in curves[mode]]),
                span(ratios, ".2f") if ratios else "-",
            ]
        )
    note = f"{intervals([*map(len, devices.values())])}; computing ratio: from the least to the greatest of all workers"
    return "\n".join([*aligned(rows), note, *doubt_lines({m: doubts_of(its) for m, its in devices.items()})])


def intervals(numbers: Collection[int]) -> str:
    """What `values_text` shows of so many runs, in words."""
    enough = [
        f"median (interval that covers it with {coverage(number)}) of {number} runs"
        for number in sorted({*numbers})
        if number >= FEWEST_RUNS
    ]
    few = [f"from the least to the greatest of fewer than {FEWEST_RUNS} runs"] * (min(numbers) < FEWEST_RUNS)
    return "; ".join([*enough, *few])


def values_text(values: Sequence[float | None], form: str) -> str:
    """The median with its interval, or the least and the greatest of too few values; `-` where one is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "-"
    return span(known, form) if len(known) < FEWEST_RUNS else statistics.estimate_text(statistics.median(known))


def times_text(seconds: Sequence[float]) -> str:
    """Median of times to a target; where not all runs reached it how many did, and the median if it is finite."""
    times = statistics.times(seconds)
    if times.reached == times.runs:
        return values_text(seconds, ".1f")
    reached = f"{times.reached} of {times.runs}"
    is_known = times.median.value != float("inf")
    return f"{statistics.estimate_text(times.median)}, {reached}" if is_known else reached


def speed_up_lines(runs: Sequence[Run], target: float, metric: Metric = ACCURACY) -> list[str]:
    """One line a mode: its speed-up over SSGD on the same split, as time to the target."""
    curves = by_mode([run.curves for run in runs])
    seconds = {
        mode: [statistics.time_to_target(curve, target, metric) for curve in its]
        for mode, its in compared(curves).items()
    }
    baselines = {mode.split: its for mode, its in seconds.items() if mode.algorithm == SSGD}
    return [
        f"{mode.algorithm.title}, {mode.split}: {_speed_up_text(mode.algorithm.title, its, baselines.get(mode.split))}"
        for mode, its in seconds.items()
        if mode.algorithm != SSGD
    ]


def _speed_up_text(title: str, seconds: Sequence[float], baseline: Sequence[float] | None) -> str:
    if baseline is None:
        return f"unknown: no summary of {SSGD.title} on the same split"
    sides = ((title, statistics.times(seconds)), (SSGD.title, statistics.times(baseline)))
    missed = [f"{times.reached} of {times.runs} runs of {name}" for name, times in sides if times.reached < times.runs]
    if missed:
        return f"unknown: {' and '.join(missed)} reached it"
    if len(seconds) != len(baseline) or len(seconds) < FEWEST_RUNS:
        gain = sides[1][1].median.value / sides[0][1].median.value
        return f"{gain:.1f}x, by the medians of {len(seconds)} and {len(baseline)} runs"
    paired = statistics.times_as_fast(baseline, seconds)
    assert paired is not None  # all runs reached it
    value, low, high = statistics.texts(paired)
    return f"{value}x ({low} to {high}), median of {len(seconds)} pairs of runs"
