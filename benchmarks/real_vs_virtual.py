"""The same jobs on real processes and in virtual time: how far apart are they?

    .venv/bin/python benchmarks/real_vs_virtual.py --budget 3600     # on a quiet machine; again to go on
    .venv/bin/python benchmarks/real_vs_virtual.py --table           # what there is so far

LeNet-5 by scripts/local_cluster.sh and by simulate.py with the same flags, in turns, evaluated every second. With
--evaluator a process beside the real workers evaluates, and no worker waits for an evaluation, as in virtual time; with
`--network mlp` a step computes so little that the cores are never short (each into another FOLDER, since the costs are
others). A run is a line of FOLDER/runs.jsonl; what stands there is not done again,
but a virtual one of another version of the program. All modes of the first cluster with the first seed come first, then
the other clusters, then the other seeds.

What the work of real processes costs beyond the cluster file is measured once for each cluster and mode, by a short
job with a seed of its own: what a step takes beyond its step time, push and pull over loopback, an evaluation. All of
these take longer the more the others keep the machine's cores busy. The virtual cluster has them (overhead_s and
latency_s of its cluster file, --evaluation-time). The machine's noise it has not.
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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from algorithms import ENTRIES, OWNERS, Workers  # noqa: E402
from config import NO_NETWORK  # noqa: E402
from trainer import cluster_file, version  # noqa: E402
from utils import (  # noqa: E402
    EVALUATION,
    FORWARD_BACKWARD,
    GET_BATCH,
    GLOBAL_AGGREGATE,
    GLOBAL_UPDATE,
    LOCAL_UPDATE,
    append_line,
    read_json,
    read_rounds,
    write_json,
)  # fmt: skip

CLUSTERS = ("nine-ways", "demo", "wbsp-h1", "sync-switch-1x10ms", "wbsp-h2")
MODES = tuple(name for name, entry in ENTRIES.items() if OWNERS[name].is_distributed and entry.workers is Workers.ALL)
TARGETS = (0.8, 0.7, 0.6, 0.5)  # the table has the first that all runs of a row have reached
TRIES = 3  # to find what a way takes
CALIBRATION_SEED, CALIBRATION_S = 99, 15
NO_TIME_S = 0.0001  # the least that --evaluation-time is given here
ROUND_TRIP_S = 0.001  # of a question to the state server over loopback: benchmarks/query_round_trip.py
STEP, EXCHANGE = (GET_BATCH, FORWARD_BACKWARD, LOCAL_UPDATE), (GLOBAL_AGGREGATE, GLOBAL_UPDATE)  # stages
# Here the training thread waits for no exchange, so that cannot be timed; what the stages hold is its own work.
BESIDE = {"wbsp-pcc": "wbsp"}
# To find what the work costs, Sync-Switch is under ASP nearly all the time: an exchange under BSP is mostly a wait.
CALIBRATED_WITH = {"sync-switch": "-l 0.006 --switch-order 10 --train-steps 2 100000"}
# Elsewhere the slowest alone waits for nobody.
NEVER_WAITS = (
    *(mode for mode in MODES if not OWNERS[mode].waits and mode not in BESIDE),
    *CALIBRATED_WITH,
)
# As in nine_ways.sh.
FLAGS = {
    "sync": "-l 0.003",
    "backup": "-l 0.003",
    "async": "-l 0.0015",
    "dcasgd": "-l 0.0015",
    "ssp": "-l 0.00075 --staleness 3",
    "local-sgd": "-ll 0.003 --sync-every 8",
    "esync": "-ll 0.003",
    "esync-outer": "-ll 0.003",
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
    evaluator: int  # 1: beside the workers
    network: str

    @property
    def flags(self) -> list[str]:
        """Of main.py."""
        own = CALIBRATED_WITH if self.seed == CALIBRATION_SEED else {}
        return [
            *own.get(self.mode, FLAGS.get(self.mode, "")).split(),
            "--max-seconds",
            f"{self.seconds:g}",
            "--eval-seconds",
            "1",
        ]


JOB = tuple(field.name for field in dataclasses.fields(Job))
EARLIER = {"evaluator": 0, "network": "lenet"}  # of lines that do not say


def job_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a line of the results is of."""
    return tuple((EARLIER | row)[name] for name in JOB)


def jobs(given: argparse.Namespace) -> Iterator[Job]:
    """In the order in which partial results say most."""
    clusters, modes, seeds = given.clusters.split(","), given.modes.split(","), [*map(int, given.seeds.split(","))]
    return (
        Job(cluster, mode, seed, given.seconds, int(given.evaluator), given.network)
        for seed in seeds
        for cluster in clusters
        for mode in modes
    )


