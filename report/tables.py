"""The numbers of runs as text: the table, one row a mode, and the speed-ups over SSGD. Of several runs medians with
intervals. No files."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain

from esync.metric import ACCURACY, Metric
from report import metrics, statistics
from report.definitions import MARK, mark, notes
from report.metrics import SSGD, Curve, Devices, Mode, Reached, SpeedUp, compared
from report.runs import Run, by_mode
from report.statistics import FEWEST_RUNS, coverage, median
from trainer.run_logs.pace import EVALUATION_SHARE, SLOWER, Doubts
from utils import SetupError

USUAL_TARGET = 0.8  # of accuracy
TARGET_HELP = f"value of the metric for the times to it (accuracy: {USUAL_TARGET}; else the best that all reached)"


def target_for(given: float | None, metric: Metric, curves: Iterable[Curve]) -> float:
    """The target that was asked for; else the usual accuracy, or of another metric the best that all curves reached.
    Raises SetupError if the metric has no such value."""
    if given is not None and (fault := metric.fault(given)):
        raise SetupError(f"--target {given:g} is {fault}, as the {metric.name} of these logs: give another one")
    if given is not None or metric.is_accuracy:
        return USUAL_TARGET if given is None else given
    best = [metric.best(value for _, value in curve) for curve in curves if curve]
    return (min if metric.more_is_better else max)(best, default=0.0)


def table(runs: Sequence[Run], target: float, metric: Metric = ACCURACY) -> str:
    """One row a mode, `-` where the logs of a run lack a number; below, definitions and doubts about the runs."""
    name = "acc." if metric.is_accuracy else metric.name
    is_one, form = len(runs) == 1, ".4f" if metric.is_accuracy else ".4g"
    head = ["mode", "rounds" if is_one else "runs", "samples/s", "MB/s", f"final {name}", f"best {name}"]
    rows = [[*head, f"s to {target_text(target, metric)}", "computing ratio", *(["lost"] * is_one)]]
    devices, numbers = by_mode([run.devices for run in runs]), by_mode([run.numbers for run in runs])
    curves = by_mode([run.curves for run in runs])
    times = by_mode([metrics.times_of(run.evaluators, target) for run in runs])
    for mode, its in devices.items():
        values = [[value for _, value in curve] for curve in curves[mode]]
        ratios = [ratio for each in numbers[mode] for ratio in each.ratios.values()]
        lost = metrics.lost_share(its[0].values())
        loads = values_text([each.traffic for each in numbers[mode]], ".2f")
        rows.append(
            [
                mode.title,
                span([len(worker.rounds) for worker in its[0].values()]) if is_one else str(len(its)),
                values_text([metrics.throughput(each.values()) for each in its], ".1f"),
                mark(loads, loads != "-" and any(each.traffic_published for each in numbers[mode])),
                values_text([each[-1] if each else None for each in values], form),
                values_text([metric.best(each) if each else None for each in values], form),
                time_text(times[mode][0]) if is_one else times_text(*seconds_of(times[mode])),
                mark(span(ratios, ".2f"), any(each.ratios_published for each in numbers[mode])) if ratios else "-",
                *(["-" if lost is None else f"{lost:.1%}"] * is_one),
            ]
        )
    found = {mode: metrics.doubts_of(its) for mode, its in devices.items()}
    below = notes([each for its in numbers.values() for each in its])
    if not is_one:
        widths = "computing ratio: from the least to the greatest of all workers"
        below = [f"{intervals([*map(len, devices.values())])}; {widths}", *(each for each in below if each[0] == MARK)]
    return "\n".join([*aligned(rows), *below, *grid_line(chain.from_iterable(times.values())), *doubt_lines(found)])


def grid_line(times: Iterable[Reached]) -> list[str]:
    """A line on how late virtual times to a target may be; empty where there are none."""
    late_s = max((its.late_s for its in times), default=0.0)
    text = f"evaluated at least every {late_s:.3g} s of virtual time, so a time is up to {late_s:.3g} s late"
    return [text] * (late_s > 0)


def doubt_lines(found: Mapping[Mode, Doubts]) -> list[str]:
    """A line for each mode whose runs are doubtful, and advice."""
    lines = [f"{mode.title}: {doubts}" for mode, doubts in found.items() if doubts]
    return [*lines, *dict.fromkeys(text for doubts in found.values() for text in doubts.advice)]


def short_doubts_of(runs: Mapping[Mode, Sequence[Devices]]) -> str:
    """The doubts in a few words, for a figure of these modes."""
    paces = {
        mode.title: [device.pace for devices in its for device in devices.values() if device.pace is not None]
        for mode, its in runs.items()
    }
    slowness = {title: max([pace.slowness for pace in its], default=0.0) for title, its in paces.items()}
    shares = {title: max([pace.evaluation_share for pace in its], default=0.0) for title, its in paces.items()}
    slow = ", ".join(f"{title} {times:.1f}" for title, times in slowness.items() if times > SLOWER)
    busy = ", ".join(f"{title} {share:.0%}" for title, share in shares.items() if share > EVALUATION_SHARE)
    moved = {mode.title: metrics.doubts_of(its).evaluator for mode, its in runs.items()}
    texts = [f"steps took longer than emulated, by at most these factors: {slow}"] * bool(slow)
    texts += [f"evaluations took much of a worker's time: {busy}"] * bool(busy)
    return "; ".join([*texts, *(f"{title}: {text}" for title, text in moved.items() if text)])


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


def target_text(target: float, metric: Metric = ACCURACY) -> str:
    """`0.80`, or with more decimals where two change the accuracy: `0.925`."""
    return f"{target:.2f}" if metric.is_accuracy and round(target, 2) == target else f"{target:g}"


def time_text(its: Reached) -> str:
    """`8.0`; `4.0..8.0` between two evaluations far apart; `> 10.0`: not after 10 s; `-`: never evaluated."""
    if its.is_at_target:
        return span((its.low_s, its.by_s), ".1f")
    return "-" if its.best is None else f"> {its.after_s:.1f}"


def intervals(numbers: Collection[int]) -> str:
    """Explains what `values_text` shows of so many runs."""
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


def speed_up_lines(runs: Sequence[Mapping[Mode, Reached]], target: float, metric: Metric = ACCURACY) -> list[str]:
    """One line a mode: its speed-up over SSGD on the same split, by the times of one or several runs to the target."""
    times = by_mode(runs)
    baselines = {mode.split: its for mode, its in times.items() if mode.algorithm == SSGD}
    lines = []
    for mode, its in compared(times).items():
        title, baseline = mode.algorithm.title, baselines.get(mode.split)
        if mode.algorithm == SSGD:
            continue
        if baseline is None:
            text = f"unknown: no summary of {SSGD.title} on {mode.split} data"
        elif len(runs) == 1:
            text = _speed_up_of_one(title, its[0], SSGD.title, baseline[0], target, metric)
        else:
            text = _speed_up_of_several(title, its, SSGD.title, baseline)
        lines.append(f"{title}, {mode.split}: {text}")
    return lines


def _speed_up_of_one(title: str, its: Reached, of: str, baseline: Reached, target: float, metric: Metric) -> str:
    goal, sides = target_text(target, metric), {title: its, of: baseline}
    best = {name: each.best for name, each in sides.items() if each.best is not None}
    if lacking := [name for name in sides if name not in best]:
        return f"unknown: {lacking[0]} has no {metric.plural}"
    if 0 in (its.by_s, baseline.by_s):
        return f"unknown: a time to {goal} is 0 s, rounded to whole seconds in the summary"
    gain = metrics.speed_up(baseline, its)
    if gain is None:
        texts = ", ".join(f"{name} {metric.text(value)}" for name, value in best.items())
        return f"unknown: neither reached {goal}; at best {texts}"
    if not its.is_apart(baseline):
        return not_apart(side_of(title, its), side_of(of, baseline))
    known = ", ".join(f"{name} {time_text(each)} s" for name, each in sides.items() if each.is_at_target)
    late = [(name, each.after_s) for name, each in sides.items() if not each.is_at_target]
    why = "".join(f": {name} had not reached {goal} after {after_s:.1f} s" for name, after_s in late)
    return f"{factor_text(gain)}{why} ({known})"


def _speed_up_of_several(title: str, times: Sequence[Reached], of: str, baseline: Sequence[Reached]) -> str:
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


def not_apart(*sides: tuple[str, str, bool]) -> str:
    """Says that two sides have no order, and why: of each the title, the seconds, and whether a worker took the
    evaluations over."""
    titles, seconds, _ = zip(*sides, strict=True)
    alone = [title for title, _, is_moved in sides if is_moved]
    why = f", and {alone[0]} alone was in part evaluated in the worker" if len(alone) == 1 else ""
    return f"{' and '.join(titles)} are not told apart: {' s and '.join(seconds)} s{why}"


def side_of(title: str, its: Reached) -> tuple[str, str, bool]:
    """An argument of not_apart, with the interval that decided."""
    return title, time_text(its._replace(low_s=its.after_s)), its.is_moved


def factor_text(gain: SpeedUp) -> str:
    """Such as `1.5x`, `1.2..5.0x` or `> 1.5x`; bounds are rounded to the side on which they hold."""
    decimals = 1 if (gain.low or gain.high) >= 1 else 2
    if gain.low == gain.high:
        return f"{gain.low:.{decimals}f}x"
    low = math.floor(round(gain.low * 10**decimals, 6)) / 10**decimals
    if math.isinf(gain.high):
        return f"> {low:.{decimals}f}x"
    high = math.ceil(round(gain.high * 10**decimals, 6)) / 10**decimals
    return f"{low:.{decimals}f}..{high:.{decimals}f}x" if gain.low else f"< {high:.{decimals}f}x"
