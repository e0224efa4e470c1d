"""The results of a sweep: a line a run, a table with medians and intervals, a figure with bands."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from algorithms import ENTRIES
from esync.metric import ACCURACY, Metric, metric_of
from report import metrics, statistics, tables
from report.figure_set import save_figures
from report.figures import draw_curves
from report.metrics import IID, Curve, Mode, Reached
from report.style import style
from scripts.run_lines import Run, programs
from utils import write_atomically

NAME = "sweep"  # of the files
MOST_CURVES = 8  # of a figure; more cannot be told apart


@dataclass(frozen=True, kw_only=True)
class SweepLine(Run):
    """One run of a sweep."""

    point: str  # name of its folder
    values: Mapping[str, str] = field(default_factory=dict)  # the flags that have several values in the sweep
    # Its name and direction, as Metric.about has them
    metric: Mapping[str, Any] = field(default_factory=ACCURACY.about)
    curve: Curve = ()  # [seconds, value of the metric]
    took_s: float = 0.0  # seconds of real time, with the start
    evaluator: str = ""  # that the worker took the evaluations over from the process beside it

    @property
    def key(self) -> tuple[Any, ...]:
        return self.point, self.seed

    @property
    def title(self) -> str:
        """Of its point."""
        return " ".join([ENTRIES[self.entry].title, *(f"{flag} {value}" for flag, value in self.values.items())])

    @property
    def said(self) -> str:
        """Its result in a few words."""
        if not self.has_model:
            return self.failed or "diverged"
        last = f"{self.measures.name} {self.measures.text(self.curve[-1][1])}, " if self.curve else ""
        return f"{last}{self.samples_per_s:.0f} samples/s"

    @property
    def measures(self) -> Metric:
        """What the curve has."""
        return metric_of(self.metric) or ACCURACY

    @property
    def _worst(self) -> float:
        return -math.inf if self.measures.more_is_better else math.inf

    @property
    def final(self) -> float:
        """The last value of the metric; of a run that diverged one that is worse than all others."""
        return self.curve[-1][1] if self.has_model else self._worst

    @property
    def best(self) -> float:
        return self.measures.best(value for _, value in self.curve) if self.has_model else self._worst

    def reached(self, target: float | None) -> Reached:
        """Never where there is no target, or it has no model."""
        curve = self.curve if self.has_model and target is not None else ()
        is_virtual = "simulate.py" in self.command[:1]
        return metrics.reached(curve, target or 0.0, self.measures, is_virtual, bool(self.evaluator))


def metric_in(lines: Sequence[SweepLine]) -> Metric:
    """The metric of a sweep: that of a run with a model."""
    return next((line.measures for line in lines if line.has_model), ACCURACY)


def by_point(lines: Sequence[SweepLine]) -> dict[str, list[SweepLine]]:
    """The runs of each point, in the order of the sweep."""
    found: dict[str, list[SweepLine]] = {}
    for line in lines:
        found.setdefault(line.point, []).append(line)
    return found


def table(lines: Sequence[SweepLine], target: float | None) -> list[list[str]]:
    """A head, and a row a point."""
    metric = metric_in(lines)
    form = ".4f" if metric.is_accuracy else ".4g"
    to_target = [] if target is None else [f"s to {tables.target_text(target, metric)}"]
    rows = [["", "runs", "samples/s", f"final {metric.name}", f"best {metric.name}", *to_target, "diverged, failed"]]
    for its in by_point(lines).values():
        ended = [line for line in its if not line.failed]
        seconds = tables.times_text(*tables.seconds_of([line.reached(target) for line in ended])) if ended else "-"
        evaluated = [line for line in ended if line.curve or line.diverged]
        rows.append(
            [
                its[0].title,
                str(len(its)),
                tables.values_text([line.samples_per_s for line in ended if line.has_model], ".1f"),
                tables.values_text([line.final for line in evaluated], form),
                tables.values_text([line.best for line in evaluated], form),
                *([seconds] if to_target else []),
                f"{sum(line.diverged for line in its)}, {sum(bool(line.failed) for line in its)}",
            ]
        )
    return rows


def notes(lines: Sequence[SweepLine], target: float | None) -> str:
    """A sentence on the intervals, on how late times are, on evaluations in the workers, and on the program."""
    sentences = [
        tables.intervals([*map(len, by_point(lines).values())]),
        "A run that diverged counts as worse than all others, one that failed does not count",
        *tables.grid_line([line.reached(target) for line in lines]),
        *(f"{line.title}, seed {line.seed}: {line.evaluator}" for line in lines if line.evaluator),
        f"Made by {', '.join(programs(lines))}",
    ]
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def as_csv(lines: Sequence[SweepLine], target: float | None) -> str:
    """A row a run."""
    flags = [*dict.fromkeys(flag for line in lines for flag in line.values)]
    final, best = (f"{which}_{metric_in(lines).name}" for which in ("final", "best"))
    columns = ["point", "mode", *flags, "seed", "outcome", "samples_per_s", "seconds", final, best]
    file = io.StringIO()
    rows = csv.DictWriter(file, [*columns, "seconds_to_target", "least_seconds_to_target"], lineterminator="\n")
    rows.writeheader()
    for line in lines:
        row: dict[str, Any] = {"point": line.point, "mode": line.entry, **line.values, "seed": line.seed}
        row["outcome"] = "failed" if line.failed else "diverged" if line.diverged else "ended"
        row |= {"samples_per_s": line.samples_per_s, "seconds": line.seconds}
        if line.has_model and line.curve:
            row |= {final: line.final, best: line.best}
        if (its := line.reached(target)).is_at_target:
            row |= {"seconds_to_target": its.by_s, "least_seconds_to_target": its.low_s}
        rows.writerow(row)
    return file.getvalue()


def curves(lines: Sequence[SweepLine]) -> dict[Mode, list[Curve]]:
    """The curves of each point in a look of its own, of at most MOST_CURVES points: those with the best median."""
    there = by_point([line for line in lines if line.has_model and line.curve])
    medians = {name: statistics.median([line.final for line in its]).value for name, its in there.items()}
    drawn = sorted(medians, key=medians.__getitem__, reverse=metric_in(lines).more_is_better)[:MOST_CURVES]
    firsts = [its[0] for name, its in there.items() if name in drawn]
    modes = [line.entry for line in firsts]
    looks = [ENTRIES[mode].look for mode in (modes if len({*modes}) == len(modes) else ENTRIES)]
    found: dict[Mode, list[Curve]] = {}
    for look, first in zip(looks, firsts, strict=False):
        entry = replace(ENTRIES[first.entry], name=first.point, title=first.title, look=look)
        found[Mode(entry, IID)] = [line.curve for line in there[first.point]]
    return found


def write(folder: Path, lines: Sequence[SweepLine], target: float | None, say: Callable[[str], None]) -> None:
    """Writes the table as Markdown and the runs as CSV, draws the figure, and prints the table."""
    rows, drawn, points = table(lines, target), curves(lines), by_point(lines)
    more = f", the best {len(drawn)} of {len(points)} points" * (len(drawn) == MOST_CURVES < len(points))
    say("\n" + "\n".join([*tables.aligned(rows), notes(lines, target)]) + "\n")
    times = {mode.title: [line.reached(target) for line in points[mode.algorithm.name]] for mode in drawn}
    note = tables.wide_times(times)
    with style():
        title = f"{', '.join(dict.fromkeys(line.network for line in lines))}{more}"
        draw = partial(draw_curves, title=title, standalone=None, note=note, metric=metric_in(lines), target=target)
        save_figures([(NAME, drawn, draw)], folder, say)
    page = "\n\n".join([f"# {folder.name}", tables.markdown(rows), notes(lines, target)])
    figure = f"\n\n![{title}]({NAME}.png)" if drawn else ""
    for suffix, content in ((".md", f"{page}{figure}\n"), (".csv", as_csv(lines, target))):
        write_atomically(folder / f"{NAME}{suffix}", content.encode())
        say(str(folder / f"{NAME}{suffix}"))