# --------------------------------------------------------------------------------------------------- the two kinds


def real(job: Job, folder: Path) -> dict[int, Rounds]:
    """The rounds of a real job, by worker."""
    own = ["-m", job.mode, "-n", job.network, "--cluster", job.cluster, "--log-base", str(folder / "real")]
    flags = [*job.flags, "--seed", str(job.seed), "--evaluator", str(job.evaluator)]
    return _run(["-m", "scripts.local_cluster", *own, "--", *flags], folder / "real", job, job.network)


def virtual(job: Job, folder: Path, costs: dict[str, float], network: str) -> dict[int, Rounds]:
    """The same in virtual time, or its timing alone."""
    lines = ["step_time_s,overhead_s,latency_s,state_server_round_trip_s,straggler_trace"]
    for row in cluster_file.read(cluster_file.find(job.cluster)).workers:
        more = f"{costs['overhead_s']:.5f},{costs['way_s']:.5f},{ROUND_TRIP_S},{row.straggler_trace or ''}"
        lines.append(f"{row.step_time_s},{more}")
    file = folder / f"{job.cluster}-{job.mode}.csv"
    file.write_text("\n".join(lines) + "\n")
    own = ["-m", job.mode, "-n", network, "--cluster", str(file), "--log-base", str(folder / "virtual")]
    own += ["--evaluation-time", f"{costs['evaluation_s']:.4f}", "--again", "--seed", str(job.seed)]
    return _run(["simulate.py", *own, *job.flags], folder / "virtual", job, network)


def _run(arguments: Sequence[str], base: Path, job: Job, network: str) -> dict[int, Rounds]:
    finished = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if finished.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {finished.returncode}:\n{finished.stdout[-2000:]}")
    devices = sorted((base / network / job.mode).glob("*/cpu*"), key=lambda path: int(path.name[3:]))
    workers = len(cluster_file.read(cluster_file.find(job.cluster)).workers)
    return {rank: list(read_rounds(path, lambda text: None)) for rank, path in enumerate(devices[:workers])}


def calibrate(of: Job, folder: Path) -> dict[str, float]:
    """Seconds that the job's steps, exchanges (each way) and evaluations cost real processes on its cluster."""
    cluster, mode = of.cluster, of.mode
    path = folder / f"costs-{cluster}-{mode}.json"
    if path.exists():
        known: dict[str, float] = read_json(path)
        return known
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    job = dataclasses.replace(of, seed=CALIBRATION_SEED, seconds=CALIBRATION_S)
    runs = real(job, folder / "calibration" / cluster)
    of_step = (*STEP, *EXCHANGE) if mode in BESIDE else STEP
    # The exchange of a worker that waits for nobody is its own push and pull.
    of_speed = sorted(range(len(rows)), key=lambda rank: rows[rank].step_time_s)
    alone = of_speed[0] if mode in NEVER_WAITS else of_speed[-1]
    # Where some rounds wait for others or for an evaluation, a mean is no exchange's own.
    middle = statistics.fmean if mode in NEVER_WAITS else statistics.median
    over_s = [_mean_step(runs[rank], of_step) - row.step_time_s for rank, row in enumerate(rows)]
    paused_s = [step[EVALUATION] for rounds in runs.values() for step in _steps(rounds) if EVALUATION in step]
    exchange_s = middle(_exchanges(runs[alone]))
    found = {
        "overhead_s": max(0.0, statistics.median(over_s)),
        "way_s": calibrate(dataclasses.replace(of, mode=BESIDE[mode]), folder)["way_s"]
        if mode in BESIDE
        else exchange_s / 2,
        "evaluation_s": NO_TIME_S if of.evaluator else statistics.fmean(paused_s),
    }
    # How many ways an exchange has is a matter of the algorithm: it is to take as long as in the real run.
    for _ in range(0 if mode in BESIDE else TRIES):
        simulated = virtual(job, folder / "calibration" / cluster, found, NO_NETWORK)
        found["way_s"] *= exchange_s / middle(_exchanges(simulated[alone]))
    write_json(path, found)
    return found


def _steps(rounds: Rounds) -> Iterator[dict[str, float]]:
    return (times for each in rounds for times in each["time"].values())


def _mean_step(rounds: Rounds, stages: Sequence[str]) -> float:
    """Of all that is not in other stages, a local step: also what no stage counts, such as the writing of the log."""
    others = sum(seconds for step in _steps(rounds) for stage, seconds in step.items() if stage not in stages)
    return float((rounds[-1]["total_time"] - others) / sum(FORWARD_BACKWARD in step for step in _steps(rounds)))


