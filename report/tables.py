"""The numbers of one run as text: the table, one row a mode, and the speed-ups over SSGD. No files."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from report import metrics
from report.definitions import Numbers, mark, notes
from report.metrics import SSGD, Curve, Devices, Mode, SpeedUp, compared
from trainer.metric import ACCURACY, Metric
from trainer.run_logs.pace import Doubts, short_doubts
from utils import SetupError

USUAL_TARGET = 0.8  # of accuracy
TARGET_HELP = (
    f"value of the metric to compare the times to (accuracy: {USUAL_TARGET}; else the best that all modes reached)"
)


def target_for(given: float | None, metric: Metric, curves: Iterable[Curve]) -> float:
    """The target that was asked for; else the usual accuracy, or of another metric the best that all curves reached.
    Raises SetupError if the metric has no such value."""
    if given is not None and (fault := metric.fault(given)):
        raise SetupError(f"--target {given:g} is {fault}, as the {metric.name} of these logs: give another one")
    if given is not None or metric.is_accuracy:
        return USUAL_TARGET if given is None else given
    best = [metric.best(value for _, value in curve) for curve in curves if curve]
    return (min if metric.more_is_better else max)(best, default=0.0)


def table(
    runs: Mapping[Mode, Devices],
    numbers: Mapping[Mode, Numbers],
    curves: Mapping[Mode, Curve],
    target: float,
    metric: Metric = ACCURACY,
) -> str:
    """One row a mode, `-` where the logs lack a number; below, definitions of the numbers and doubts about the runs."""
    columns = ["mode", "rounds", "samples/s", "MB/s", *metric_columns(target, metric), "computing ratio", "lost"]
    rows = [columns]
    for mode, devices in runs.items():
        workers = devices.values()
        its, lost = numbers[mode], metrics.lost_share(workers)
        values = [value for _, value in curves[mode]]
        rows.append(
            [
                mode.title,
                span([len(worker.elapsed_time_list) for worker in workers]),
                f"{metrics.throughput(workers):.1f}",
                "-" if its.traffic is None else mark(f"{its.traffic:.2f}", its.traffic_published),
                metric.text(values[-1]) if values else "-",
                metric.text(metric.best(values)) if values else "-",
                time_text(curves[mode], target, metric),
                mark(span(its.ratios.values(), ".2f"), its.ratios_published) if its.ratios else "-",
                "-" if lost is None else f"{lost:.1%}",
            ]
        )
    found = {mode: metrics.doubts_of([devices]) for mode, devices in runs.items()}
    return "\n".join([*aligned(rows), *notes(numbers.values()), *doubt_lines(found)])


def doubt_lines(found: Mapping[Mode, Doubts]) -> list[str]:
    """A line for each mode whose runs are doubtful, and advice."""
    lines = [f"{mode.title}: {doubts}" for mode, doubts in found.items() if doubts]
    return [*lines, *dict.fromkeys(text for doubts in found.values() for text in doubts.advice)]


def short_doubts_of(runs: Mapping[Mode, Sequence[Devices]]) -> str:
    """The doubts in a few words, for a figure of these modes."""
    return short_doubts(
        {mode.title: [device.pace for devices in its for device in devices.values()] for mode, its in runs.items()}
    )


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows as lines with aligned columns, the first one flush left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, of which the first row is the head."""
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{' --- |' * len(rows[0])}", *body])


def span(values: Collection[float], form: str = "") -> str:
    """`5`, or `5..7` where the values differ."""
    texts = dict.fromkeys(format(value, form) for value in (min(values), max(values)))
    return "..".join(texts)


def metric_columns(target: float, metric: Metric) -> list[str]:
    """Heads of the columns of the last and the best value, and of the seconds to the target."""
    name = "acc." if metric.is_accuracy else metric.name
    return [f"final {name}", f"best {name}", f"s to {target_text(target, metric)}"]


def target_text(target: float, metric: Metric = ACCURACY) -> str:
    """`0.80`, or with more decimals where two change the accuracy: `0.925`."""
    return f"{target:.2f}" if metric.is_accuracy and round(target, 2) == target else f"{target:g}"


