"""One run of a study: what is to be run, and the line that it leaves in the results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from algorithms import OWNERS
from config import LEARNING_RATES, Config
from experiments.study.comparison import TUNING, RunLine, Workload
from report import metrics
from scripts.run_process import curve_of
from trainer.simulation import cluster_file

BATCH = Config().batch_size
MODEL_BYTES = {"paper": 44.7e6, "journal": 44.7e6}  # ResNet-18's, whose times these clusters have
REPORT_SEEDS_FROM = 100  # trials have the seeds 0, 1, ...
_TRAINING_SAMPLES = 60_000


@dataclass(frozen=True)
class Task:
    """One run to do."""

    phase: str
    workload: Workload
    entry: str
    trial: int
    seed: int
    step_size: float
    momentum: float | None = None  # None: the program's
    in_a_row: int = 1
    parameters: Mapping[str, float] = field(default_factory=dict)  # of the row's own, by name
    command: Sequence[str] = ()

    @property
    def rate(self) -> str:
        """The field of Config that is its step size."""
        return next(field for field in LEARNING_RATES if field in OWNERS[self.entry].all_flags)

    def line(self, **more: Any) -> RunLine:
        """The line of the results that it is to become."""
        names = ("phase", "entry", "trial", "seed", "momentum", "in_a_row", "parameters")
        same = {name: getattr(self, name) for name in names}
        return RunLine(**same, **self.workload._asdict(), step_sizes={self.rate: self.step_size}, **more)

    def __str__(self) -> str:
        which = f"trial {self.trial}" if self.phase == TUNING else f"seed {self.seed}"
        momentum = "" if self.momentum is None else f", momentum {self.momentum:g}"
        own = "".join(f", {name} {value:g}" for name, value in self.parameters.items())
        return (
            f"{self.phase} {' '.join(self.workload)} {self.entry}, {which}, step size {self.step_size:g}{momentum}{own}"
        )


def step_times_s(cluster: str) -> list[float]:
    """Seconds of a step of each worker with a batch of the usual size."""
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    return [row.shortest_step_s(BATCH) + row.overhead_s for row in rows]


def limit_of(cluster: str, epochs: float) -> float:
    """The seconds in which the fastest machine of a cluster alone sees all training samples so many times."""
    return float(f"{epochs * _TRAINING_SAMPLES / BATCH * min(step_times_s(cluster)):.4g}")


def measured(line: RunLine, about: dict[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """The numbers of a study's line, from what its run has logged."""
    curve, mb_per_s = curve_of(devices), metrics.traffic(devices.values())
    return {
        "validation": curve if line.phase == TUNING else [],
        "test": [] if line.phase == TUNING else curve,
        "seconds": round(metrics.duration(devices.values()), 3),
        "samples_per_s": round(metrics.throughput(devices.values()), 2),
        "final_accuracy": curve[-1][1] if curve else None,
        "workers": about["num_workers"],
        "mb_per_s": None if mb_per_s is None else round(mb_per_s, 4),
        "initial_weights": about.get("initial_weights_sha256", ""),
        "partition": about.get("partition_sha256", {}).get("all by rank", ""),
    }
