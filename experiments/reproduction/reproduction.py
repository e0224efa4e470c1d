"""The published experiments again: one raw line a run (scripts/reproduce.sh writes them), and the tables that set them
beside the published numbers. Pure functions."""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from config import LEARNING_RATES
from experiments import markdown
from experiments.reproduction import published
from experiments.reproduction.published import FINAL_MINUTES, TARGET
from experiments.study.comparison import SPLIT_WORDS
from report import metrics
from report.metrics import Curve, reached
from report.tables import span, target_text
from scripts import run_lines
from scripts.run_lines import IID, SPLITS, programs
from scripts.run_process import curve_of
from trainer.run_logs.rounds import is_quantity

MAKER = "scripts/reproduce.sh"
OF_SEVERAL = (
    "Of several seeds: median (least to greatest); `-` is a target that was not reached, and counts as infinity."
)
ESYNC = "ESync"  # by this project's rule, where a table has no other name for it
NUM_GPUS = 4  # the first workers of the preprint's cluster
PARTS = "cluster", "training", "networks", "heterogeneity", "sync-switch", "wbsp", "headlines"
CLUSTER, TRAINING, NETWORKS, HETEROGENEITY, SWITCH, WBSP, HEADLINES = PARTS


@dataclass(frozen=True, kw_only=True)
class Row(run_lines.Run):
    """One run of a published experiment.

    Attributes:
        part: of PARTS.
        name: in the table of the part.
        case: which of several of that name: a network (and its cluster, where that is not the preprint's), a
            heterogeneity, a share of BSP, a cluster; empty for a single one.
        traffic: MB/s that all workers sent: one way, as the published numbers seem to be.
        rounds: of the worker with the fewest.
        computing: computing time ratio of each worker, by rank.
        curve: [seconds, test accuracy].
    """

    part: str
    name: str
    case: str = ""
    traffic: float = 0.0
    rounds: int = 0
    computing: Sequence[float] = ()
    curve: Curve = ()

    def __post_init__(self) -> None:
        if self.part not in PARTS:
            raise ValueError(f"part is {self.part!r}; it should be one of {', '.join(PARTS)}")
        if self.split not in SPLITS:
            raise ValueError(f"split is {self.split!r}; it should be {' or '.join(SPLITS)}")
        if not all(len(point) == 2 and all(map(is_quantity, point)) for point in self.curve):
            raise ValueError("curve is no list of [seconds, accuracy]")

    @property
    def key(self) -> tuple[Any, ...]:
        return (*self.experiment, self.seed)

    @property
    def experiment(self) -> tuple[Any, ...]:
        """The same for runs with other seeds."""
        return (self.part, self.name, self.case, self.network, self.split)

    @property
    def step_size(self) -> str:
        """That of the command; empty where it has none."""
        return run_lines.value_in(self.command, *LEARNING_RATES)

    def seconds_to(self, target: float = TARGET) -> float | None:
        """None where it was not reached."""
        its = reached(self.curve, target)
        return its.by_s if self.has_model and its.is_at_target else None

    @property
    def best(self) -> float | None:
        """The greatest accuracy."""
        return max(accuracy for _, accuracy in self.curve) if self.curve else None

    @property
    def last(self) -> float | None:
        """The last accuracy; None where it diverged."""
        return self.curve[-1][1] if self.curve and not self.diverged else None


def read(folder: Path) -> list[Row]:
    """All runs of a folder. Raises SetupError if they cannot be read."""
    return run_lines.read(folder, Row, MAKER)