def time_text(curve: Curve, target: float, metric: Metric = ACCURACY) -> str:
    """`8.0`, `> 10.0` where the curve ends after 10 s without the target, `-` where it is empty."""
    seconds = metrics.seconds_to(curve, target, metric)
    if seconds is not None:
        return f"{seconds:.1f}"
    return f"> {curve[-1][0]:.1f}" if curve else "-"


def speed_up_lines(curves: Mapping[Mode, Curve], target: float, metric: Metric = ACCURACY) -> list[str]:
    """One line a mode: its speed-up over SSGD on the same split, as time to the target."""
    baselines = {mode.split: (mode, curve) for mode, curve in curves.items() if mode.algorithm == SSGD}
    lines = []
    for mode, curve in compared(curves).items():
        if mode.algorithm == SSGD:
            continue
        name = f"{mode.algorithm.title}, {mode.split}"
        if mode.split in baselines:
            lines.append(f"{name}: {_speed_up_text(mode, curve, *baselines[mode.split], target, metric)}")
        else:
            lines.append(f"{name}: unknown: no summary of {SSGD.title} on {mode.split} data")
    return lines


def _speed_up_text(
    mode: Mode, curve: Curve, baseline: Mode, baseline_curve: Curve, target: float, metric: Metric
) -> str:
    goal = target_text(target, metric)
    sides = ((mode.algorithm.title, curve), (baseline.algorithm.title, baseline_curve))
    for title, its_curve in sides:
        if not its_curve:
            return f"unknown: {title} has no {metric.plural}"
    gain = metrics.speed_up(baseline_curve, curve, target, metric)
    if 0 in [metrics.seconds_to(its_curve, target, metric) for _, its_curve in sides]:
        return f"unknown: a time to {goal} is 0 s, rounded to whole seconds in the summary"
    if gain is None:
        best = ", ".join(f"{title} {metric.text(metric.best(value for _, value in its))}" for title, its in sides)
        return f"unknown: neither reached {goal}; at best {best}"
    reached, late = [], ""
    for title, its_curve in sides:
        seconds = metrics.seconds_to(its_curve, target, metric)
        if seconds is None:
            late = f": {title} had not reached {goal} after {its_curve[-1][0]:.1f} s"
        else:
            reached.append(f"{title} {seconds:.1f} s")
    return f"{_factor_text(gain)}{late} ({', '.join(reached)})"


ONE_RUN = "this is one run of one seed: another day may order them otherwise"


def first_line(curves: Mapping[Mode, Curve], target: float, metric: Metric = ACCURACY) -> str:
    """The algorithm that reached the target first in one run of each, and its speed-up over the others."""
    goal = f"test {metric.name} {target_text(target, metric)}"
    times = {mode: metrics.seconds_to(curve, target, metric) for mode, curve in curves.items()}
    reached = {mode: seconds for mode, seconds in times.items() if seconds}
    if not reached:
        return f"no algorithm reached {goal}"
    best, best_s = min(reached.items(), key=lambda pair: pair[1])
    beaten = []
    for mode in sorted(curves, key=lambda mode: reached.get(mode, math.inf)):
        gain = metrics.speed_up(curves[mode], curves[best], target, metric)
        if mode == best:
            continue
        if gain is None:
            beaten.append(f"{mode.title} was never evaluated")
        elif mode in reached:
            beaten.append(f"{_factor_text(gain)} as fast as {mode.title} ({reached[mode]:.1f} s)")
        else:
            end_s = curves[mode][-1][0]
            beaten.append(f"{_factor_text(gain)} as fast as {mode.title} (not within {end_s:.1f} s)")
    results = ", ".join([f"{goal} after {best_s:.1f} s", *beaten])
    return f"{best.title} was first: {results}; {ONE_RUN}"


def _factor_text(gain: SpeedUp) -> str:
    """Such as `1.5x`, or `> 1.5x`; a bound is rounded to the side on which it holds."""
    decimals = 1 if gain.factor >= 1 else 2
    rounding: dict[str, Callable[[float], int]] = {">": math.floor, "<": math.ceil, "": round}
    text = f"{rounding[gain.bound](gain.factor * 10**decimals) / 10**decimals:.{decimals}f}x"
    return f"{gain.bound} {text}".lstrip()