def _exchanges(rounds: Rounds) -> list[float]:
    """Seconds of each push and pull."""
    return [*filter(None, (sum(step.get(stage, 0.0) for stage in EXCHANGE) for step in _steps(rounds)))]


def sum_up(runs: dict[int, Rounds]) -> dict[str, Any]:
    """Rounds and samples of all workers, each a second of its own time, and the accuracies with their seconds.

    The pace is that of all rounds but the last, behind which the model is evaluated once more and saved.
    """
    paces = [rounds[:-1] or rounds for rounds in runs.values()]
    return {
        "rounds_s": sum(len(rounds) / rounds[-1]["total_time"] for rounds in paces),
        "samples_s": sum(sum(each["num_samples"] for each in rounds) / rounds[-1]["total_time"] for rounds in paces),
        "accuracies": [
            [round(each["total_time"], 3), each["accuracy"]]
            for rounds in runs.values()
            for each in rounds
            if "accuracy" in each
        ],
    }


# ------------------------------------------------------------------------------------------------------- the table


def seconds_to(target: float, row: dict[str, Any]) -> float | None:
    """When a run reached an accuracy."""
    return min((seconds for seconds, accuracy in row["accuracies"] if accuracy >= target), default=None)


def table(rows: Sequence[dict[str, Any]]) -> None:
    """A line for each cluster and mode of which both kinds are there; ratios are virtual over real, the spread is that
    of the real runs. Of a run that was made several times the last counts."""
    last = {(row["kind"], *job_of(row)): row for row in rows}
    pairs = [
        (row, last[("virtual", *job)])
        for (kind, *job), row in last.items()
        if kind == "real" and ("virtual", *job) in last
    ]
    print(
        "| cluster | mode | seeds | rounds | samples | accuracy | s to it: real | virtual | ratio | real runs' spread |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for cluster, mode, seconds in dict.fromkeys((here["cluster"], here["mode"], here["seconds"]) for here, _ in pairs):
        same = [
            pair
            for pair in pairs
            if (pair[0]["cluster"], pair[0]["mode"], pair[0]["seconds"]) == (cluster, mode, seconds)
        ]
        cells = [
            f"{statistics.median(there[key] / here[key] for here, there in same):.3f}"
            for key in ("rounds_s", "samples_s")
        ]
        cells += _cells_of_target(same)
        print(f"| {cluster} | {mode} | {len(same)} | {' | '.join(cells)} |")


def _cells_of_target(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> list[str]:
    for target in TARGETS:
        here, there = ([seconds_to(target, row) for row in kind] for kind in zip(*pairs, strict=True))
        real_s, virtual_s = [s for s in here if s is not None], [s for s in there if s is not None]
        if len(real_s) == len(virtual_s) == len(pairs):
            median_s, ratio = statistics.median(real_s), statistics.median(virtual_s) / statistics.median(real_s)
            spread = f"{min(real_s) / median_s:.2f} to {max(real_s) / median_s:.2f}"
            return [f"{target:.2f}", f"{median_s:.1f}", f"{statistics.median(virtual_s):.1f}", f"{ratio:.2f}", spread]
    return ["none"] + [""] * 4


def main() -> None:
    """Does what is not done yet, until the budget is spent, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--network", default="lenet")
    parser.add_argument("--evaluator", action="store_true", help="a process beside the real workers evaluates")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no other run is begun")
    parser.add_argument(
        "--kinds", default="real,virtual", help="or costs alone: only virtual runs need no quiet machine"
    )
    parser.add_argument("--folder", type=Path, default=Path("logs/real-vs-virtual"))
    parser.add_argument("--table", action="store_true", help="only print what there is")
    given = parser.parse_args()
    folder, began, program = given.folder.resolve(), time.monotonic(), version.files_hash()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "runs.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    # Real runs take hours, and what they show changes little with the program; a virtual one is made anew.
    done = {(*job_of(row), row["kind"]) for row in rows if row["kind"] == "real" or row["program"] == program}
    for job, kind in ((job, kind) for job in jobs(given) for kind in given.kinds.split(",")):
        if given.table or time.monotonic() - began > given.budget:
            break
        if (*dataclasses.astuple(job), kind) in done:
            continue
        costs = calibrate(job, folder)
        if kind == "costs":
            continue
        runs = real(job, folder) if kind == "real" else virtual(job, folder, costs, job.network)
        row = {"kind": kind, **dataclasses.asdict(job), **sum_up(runs), "costs": costs, "program": program}
        append_line(path, json.dumps(row))
        rows.append(row)
        print(json.dumps(row), flush=True)
    table(rows)


if __name__ == "__main__":
    main()