def measured(row: Row, about: dict[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """Fields of a row, from what its run has logged."""
    workers = list(devices.values())
    seconds = metrics.duration(workers)
    pushed = sum(sum(worker.column("bytes_pushed") or ()) for worker in workers)
    return {
        "seconds": round(seconds, 3),
        "samples_per_s": round(metrics.throughput(workers), 2),
        "traffic": round(pushed / 1e6 / seconds, 3),
        "rounds": min(len(worker.rounds) for worker in workers),
        "computing": [round(metrics.computing_ratio(worker) or 0.0, 4) for worker in workers],
        "curve": curve_of(devices),
    }


# ----------------------------------------------------------------------------------------------------- the tables


def tables(rows: Sequence[Row]) -> str:
    """All tables that have runs, as Markdown, and the versions of the program that made the runs."""
    parts = []
    for part, (title, table) in TABLES.items():
        cells = table([row for row in rows if row.part == part and not row.failed])
        if len(cells) > 1:  # more than its head
            parts += [f"**{title}**", markdown.table(cells)]
    lost = [f"{row.part}, {row.name} {row.case}: {row.failed}" for row in rows if row.failed]
    made = f"Runs: {len(rows)}, made by {', '.join(programs(rows))}; seed {span({row.seed for row in rows}, 'd')}."
    if any(len(runs) > 1 for runs in by_experiment(rows)):
        made += f" {OF_SEVERAL}"
    return "\n\n".join([*parts, "\n".join([made, *(f"FAILED: {each}." for each in lost)])])


def by_experiment(rows: Iterable[Row]) -> list[list[Row]]:
    """The runs of each experiment, by seed."""
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(row.experiment, []).append(row)
    return [sorted(runs, key=lambda row: row.seed) for runs in found.values()]


def of_runs(values: Iterable[float | None], form: str, missing: float = math.inf) -> str:
    """One value, or of several that differ `median (least to greatest)`.

    Args:
        missing: the value of None, shown as `-`: infinity for a target that was not reached.
    """
    numbers = sorted(missing if value is None else value for value in values)
    if not numbers:
        return "-"
    middle, *ends = (
        "-" if math.isinf(value) else format(value, form)
        for value in (statistics.median(numbers), numbers[0], numbers[-1])
    )
    return middle if {middle} == {*ends} else f"{middle} ({' to '.join(ends)})"


def beside(here: Sequence[float | None], other: float | None, form: str = ".0f") -> list[str]:
    """Three cells: published, here (a value of each run), their median over the published; empty without one."""
    middle = statistics.median([math.inf if value is None else value for value in here] or [math.inf])
    both = other is not None and not math.isinf(middle)
    return [
        "" if other is None else f"{other:g}",
        of_runs(here, form),
        f"{middle / other:.2f}" if both else "",  # type: ignore[operator]
    ]


def _cluster(rows: Sequence[Row]) -> list[list[str]]:
    head = ["", "samples/s: published", "here", "ratio", "MB/s: published", "here", "ratio"]
    head += ["GPUs compute: published", "here", "CPUs compute: published", "here"]
    table = [head]
    for row in rows:
        its = published.RESNET18.get(row.entry)
        sides = row.computing[:NUM_GPUS], row.computing[NUM_GPUS:]
        fast, slow = (span(side, ".2f") if side else "" for side in sides)
        paces = [*beside([row.samples_per_s], its and its.samples_per_s), *beside([row.traffic], its and its.traffic)]
        computing = [its.computing_fast if its else "", fast, its.computing_slow if its else "", slow]
        table.append([row.name, *paces, *computing])
    return table


def _training(rows: Sequence[Row]) -> list[list[str]]:
    goal = target_text(TARGET)
    sizes = dict.fromkeys(row.step_size for row in rows if row.step_size)
    table = [[f"step size {', '.join(sizes)}" if sizes else "", ""]]
    table[0] += [f"minutes to {goal}: published", "here", "ratio"]
    table[0] += [f"SSGD's time to {goal} / this: published", "here", "ratio"]
    table[0] += [f"accuracy after {FINAL_MINUTES} min: published", "here", "the best accuracy", "in min"]
    has_seeds = len({row.seed for row in rows}) > 1
    for runs in by_experiment(rows):
        row = runs[0]
        its = published.RESNET18.get(row.entry)
        iid = its if row.split == IID else None
        speed_up = published.RESNET18["sync"].minutes / iid.minutes if iid else None
        final = its and (its.accuracy if row.split == IID else its.accuracy_by_class)
        evaluated = [each for each in runs if each.curve]
        is_final = bool(evaluated) and all(each.curve[-1][0] >= 60 * FINAL_MINUTES - 60 for each in evaluated)
        table.append(
            [
                f"{row.name}, {row.network}{f', seed {span([each.seed for each in runs])}' if has_seeds else ''}",
                SPLIT_WORDS[row.split],
                *beside([minutes_to_target(each) for each in runs], iid and iid.minutes, ".1f"),
                *beside(_speed_ups(rows, runs), speed_up and round(speed_up, 1), ".1f"),
                f"{final:g}" if final and is_final else "",
                of_runs([each.last for each in runs], ".3f", -math.inf) if is_final else "",
                of_runs([each.best for each in runs], ".3f", -math.inf),
                span([each.curve[-1][0] / 60 for each in evaluated], ".1f") if evaluated else "-",
            ]
        )
    return table


def minutes_to_target(row: Row) -> float | None:
    """Minutes to the target; None where it was not reached."""
    seconds = row.seconds_to()
    return None if seconds is None else seconds / 60


def _speed_ups(rows: Sequence[Row], runs: Sequence[Row]) -> list[float | None]:
    """Each run's speed-up to the target over SSGD with the same seed; None where one of the two did not reach it."""
    baselines = {(row.case, row.split, row.seed): row for row in rows if row.entry == "sync"}
    found = []
    for run in runs:
        baseline = baselines.get((run.case, run.split, run.seed))
        times = (baseline and baseline.seconds_to(), run.seconds_to())
        found.append(times[0] / times[1] if times[0] and times[1] else None)
    return found


def _sooner_table(rows: Sequence[Row], what: str, of: Callable[[str], float | None]) -> list[list[str]]:
    """A row a case and kind of ESync, beside SSGD with the same seeds; `of` gives the published speed-up of a case."""
    goal = target_text(TARGET)
    table = [[what, f"SSGD's time to {goal} / ESync's: published", "here", "ratio", f"s to {goal}: ESync", "SSGD"]]
    table[0] += ["samples/s, ESync / SSGD"]
    for runs in by_experiment(row for row in rows if row.entry == "esync"):
        name, case, seeds = runs[0].name, runs[0].case, {row.seed for row in runs}
        baseline = [row for row in rows if row.entry == "sync" and row.case == case and row.seed in seeds]
        if not baseline:
            continue
        both = (runs, baseline)
        esync, ssgd = (statistics.median(row.samples_per_s for row in each) for each in both)
        table.append(
            [
                case if name == ESYNC else f"{case}, {name}",
                *beside(_speed_ups(rows, runs), of(case), ".1f"),
                *(of_runs([row.seconds_to() for row in each], ".0f") for each in both),
                f"{esync / ssgd:.1f}",
            ]
        )
    return table


def _switch(rows: Sequence[Row]) -> list[list[str]]:
    table = [["BSP, % of the steps", "time / that of BSP: published", "here", "ratio"]]
    table[0] += ["accuracy: published (standard deviation)", "here"]
    by_share = {int(runs[0].case): runs for runs in by_experiment(rows)}
    bsp_s = {row.seed: row.seconds for row in by_share.get(100, ())}
    for share, runs in sorted(by_share.items()):
        its = published.SYNC_SWITCH[share]
        shares = [row.seconds / bsp_s[row.seed] for row in runs if row.seed in bsp_s]
        table.append(
            [
                str(share),
                *beside(shares, round(its.time, 3), ".3f"),
                f"{its.accuracy:.3f} ({its.deviation:.3f})",
                of_runs([row.last for row in runs], ".3f", -math.inf),
            ]
        )
    return table


def _wbsp(rows: Sequence[Row]) -> list[list[str]]:
    goal = target_text(TARGET)
    table = [["", "", "computing ratio of the fast half: published", "here", "samples/s", f"s to {goal}"]]
    for runs in by_experiment(rows):
        row = runs[0]
        other = {"wbsp-pcc": published.WBSP_COMPUTING, "wbsp": ""}.get(row.entry, published.OTHERS_COMPUTING)
        fast = [ratio for each in runs for ratio in each.computing[: len(each.computing) // 2]]
        reached = of_runs([each.seconds_to() for each in runs], ".0f") if row.curve else ""
        pace = of_runs([each.samples_per_s for each in runs], ".0f")
        table.append([row.case, row.name, other, span(fast, ".2f"), pace, reached])
    return table


def _headlines(rows: Sequence[Row]) -> list[list[str]]:
    goal = target_text(TARGET)
    table = [["", "", "network", f"s to {goal}", "accuracy: the last", "the best", "samples", "s in all"]]
    for runs in by_experiment(rows):
        row, trained = runs[0], bool(runs[0].curve)
        table.append(
            [
                row.case,
                row.name,
                row.network,
                of_runs([each.seconds_to() for each in runs], ".0f") if trained else "",
                of_runs([each.last for each in runs], ".3f", -math.inf) if trained else "",
                of_runs([each.best for each in runs], ".3f", -math.inf) if trained else "",
                of_runs([each.samples_per_s * each.seconds for each in runs], ",.0f"),
                of_runs([each.seconds for each in runs], ".0f"),
            ]
        )
    return table


TABLES: Mapping[str, tuple[str, Callable[[Sequence[Row]], list[list[str]]]]] = {
    CLUSTER: ("The preprint's cluster with ResNet-18's 44.7 MB, times and bytes alone", _cluster),
    TRAINING: ("The preprint's cluster, trained", _training),
    NETWORKS: (
        "Other networks on the preprint's cluster, or on the one that is named",
        lambda rows: _sooner_table(rows, "network", lambda case: published.NETWORKS[case.split(", ")[0]].speed_up),
    ),
    HETEROGENEITY: (
        "Six fast and six slow workers, 1 Gbit/s, the slow ones 1.75 s a step",
        lambda rows: _sooner_table(rows, "slowest / fastest step", lambda n: published.JOURNAL_SPEED_UPS.get(int(n))),
    ),
    SWITCH: ("Sync-Switch: first BSP, then ASP, eight workers", _switch),
    WBSP: ("WBSP under its published heterogeneity: half of the workers sleep in every step", _wbsp),
    HEADLINES: ("Single figures of the papers", _headlines),
}
