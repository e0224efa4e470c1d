"""The numbers of one run as text: the table, one row a mode, and the speed-ups over SSGD. No files."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from report import metrics
from report.definitions import Numbers, mark, notes
from report.metrics import SSGD, Curve, Device, Devices, Mode, Reached, SpeedUp, Value, compared
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
    evaluators: Mapping[Mode, Device | None],
    target: float,
    metric: Metric = ACCURACY,
) -> str:
    """One row a mode, `-` where the logs lack a number; below, definitions of the numbers and doubts about the runs."""
    columns = ["mode", "rounds", "samples/s", "MB/s", *metric_columns(target, metric), "computing ratio", "lost"]
    rows, times = [columns], list[Reached | None]()
    for mode, devices in runs.items():
        workers = devices.values()
        its, lost = numbers[mode], metrics.lost_share(workers)
        device = evaluators[mode]
        values = [value for _, value in device.curve] if device else []
        reached = device.reached(target) if device else None
        times.append(reached)
        rows.append(
            [
                mode.title,
                span([len(worker.elapsed_time_list) for worker in workers]),
                f"{metrics.throughput(workers):.1f}",
                "-" if its.traffic is None else mark(f"{its.traffic:.2f}", its.traffic_published),
                metric.text(values[-1]) if values else "-",
                metric.text(metric.best(values)) if values else "-",
                time_text(reached),
                mark(span(its.ratios.values(), ".2f"), its.ratios_published) if its.ratios else "-",
                "-" if lost is None else f"{lost:.1%}",
            ]
        )
    found = {mode: metrics.doubts_of([devices]) for mode, devices in runs.items()}
    return "\n".join([*aligned(rows), *notes(numbers.values()), *grid_line(times), *doubt_lines(found)])


def grid_line(times: Iterable[Reached | None]) -> list[str]:
    """How late virtual times to a target may be, in a line; empty where there are none."""
    late_s = max((its.late_s for its in times if its), default=0.0)
    text = f"evaluated at least every {late_s:.3g} s of virtual time, so a time is up to {late_s:.3g} s late"
    return [text] * (late_s > 0)


def doubt_lines(found: Mapping[Mode, Doubts]) -> list[str]:
    """A line for each mode whose runs are doubtful, and advice."""
    lines = [f"{mode.title}: {doubts}" for mode, doubts in found.items() if doubts]
    return [*lines, *dict.fromkeys(text for doubts in found.values() for text in doubts.advice)]


def short_doubts_of(runs: Mapping[Mode, Sequence[Devices]]) -> str:
    """The doubts in a few words, for a figure of these modes."""
    paces = {mode.title: [device.pace for devices in its for device in devices.values()] for mode, its in runs.items()}
    moved = {mode.title: metrics.doubts_of(its).evaluator for mode, its in runs.items()}
    return "; ".join(
        filter(None, [short_doubts(paces), *(f"{title}: {text}" for title, text in moved.items() if text)])
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


def time_text(its: Reached | None) -> str:
    """`8.0`; `4.0..8.0` between two evaluations far apart; `> 10.0`: not after 10 s; `-`: never evaluated."""
    if its is None:
        return "-"
    return span((its.low_s, its.by_s), ".1f") if its.is_at_target else f"> {its.after_s:.1f}"


def speed_up_lines(evaluators: Mapping[Mode, Device | None], target: float, metric: Metric = ACCURACY) -> list[str]:
    """One line a mode: its speed-up over SSGD on the same split, as time to the target."""
    return lines_beside_ssgd(evaluators, partial(_speed_up_text, target, metric))


def lines_beside_ssgd(values: Mapping[Mode, Value], text: Callable[[str, Value, str, Value], str]) -> list[str]:
    """A line for each other mode, of what `text` says of titles and values of it and of SSGD on the same split."""
    baselines = {mode.split: its for mode, its in values.items() if mode.algorithm == SSGD}
    return [
        f"{mode.algorithm.title}, {mode.split}: "
        + (
            text(mode.algorithm.title, its, SSGD.title, baselines[mode.split])
            if mode.split in baselines
            else f"unknown: no summary of {SSGD.title} on {mode.split} data"
        )
        for mode, its in compared(values).items()
        if mode.algorithm != SSGD
    ]


def _speed_up_text(
    target: float, metric: Metric, title: str, device: Device | None, of: str, baseline: Device | None
) -> str:
    goal, sides = target_text(target, metric), {title: device, of: baseline}
    times = {name: its.reached(target) if its else None for name, its in sides.items()}
    found, beside = times.values()
    if found is None or beside is None:
        return f"unknown: {next(name for name, its in times.items() if its is None)} has no {metric.plural}"
    if 0 in (found.by_s, beside.by_s):
        return f"unknown: a time to {goal} is 0 s, rounded to whole seconds in the summary"
    gain = metrics.speed_up(beside, found)
    if gain is None:
        best = [f"{name} {metric.text(metric.best(its.accuracy_list))}" for name, its in sides.items() if its]
        return f"unknown: neither reached {goal}; at best {', '.join(best)}"
    if not found.is_apart(beside):
        return not_apart(_side(title, found), _side(of, beside))
    known = {name: its for name, its in times.items() if its}
    late = [
        f"{name} had not reached {goal} after {its.after_s:.1f} s"
        for name, its in known.items()
        if not its.is_at_target
    ]
    reached = ", ".join(f"{name} {time_text(its)} s" for name, its in known.items() if its.is_at_target)
    return f"{': '.join([factor_text(gain), *late])} ({reached})"


def not_apart(*sides: tuple[str, str, bool]) -> str:
    """Says that two sides have no order, and why: of each the title, the seconds, and whether a worker took the
    evaluations over."""
    titles, seconds, moved = zip(*sides, strict=True)
    alone = [title for title, is_moved in zip(titles, moved, strict=True) if is_moved]
    why = f", and {alone[0]} alone was in part evaluated in the worker" if len(alone) == 1 else ""
    return f"{' and '.join(titles)} are not told apart: {' s and '.join(seconds)} s{why}"


def _side(title: str, its: Reached) -> tuple[str, str, bool]:
    """Of not_apart, with the interval that decided."""
    return title, time_text(its._replace(is_close=False)), its.is_moved


ONE_RUN = "this is one run of one seed: another day may order them otherwise"


def first_line(evaluators: Mapping[Mode, Device | None], target: float, metric: Metric = ACCURACY) -> str:
    """The algorithm that reached the target first in one run of each, and its speed-up over the others. Where others
    are not told apart from the soonest, none is the first."""
    goal = f"test {metric.name} {target_text(target, metric)}"
    times = {mode: device.reached(target) if device else None for mode, device in evaluators.items()}
    known = {mode: its for mode, its in times.items() if its is not None}
    best, best_its = min(known.items(), key=lambda pair: pair[1].by_s or math.inf, default=(None, None))
    if best is None or best_its is None or not 0 < best_its.by_s < math.inf:
        return f"no algorithm reached {goal}"
    beaten, equal = [], []
    for mode, its in sorted(times.items(), key=lambda pair: pair[1].by_s if pair[1] else math.inf):
        if mode == best:
            continue
        gain = metrics.speed_up(its, best_its) if its else None
        if its is None or gain is None:
            beaten.append(f"{mode.title} {'was there after 0 s, in whole seconds' if its else 'was never evaluated'}")
        elif best_its.is_apart(its):
            time = f"{time_text(its)} s" if its.is_at_target else f"not within {its.after_s:.1f} s"
            beaten.append(f"{factor_text(gain)} as fast as {mode.title} ({time})")
        else:
            equal.append(not_apart(_side(best.title, best_its), _side(mode.title, its)))
    if equal:
        others = [f"{best.title}: {', '.join(beaten)}"] if beaten else []
        return "; ".join([f"no algorithm is told to be first at {goal}: {equal[0]}", *equal[1:], *others, ONE_RUN])
    results = ", ".join([f"{goal} after {time_text(best_its)} s", *beaten])
    return f"{best.title} was first: {results}; {ONE_RUN}"


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
