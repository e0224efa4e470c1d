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
from report import statistics
from report.figure_set import save_figures
from report.figures import draw_curves_of_runs
from report.metrics import IID, Curve, Mode
from report.run_tables import intervals, times_text, values_text
from report.style import style
from report.tables import aligned, markdown, target_text
from scripts.run_lines import Run, programs
from trainer.metric import ACCURACY, Metric, metric_of
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

    def seconds_to(self, target: float) -> float:
        """Infinite where it did not reach the target."""
        return statistics.time_to_target(self.curve, target, self.measures) if self.has_model else math.inf


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
    to_target = [] if target is None else [f"s to {target_text(target, metric)}"]
    rows = [["", "runs", "samples/s", f"final {metric.name}", f"best {metric.name}", *to_target, "diverged, failed"]]
    for its in by_point(lines).values():
        ended = [line for line in its if not line.failed]
        evaluated = [line for line in ended if line.curve or line.diverged]
        rows.append(
            [
                its[0].title,
                str(len(its)),
                values_text([line.samples_per_s for line in ended if line.has_model], ".1f"),
                values_text([line.final for line in evaluated], form),
                values_text([line.best for line in evaluated], form),
                *(
                    []
                    if target is None
                    else [times_text([line.seconds_to(target) for line in ended]) if ended else "-"]
                ),
                f"{sum(line.diverged for line in its)}, {sum(bool(line.failed) for line in its)}",
            ]
        )
    return rows


def notes(lines: Sequence[SweepLine]) -> str:
    """A sentence on the intervals, and one on the program."""
    shown = intervals([*map(len, by_point(lines).values())])
    return (
        f"{shown}. A run that diverged counts as worse than all others, one that failed does not count. "
        f"Made by {', '.join(programs(lines))}."
    )


def as_csv(lines: Sequence[SweepLine], target: float | None) -> str:
    """A row a run."""
    flags = [*dict.fromkeys(flag for line in lines for flag in line.values)]
    with io.StringIO() as file:
        rows = csv.writer(file, lineterminator="\n")
        name = metric_in(lines).name
        measured = ["samples_per_s", "seconds", f"final_{name}", f"best_{name}", "seconds_to_target"]
        rows.writerow(["point", "mode", *flags, "seed", "outcome", *measured])
        for line in lines:
            has_curve = line.has_model and line.curve
            reached_s = math.inf if target is None else line.seconds_to(target)
            rows.writerow(
                [
                    *(line.point, line.entry, *(line.values.get(flag, "") for flag in flags), line.seed),
                    "failed" if line.failed else "diverged" if line.diverged else "ended",
                    *(line.samples_per_s, line.seconds),
                    *((line.final, line.best) if has_curve else ("", "")),
                    reached_s if math.isfinite(reached_s) else "",
                ]
            )
        return file.getvalue()


def curves(lines: Sequence[SweepLine]) -> dict[Mode, list[Curve]]:
    """The curves of each point in a look of its own, of at most MOST_CURVES points: those with the best median."""
    of_points = {name: [line for line in its if line.has_model and line.curve] for name, its in by_point(lines).items()}
    there = {name: its for name, its in of_points.items() if its}
    medians = {name: statistics.median([line.final for line in its]).value for name, its in there.items()}
    drawn = sorted(medians, key=lambda name: medians[name], reverse=metric_in(lines).more_is_better)[:MOST_CURVES]
    modes = [its[0].entry for name, its in there.items() if name in drawn]
    looks = [entry.look for entry in ENTRIES.values()]
    if len({*modes}) == len(modes):
        looks = [ENTRIES[mode].look for mode in modes]
    found: dict[Mode, list[Curve]] = {}
    for look, name in zip(looks, (name for name in there if name in drawn), strict=False):
        first = there[name][0]
        entry = replace(ENTRIES[first.entry], name=name, title=first.title, own_look=look)
        found[Mode(entry, IID)] = [line.curve for line in there[name]]
    return found


def write(folder: Path, lines: Sequence[SweepLine], target: float | None, say: Callable[[str], None]) -> None:
    """Writes the table as Markdown and the runs as CSV, draws the figure, and prints the table."""
    rows, drawn = table(lines, target), curves(lines)
    more = f", the best {len(drawn)} of {len(by_point(lines))} points" * (
        len(drawn) == MOST_CURVES < len(by_point(lines))
    )
    say("\n" + "\n".join([*aligned(rows), notes(lines)]) + "\n")
    with style():
        title = f"{', '.join(dict.fromkeys(line.network for line in lines))}{more}"
        draw = partial(draw_curves_of_runs, title=title, standalone=None, metric=metric_in(lines), target=target)
        save_figures([(NAME, drawn, draw)], folder, say)
    page = [f"# {folder.name}", markdown(rows), notes(lines), *([f"![{title}]({NAME}.png)"] if drawn else [])]
    for suffix, content in ((".md", "\n\n".join(page) + "\n"), (".csv", as_csv(lines, target))):
        write_atomically(folder / f"{NAME}{suffix}", content.encode())
        say(str(folder / f"{NAME}{suffix}"))
