"""Recomputes the numbers of results/claims.toml from raw runs: one function a measure, by the form of the raw data.

Each takes the raw lines and its arguments; it returns the number as text and the lines that it was computed from.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import summary
from experiments.reproduction import published, reproduction
from experiments.reproduction.reproduction import Row
from experiments.study import comparison, real_slowness, real_vs_virtual
from experiments.study.comparison import REPORT, TUNING, Comparison, Workload
from experiments.study.comparison_tables import Fair
from report import metrics, statistics
from scripts.run_lines import IID
from utils import SetupError, read_json

RESULTS = Path(__file__).resolve().parents[2] / "results"
Lines = Sequence[Any]
FASTEST_K = "fastest-k"  # the best row on the fastest machines of a job


@dataclass(frozen=True)
class Number:
    """A number as text.

    Attributes:
        number: the median of `n` runs; `-` where less than half of them reached the target, or nothing was measured.
        interval: `LOW to HIGH`, or empty.
        reached: how many of the `n` runs reached the target; None where all did, or there is no target.
    """

    number: str = statistics.NOT_REACHED
    interval: str = ""
    n: int = 1
    reached: int | None = None

    @property
    def low(self) -> str:
        return self.interval.split(" to ")[0]

    @property
    def high(self) -> str:
        return self.interval.split(" to ")[-1]

    def __str__(self) -> str:
        if self.number == statistics.NOT_REACHED and self.reached is not None:
            return f"{self.reached} of {self.n}"
        parts = [self.number, f"({self.interval})" if self.interval else ""]
        return " ".join(filter(None, parts)) + (f", {self.reached} of {self.n}" if self.reached is not None else "")


@dataclass(frozen=True)
class Found:
    """A number recomputed, and the raw lines that it was computed from."""

    number: Number
    lines: Lines = ()


def _estimated(values: Sequence[float], lines: Lines, form: str = "") -> Found:
    """The median of runs, with its interval.

    Args:
        form: of all three numbers, such as ".1f"; empty: as many digits as the interval's width allows.

    Raises:
        SetupError: there are no values.
    """
    if not values:
        raise SetupError("it has no run")
    estimate, n = statistics.median(values), len(values)
    reached = sum(map(math.isfinite, values))
    texts = tuple(
        (format(each, form) if math.isfinite(each) else statistics.NOT_REACHED) if form else text
        for each, text in zip(estimate, statistics.texts(estimate), strict=True)
    )
    value, low, high = texts
    interval = f"{low} to {high}" if n > 1 and value != statistics.NOT_REACHED and len(set(texts)) > 1 else ""
    return Found(Number(value, interval, n, reached if reached < n else None), lines)


def _count(count: int, of: int | None = None, lines: Lines = ()) -> Found:
    return Found(Number(str(count), n=count if of is None else of), lines)


def _range(values: Sequence[float], n: int, lines: Lines = ()) -> Found:
    """The least and the greatest value."""
    return Found(Number(f"{min(values):.2f} to {max(values):.2f}", n=n), lines)


_compared: dict[int, Fair] = {}  # by the identity of the raw lines, which each holds


def _at(lines: Lines, job: str) -> tuple[Fair, Workload]:
    """A comparison, made once, since most numbers are of the same lines, and its job: `nine-ways iid` of the network
    that was run there first, or `nine-ways iid lenet`."""
    if id(lines) not in _compared:
        _compared[id(lines)] = Fair(Comparison(lines))
    fair = _compared[id(lines)]
    return fair, next(each for each in fair.its.workloads if job in (" ".join(each[:2]), " ".join(each)))


def _seconds(lines: Lines, row: str, job: str, target: float) -> Found:
    """Seconds to a target."""
    fair, workload = _at(lines, job)
    runs = fair.its.runs(REPORT, workload, row)
    return _estimated([line.seconds_to(target) for line in runs], runs)


def _held(lines: Lines, row: str, job: str) -> Found:
    """Seconds until the job's own target is held."""
    fair, workload = _at(lines, job)
    return _estimated(list(fair.seconds(workload, row).values()), fair.its.runs(REPORT, workload, row))


def _samples_held(lines: Lines, row: str, job: str) -> Found:
    """Thousands of samples until the job's own target is held."""
    fair, workload = _at(lines, job)
    runs, seconds = fair.its.runs(REPORT, workload, row), fair.counted(workload, row)
    return _estimated([line.samples_per_s * seconds[line.seed] / 1000 for line in runs], runs, ".0f")


