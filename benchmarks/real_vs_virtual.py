"""The same jobs on real processes and in virtual time: how far apart are they?

    .venv/bin/python benchmarks/real_vs_virtual.py --budget 3600     # on a quiet machine; again to go on
    .venv/bin/python benchmarks/real_vs_virtual.py --table           # what there is so far

LeNet-5 by scripts/local_cluster.sh and by simulate.py with the same flags, in turns, evaluated every second. A pair of
runs is a line of FOLDER/pairs.jsonl; what stands there is not done again. All modes of the first cluster with the first
seed come first, then the other clusters, then the other seeds.

What a step of a real process costs beyond the cluster file is measured once for each cluster, by a job of SSGD with a
seed of its own: the overshoot of a step, push and pull over loopback, an evaluation. The virtual cluster has these for
all modes (overhead_s and latency_s of its cluster file, --evaluation-time). The machine's noise it has not.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from algorithms import ENTRIES, OWNERS  # noqa: E402
from trainer import cluster_file  # noqa: E402
from utils import (  # noqa: E402
    EVALUATION,
    FORWARD_BACKWARD,
    GET_BATCH,
    GLOBAL_AGGREGATE,
    append_line,
    read_json,
    read_rounds,
    write_json,
)  # fmt: skip

CLUSTERS = ("nine-ways", "demo", "wbsp-h1", "sync-switch-1x10ms", "wbsp-h2")
MODES = tuple(name for name in ENTRIES if OWNERS[name].is_distributed)
TARGET = 0.8
CALIBRATION_SEED, CALIBRATION_S = 99, 20
# As in nine_ways.sh.
FLAGS = {
    "sync": "-l 0.003",
    "async": "-l 0.0015",
    "dcasgd": "-l 0.0015",
    "ssp": "-l 0.00075 --staleness 3",
    "local-sgd": "-ll 0.003 --sync-every 8",
    "esync": "-ll 0.003",
    "wbsp": "-ll 0.006",
    "wbsp-pcc": "-ll 0.006",
    "sync-switch": "-l 0.006 --switch-order 10 --train-steps 30 100000",
}
Rounds = list[dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Job:
    """What a pair of runs has in common."""

    cluster: str
    mode: str
    seed: int
    seconds: float

    @property
    def flags(self) -> list[str]:
        """Of main.py."""
        return [*FLAGS.get(self.mode, "").split(), "--max-seconds", f"{self.seconds:g}", "--eval-seconds", "1"]


def jobs(clusters: Sequence[str], modes: Sequence[str], seeds: Sequence[int], seconds: float) -> Iterator[Job]:
    """In the order in which partial results say most."""
    return (Job(cluster, mode, seed, seconds) for seed in seeds for cluster in clusters for mode in modes)


# --------------------------------------------------------------------------------------------------- the two kinds


def real(job: Job, folder: Path) -> dict[int, Rounds]:
    """The rounds of a real job, by worker."""
    own = ["-m", job.mode, "-n", "lenet", "--cluster", job.cluster, "--log-base", str(folder / "real")]
    return _run(["-m", "scripts.local_cluster", *own, "--", *job.flags, "--seed", str(job.seed)], folder / "real", job)


def virtual(job: Job, folder: Path, calibration: dict[str, Any]) -> dict[int, Rounds]:
    """The same in virtual time."""
    own = ["-m", job.mode, "-n", "lenet", "--cluster", calibration["file"], "--log-base", str(folder / "virtual")]
    own += ["--evaluation-time", str(calibration["evaluation_s"]), "--again", "--seed", str(job.seed)]
    return _run(["simulate.py", *own, *job.flags], folder / "virtual", job)


def _run(arguments: Sequence[str], base: Path, job: Job) -> dict[int, Rounds]:
    finished = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if finished.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {finished.returncode}:\n{finished.stdout[-2000:]}")
    devices = sorted((base / "lenet" / job.mode).glob("*/cpu*"), key=lambda path: int(path.name[3:]))
    workers = len(cluster_file.read(cluster_file.find(job.cluster)).workers)
    return {rank: list(read_rounds(path, lambda text: None)) for rank, path in enumerate(devices[:workers])}


def calibrate(cluster: str, folder: Path) -> dict[str, Any]:
    """What steps, transfers and evaluations of real processes cost beyond the cluster file."""
    path = folder / f"{cluster}.json"
    if path.exists():
        known: dict[str, Any] = read_json(path)
        return known
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    runs = real(Job(cluster, "sync", CALIBRATION_SEED, CALIBRATION_S), folder / "calibration")
    over_s = [
        _median(runs[rank], lambda times: times.get(GET_BATCH, 0.0) + times[FORWARD_BACKWARD]) - row.step_time_s
        for rank, row in enumerate(rows)
    ]
    # The slowest waits for nobody: its aggregation is its own push and pull.
    slowest = max(range(len(rows)), key=lambda rank: rows[rank].step_time_s)
    way_s = _median(runs[slowest], lambda times: times[GLOBAL_AGGREGATE]) / 2
    paused_s = [times[EVALUATION] for rounds in runs.values() for times in _steps(rounds) if EVALUATION in times]
    lines = ["step_time_s,overhead_s,latency_s,straggler_trace"]
    for row, over in zip(rows, over_s, strict=True):
        lines.append(f"{row.step_time_s},{max(0.0, over):.5f},{way_s:.5f},{row.straggler_trace or ''}")
    file = folder / f"{cluster}.csv"
    file.write_text("\n".join(lines) + "\n")
    found = {"file": str(file), "evaluation_s": statistics.median(paused_s), "overhead_s": over_s, "way_s": way_s}
    write_json(path, found)
    return found


def _steps(rounds: Rounds) -> Iterator[dict[str, float]]:
    return (times for each in rounds for times in each["time"].values())


def _median(rounds: Rounds, seconds: Callable[[dict[str, float]], float]) -> float:
    return statistics.median(seconds(times) for times in _steps(rounds) if FORWARD_BACKWARD in times)


def sum_up(runs: dict[int, Rounds]) -> dict[str, Any]:
    """Rounds and samples of all workers, each a second of its own time, and the seconds to the target."""
    reached = [each["total_time"] for rounds in runs.values() for each in rounds if each.get("accuracy", 0) >= TARGET]
    return {
        "rounds_s": sum(len(rounds) / rounds[-1]["total_time"] for rounds in runs.values()),
        "samples_s": sum(
            sum(each["num_samples"] for each in rounds) / rounds[-1]["total_time"] for rounds in runs.values()
        ),
        "to_target_s": min(reached, default=None),
    }


# ------------------------------------------------------------------------------------------------------- the table


def table(pairs: Sequence[dict[str, Any]]) -> None:
    """A line for each cluster and mode; ratios are virtual over real, the spread that of the real runs."""
    print("| cluster | mode | seeds | rounds | samples | s to 0.80: real | virtual | ratio | real runs' spread |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for cluster, mode in dict.fromkeys((pair["cluster"], pair["mode"]) for pair in pairs):
        here = [pair for pair in pairs if (pair["cluster"], pair["mode"]) == (cluster, mode)]
        cells = [f"{statistics.median(_ratios(here, key)):.3f}" for key in ("rounds_s", "samples_s")]
        times = [[pair[kind]["to_target_s"] for pair in here] for kind in ("real", "virtual")]
        medians = [None if None in each else statistics.median(each) for each in times]
        cells += ["not all" if median is None else f"{median:.1f}" for median in medians]
        real_s, virtual_s = medians
        cells.append(f"{virtual_s / real_s:.2f}" if real_s and virtual_s else "")
        cells.append(f"{min(times[0]) / real_s:.2f} to {max(times[0]) / real_s:.2f}" if real_s else "")
        print(f"| {cluster} | {mode} | {len(here)} | {' | '.join(cells)} |")


def _ratios(pairs: Sequence[dict[str, Any]], key: str) -> list[float]:
    return [pair["virtual"][key] / pair["real"][key] for pair in pairs]


def main() -> None:
    """Does what is not done yet, until the budget is spent, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no other pair is begun")
    parser.add_argument("--folder", type=Path, default=Path("logs/real-vs-virtual"))
    parser.add_argument("--table", action="store_true", help="only print what there is")
    given = parser.parse_args()
    folder, began = given.folder.resolve(), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pairs.jsonl"
    pairs = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {(pair["cluster"], pair["mode"], pair["seed"], pair["seconds"]) for pair in pairs}
    wanted = jobs(given.clusters.split(","), given.modes.split(","), [*map(int, given.seeds.split(","))], given.seconds)
    for job in wanted:
        if given.table or time.monotonic() - began > given.budget:
            break
        if dataclasses.astuple(job) in done:
            continue
        calibration = calibrate(job.cluster, folder)
        pair = {
            **dataclasses.asdict(job),
            "real": sum_up(real(job, folder)),
            "virtual": sum_up(virtual(job, folder, calibration)),
        }
        append_line(path, json.dumps(pair))
        pairs.append(pair)
        print(json.dumps(pair), flush=True)
    if pairs:
        table(pairs)


if __name__ == "__main__":
    main()