def _gain(lines: Lines, row: str, over: str, job: str) -> Found:
    """How many times as soon a target is held as by another row, or by the best one on the fastest machines; a run that
    missed it counts as the limit."""
    fair, workload = _at(lines, job)
    other = (fair.fastest_k(workload) or "") if over == FASTEST_K else over
    value, low, high = statistics.texts(fair.gain(workload, row, other))
    runs = [line for name in (row, other) for line in fair.its.runs(REPORT, workload, name)]
    return Found(Number(value, f"{low} to {high}", len(runs) // 2), runs)


def _speed_of_all(lines: Lines, job: str) -> Found:
    """Sum of the machines' speeds over the greatest."""
    fair, workload = _at(lines, job)
    return Found(Number(f"{fair.its.speed_of_all(workload):.2f}"))


def _pace_beside(lines: Lines, other: str) -> Found:
    """Samples/s over those of the same runs in another folder: the least and the greatest median of an algorithm."""
    there = {line.key: line.samples_per_s for line in comparison.read(RESULTS / other)}
    ratios: dict[str, list[float]] = {}
    for line in lines:
        if line.key in there:
            ratios.setdefault(line.entry, []).append(line.samples_per_s / there[line.key])
    middles = [statistics.median(each).value for each in ratios.values()]
    return _range(middles, len(middles))


def _untried(lines: Lines) -> Found:
    """Of how many rows a chosen number has no lesser, or no greater, value that was tried, of how many rows."""
    fair = Fair(Comparison(lines))
    rows = [(job, entry) for job in fair.made.workloads_of(REPORT) for entry in fair.rows(job)]
    own = [row for row in rows if fair.made.runs(REPORT, *row)]
    return _count(sum(bool(fair.untried(fair.chosen(*row))) for row in own), len(own))


def _rows(lines: Sequence[Row], which: Mapping[str, Any]) -> list[Row]:
    return [row for row in lines if all(getattr(row, key) == value for key, value in which.items())]


def _measured(lines: Lines, value: str, form: str, **which: Any) -> Found:
    """A number of the published experiments' runs, of _VALUES."""
    runs = _rows(lines, which)
    values = [math.inf if (its := _VALUES[value](row)) is None else its for row in runs]
    return _estimated(values, runs, form)


_VALUES: Mapping[str, Callable[[Row], float | None]] = {
    "samples/s": lambda row: row.samples_per_s,
    "MB/s": lambda row: row.traffic,
    "minutes": reproduction.minutes_to_target,
    "last": lambda row: row.last,
    "best": lambda row: row.best,
    "seconds": lambda row: row.seconds,
    "samples": lambda row: row.samples_per_s * row.seconds,
}


def _both_sides(ratios: Sequence[float]) -> Found:
    """The least and the greatest of the preprint's GPUs; the same of its CPUs, which have the last ranks."""
    sides = ratios[: reproduction.NUM_GPUS], ratios[reproduction.NUM_GPUS :]
    texts = (list(dict.fromkeys(f"{each:.2f}" for each in (min(side), max(side)))) for side in sides)
    return Found(Number("; ".join(" to ".join(ends) for ends in texts)))


def _fast_half(lines: Lines, names: Sequence[str]) -> Found:
    """The least and the greatest computing time ratio of the fast half of WBSP's workers, over its three clusters."""
    runs = [row for row in lines if row.part == reproduction.WBSP and row.name in names]
    return _range([ratio for row in runs for ratio in row.computing[: len(row.computing) // 2]], len(runs), runs)


def _sooner(lines: Lines, name: str, part: str, case: str = "", target: float = published.TARGET) -> Found:
    """How many times as soon at an accuracy as SSGD, seed by seed."""
    which = {"part": part, "case": case, "split": IID}
    sides = [{row.seed: row for row in _rows(lines, which | {"name": each})} for each in ("SSGD", name)]
    seeds = [seed for seed in sides[0] if seed in sides[1]]
    ssgd, its = ([side[seed].seconds_to(target) or math.inf for seed in seeds] for side in sides)
    gain = statistics.times_as_fast(ssgd, its) if seeds else None
    if gain is None:
        raise SetupError(f"{name} {case}: neither it nor SSGD reached {target}")
    value, low, high = (f"{each:.1f}" for each in gain)
    runs = [side[seed] for side in sides for seed in seeds]
    return Found(Number(value, f"{low} to {high}" if len(runs) > 2 else "", len(runs) // 2), runs)


def _ratio(lines: Lines, value: str, form: str, over: str, by: str = "name", less: bool = False, **which: Any) -> Found:
    """A number of _VALUES over that of the rows whose field `by` is `over`, seed by seed; or by how many percent it is
    less."""
    sides = [_rows(lines, each) for each in (which, which | {by: over})]
    its, others = ({row.seed: _VALUES[value](row) or math.inf for row in side} for side in sides)
    both = [seed for seed in its if seed in others]
    runs = [row for side in sides for row in side if row.seed in both]
    ratios = [its[seed] / others[seed] for seed in both]
    return _estimated([100 * (1 - ratio) for ratio in ratios] if less else ratios, runs, form)


def _devices(folder: Path, network: str, mode: str) -> list[metrics.Device]:
    """The devices of a summary, by name."""
    devices = summary.read_summary(folder / network / mode / metrics.MODES[mode].file_name, lambda text: None)
    return [device for _, device in sorted(devices.items())]


def _real_fast_half(folder: Path, mode: str) -> Found:
    """The least and the greatest computing time ratio of the fast half of WBSP's workers on real processes."""
    ratios, clusters = [], sorted(folder.glob("h?"))
    for cluster in clusters:
        its = [metrics.computing_ratio(device) or 0.0 for device in _devices(cluster, "lenet", mode)]
        ratios += its[: len(its) // 2]
    return _range(ratios, len(clusters))


def _as_published(folder: Path, mode: str) -> Found:
    """Computing time ratios of the preprint's GPUs; of its CPUs, by the published definition."""
    devices = _devices(folder, "none", mode)  # cpu0, cpu1, ... by rank
    return _both_sides([metrics.published_computing_ratio(device) or 0.0 for device in devices])


def _over_padded(lines: Lines, row: str, what: str) -> Found:
    """A number of workers slow by a quota over that of padded ones, of each seed."""
    its, of = real_slowness.pairs(lines, row), real_slowness.NUMBERS[what]
    return _estimated([of(real) / of(padded) for padded, real in its], [line for pair in its for line in pair])


def _in_turns(folder: Path, network: str, way: str, over: str) -> Found:
    """Samples/s over those of another way in the same turn: the median, the least and the greatest."""
    speeds = read_json(folder / f"{network}.json")["samples_per_s"]
    low, *_, high = ratios = sorted(one / other for one, other in zip(speeds[way], speeds[over], strict=True))
    return Found(Number(f"{median(ratios):.2f}", f"{low:.2f} to {high:.2f}", len(ratios)))


def _core_time(folder: Path, network: str, samples: float, unit_s: float = 1) -> Found:
    """Seconds of a core, or units of so many, for some samples, by the median of the measured steps."""
    paces = read_json(folder / "step.json")["samples_per_s"][network]
    return Found(Number(f"{samples / median(paces) / unit_s:.2g}", n=len(paces)))


@dataclass(frozen=True)
class Form:
    """A form of raw data: how it is read, and what is computed from it."""

    read: Callable[[Path], Any]
    measures: Mapping[str, Callable[..., Found]]


FORMS = {
    "comparison": Form(
        comparison.read,
        {
            "seconds": _seconds,
            "seconds held": _held,
            "samples held": _samples_held,
            "gain": _gain,
            "speed of all": _speed_of_all,
            "pace beside": _pace_beside,
            "untried": _untried,
            "trials": lambda lines: _count(sum(line.phase == TUNING for line in lines)),
        },
    ),
    "reproduction": Form(
        reproduction.read, {"measured": _measured, "fast half": _fast_half, "sooner": _sooner, "ratio": _ratio}
    ),
    "summaries": Form(lambda folder: folder, {"fast half": _real_fast_half, "as published": _as_published}),
    "turns": Form(lambda folder: folder, {"in turns": _in_turns, "core time": _core_time}),
    # In how many pairs of a real and a virtual run, medians of the seeds, samples or times are near, of how many.
    "pairs": Form(real_vs_virtual.read, {"within": lambda rows, what: _count(*real_vs_virtual.within(rows)[what])}),
    "slowness": Form(real_slowness.read, {"over padded": _over_padded}),
    # The coverage of the interval of the median of `runs` runs, in percent.
    "none": Form(
        lambda folder: (),
        {"coverage": lambda _, runs: Found(Number(statistics.coverage(runs).removesuffix(" %"), n=runs))},
    ),
    # How many published figures have a verdict, of how many.
    "verdicts": Form(
        lambda folder: re.findall(r'\bverdict = "([^"]+)"', (folder / "claims.toml").read_text()),
        {"verdicts": lambda verdicts, of_kind: _count(verdicts.count(of_kind), len(verdicts))},
    ),
}
