"""The same jobs on real processes and in virtual time: how far apart are they?

    .venv/bin/python experiments/study/real_vs_virtual.py               # on a quiet machine; Ctrl-C, and again to go on
    .venv/bin/python experiments/study/real_vs_virtual.py --table           # of the runs that are done

LeNet-5 by scripts/local_cluster.sh and by simulate.py with the same flags, in turns, evaluated every second. With
--evaluator a process beside the real workers evaluates, and no worker waits for an evaluation, as in virtual time; with
`--network mlp` a step computes so little that the cores are never short (each needs its own FOLDER, as the costs
differ). A run is a line of FOLDER/runs.jsonl, and is not made again there, but for virtual ones of another version of
the program. All modes of the first cluster with the first seed come first, then the other clusters, then the other
seeds. The table goes to FOLDER/README.md too.

The costs of real processes beyond the cluster file are measured once for each cluster and mode, by a short job with its
own seed: the time of a step beyond its step time, of push and pull over loopback, of an evaluation. All grow with the
load of the machine's cores. The virtual cluster has these costs (overhead_s and latency_s of its cluster file,
--evaluation-time), without the machine's noise.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import dataclasses
import itertools
import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from algorithms import ENTRIES, OWNERS, Workers
from config import NO_NETWORK
from esync import measure
from experiments import markdown
from flag_parser import FlagParser
from flag_values import seeds
from report.metrics import reached
from scripts.launch.job_options import names
from scripts.run_lines import RUNS_FILE
from trainer import version
from trainer.run_logs.rounds import Round, read_rounds
from trainer.simulation import cluster_file
from utils import append_line, read_json, write_json

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ("nine-ways", "demo", "wbsp-h1", "sync-switch-1x10ms", "wbsp-h2")
MODES = tuple(name for name, entry in ENTRIES.items() if OWNERS[name].is_distributed and entry.workers is Workers.ALL)
TARGETS = (0.8, 0.7, 0.6, 0.5)  # the table has the first that all runs of a row reached
NEAR_SAMPLES, NEAR_TIME = 0.03, 0.1  # virtual over real, less 1: such rows agree
ROUNDING = 1e-9
TRIES = 3  # to find the time of one way
CALIBRATION_SEED, CALIBRATION_S = 99, 15
NO_TIME_S = 0.0001  # the least that --evaluation-time is given here
ROUND_TRIP_S = 0.001  # of a question to the state server over loopback
STEP = (measure.GET_BATCH, measure.FORWARD_BACKWARD, measure.LOCAL_UPDATE)  # stages, as those of an exchange
EXCHANGE = (measure.GLOBAL_AGGREGATE, measure.GLOBAL_UPDATE)
# Modes whose training thread waits for no exchange, which cannot be timed so: their stages hold its own work.
BESIDE = {"wbsp-pcc": "wbsp"}
# Sync-Switch is calibrated under ASP: an exchange under BSP is mostly a wait.
CALIBRATED_WITH = {"sync-switch": "-l 0.006 --switch-order 10 --train-steps 2 100000"}
# In the other modes only the slowest worker never waits for others.
NEVER_WAITS = (*(mode for mode in MODES if not OWNERS[mode].waits and mode not in BESIDE), *CALIBRATED_WITH)
# Chosen by hand for LeNet-5 on `nine-ways`: the better of two or three step sizes.
FLAGS = {
    "sync": "-l 0.003", "backup": "-l 0.003", "async": "-l 0.0015", "dcasgd": "-l 0.0015",
    "ssp": "-l 0.00075 --staleness 3", "local-sgd": "-ll 0.003 --sync-every 8", "esync": "-ll 0.003",
    "esync-outer": "-ll 0.003", "wbsp": "-ll 0.006", "wbsp-pcc": "-ll 0.006",
    "sync-switch": "-l 0.006 --switch-order 10 --train-steps 30 100000",
}  # fmt: skip
Rounds = list[Round]


@dataclasses.dataclass(frozen=True)
class Job:
    """A pair of runs: a real and a virtual one."""

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
        flags = own.get(self.mode, FLAGS.get(self.mode, ""))
        return [*flags.split(), "--max-seconds", f"{self.seconds:g}", "--eval-seconds", "1"]


JOB = tuple(field.name for field in dataclasses.fields(Job))
EARLIER = {"evaluator": 0, "network": "lenet"}  # of lines that do not say


def job_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The fields of a line's Job."""
    return tuple((EARLIER | row)[name] for name in JOB)


def jobs(given: argparse.Namespace) -> Iterator[Job]:
    """All pairs, in the order in which partial results say most."""
    every = itertools.product(given.seeds, given.clusters.split(","), given.modes)
    more = given.seconds, int(given.evaluator), given.network
    return (Job(cluster, mode, seed, *more) for seed, cluster, mode in every)


# --------------------------------------------------------------------------------------------------- the two kinds


def real(job: Job, folder: Path) -> dict[int, Rounds]:
    """The rounds of a real job, by worker."""
    own = ["-m", job.mode, "-n", job.network, "--cluster", job.cluster, "--log-base", str(folder / "real")]
    flags = [*job.flags, "--seed", str(job.seed), "--evaluator", str(job.evaluator)]
    return _run(["-m", "scripts.launch.local_cluster", *own, "--", *flags], folder / "real", job, job.network)


def virtual(job: Job, folder: Path, costs: dict[str, float], network: str) -> dict[int, Rounds]:
    """The rounds of the same job in virtual time; with the network `none` only their times."""
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
    return {rank: read_rounds(path, lambda text: None) for rank, path in enumerate(devices[:workers])}


def calibrate(of: Job, folder: Path) -> dict[str, float]:
    """Seconds of a real job's steps beyond the step time, of exchanges (each way) and of evaluations."""
    cluster, mode = of.cluster, of.mode
    path = folder / f"costs-{cluster}-{mode}.json"
    if path.exists():
        known: dict[str, float] = read_json(path)
        return known
    rows = cluster_file.read(cluster_file.find(cluster)).workers
    job = dataclasses.replace(of, seed=CALIBRATION_SEED, seconds=CALIBRATION_S)
    runs = real(job, folder / "calibration" / cluster)
    of_step = (*STEP, *EXCHANGE) if mode in BESIDE else STEP
    # The exchange of a worker that never waits for others is its own push and pull.
    of_speed = sorted(range(len(rows)), key=lambda rank: rows[rank].step_time_s)
    alone = of_speed[0] if mode in NEVER_WAITS else of_speed[-1]
    # A mean would contain the waits of single rounds for others, or for an evaluation.
    middle = statistics.fmean if mode in NEVER_WAITS else statistics.median
    over_s = [_mean_step(runs[rank], of_step) - row.step_time_s for rank, row in enumerate(rows)]
    steps = itertools.chain.from_iterable(map(_steps, runs.values()))
    paused_s = [step[measure.EVALUATION] for step in steps if measure.EVALUATION in step]
    exchange_s = middle(_exchanges(runs[alone]))
    found = {
        "overhead_s": max(0.0, statistics.median(over_s)),
        "way_s": calibrate(dataclasses.replace(of, mode=BESIDE[mode]), folder)["way_s"]
        if mode in BESIDE
        else exchange_s / 2,
        "evaluation_s": NO_TIME_S if of.evaluator else statistics.fmean(paused_s),
    }
    # How many ways an exchange has depends on the algorithm: it is to take as long as in the real run.
    for _ in range(0 if mode in BESIDE else TRIES):
        simulated = virtual(job, folder / "calibration" / cluster, found, NO_NETWORK)
        found["way_s"] *= exchange_s / middle(_exchanges(simulated[alone]))
    write_json(path, found)
    return found


def _steps(rounds: Rounds) -> Iterator[dict[str, float]]:
    return (times for each in rounds for times in each.steps.values())


def _mean_step(rounds: Rounds, stages: Sequence[str]) -> float:
    """Seconds of a local step: all that is not in other stages, also the writing of the log."""
    others = sum(seconds for step in _steps(rounds) for stage, seconds in step.items() if stage not in stages)
    return float((rounds[-1].elapsed_s - others) / sum(measure.FORWARD_BACKWARD in step for step in _steps(rounds)))


def _exchanges(rounds: Rounds) -> list[float]:
    """Seconds of each push and pull."""
    return [*filter(None, (sum(step.get(stage, 0.0) for stage in EXCHANGE) for step in _steps(rounds)))]


def sum_up(runs: dict[int, Rounds]) -> dict[str, Any]:
    """Rounds and samples a second of all workers, each by its own time, and the accuracies with their seconds. The last
    round, after which the model is evaluated once more and saved, is left out of the pace."""
    paces = [rounds[:-1] or rounds for rounds in runs.values()]
    return {
        "rounds_s": sum(len(rounds) / rounds[-1].elapsed_s for rounds in paces),
        "samples_s": sum(sum(each.samples for each in rounds) / rounds[-1].elapsed_s for rounds in paces),
        "accuracies": [
            [round(each.elapsed_s, 3), each.evaluation[1]]
            for rounds in runs.values()
            for each in rounds
            if each.evaluation
        ],
    }


# ------------------------------------------------------------------------------------------------------- the table


@dataclasses.dataclass(frozen=True)
class TableRow:
    """A cluster and mode: virtual over real, medians of the seeds that have both.

    Attributes:
        target: the highest of TARGETS that all runs reached, or None.
        spread: the least and the greatest real run's seconds to the target, over their median.
    """

    cluster: str
    mode: str
    seeds: int
    rounds: float
    samples: float
    target: float | None = None
    real_s: float = 0.0
    virtual_s: float = 0.0
    spread: tuple[float, float] = (1.0, 1.0)

    @property
    def time(self) -> float:
        """Ratio of the seconds to the target."""
        return self.virtual_s / self.real_s

    def cells(self) -> list[str]:
        """Those of its line in the table."""
        first = [self.cluster, self.mode, str(self.seeds), f"{self.rounds:.3f}", f"{self.samples:.3f}"]
        if self.target is None:
            return [*first, "none", "", "", "", ""]
        spread = f"{self.spread[0]:.2f} to {self.spread[1]:.2f}"
        times = [f"{self.target:.2f}", f"{self.real_s:.1f}", f"{self.virtual_s:.1f}", f"{self.time:.2f}"]
        return [*first, *times, spread]


def table_rows(lines: Sequence[dict[str, Any]]) -> list[TableRow]:
    """The rows of all runs; of runs of the same job and kind the last counts."""
    last = {(line["kind"], *job_of(line)): line for line in lines}
    by_row: dict[tuple[Any, ...], list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for (kind, *job), line in last.items():
        if kind == "real" and ("virtual", *job) in last:
            key = line["cluster"], line["mode"], line["seconds"]
            by_row.setdefault(key, []).append((line, last[("virtual", *job)]))
    return [_table_row(cluster, mode, pairs) for (cluster, mode, _), pairs in by_row.items()]


def _table_row(cluster: str, mode: str, pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> TableRow:
    rounds, samples = (
        statistics.median(there[key] / here[key] for here, there in pairs) for key in ("rounds_s", "samples_s")
    )
    row = TableRow(cluster, mode, len(pairs), rounds, samples)
    for target in TARGETS:
        real_s, virtual_s = (
            [reached(line["accuracies"], target).by_s for line in kind] for kind in zip(*pairs, strict=True)
        )
        if max(*real_s, *virtual_s) < math.inf:
            median_s = statistics.median(real_s)
            spread = min(real_s) / median_s, max(real_s) / median_s
            return dataclasses.replace(
                row, target=target, real_s=median_s, virtual_s=statistics.median(virtual_s), spread=spread
            )
    return row


def within(lines: Sequence[dict[str, Any]]) -> dict[str, tuple[int, int]]:
    """In how many rows, of how many, the samples are within 3 % (`samples`), and the time to the accuracy within 10 %
    or the real runs' spread (`time`); by the rounded numbers of the table."""
    rows = table_rows(lines)
    timed = [row for row in rows if row.target is not None]
    samples = [row for row in rows if abs(round(row.samples, 3) - 1) <= NEAR_SAMPLES + ROUNDING]
    time_to = [
        row
        for row in timed
        if abs(round(row.time, 2) - 1) <= NEAR_TIME + ROUNDING
        or round(row.spread[0], 2) <= round(row.time, 2) <= round(row.spread[1], 2)
    ]
    return {"samples": (len(samples), len(rows)), "time": (len(time_to), len(timed))}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """A line for each cluster and mode, and how many of them agree."""
    titles = ["cluster", "mode", "seeds", "rounds", "samples", "accuracy"]
    titles += ["s to it: real", "virtual", "ratio", "real runs' spread"]
    near = within(lines)
    said = (
        "Samples are within {:g} % in {} of {} rows, the time to the accuracy within {:g} % or the real runs' spread "
        "in {} of {}."
    ).format(100 * NEAR_SAMPLES, *near["samples"], 100 * NEAR_TIME, *near["time"])
    return f"{markdown.table([titles, *(row.cells() for row in table_rows(lines))])}\n\n{said}"


def read(folder: Path) -> list[dict[str, Any]]:
    """The runs of a folder, in the order in which they were made. Raises OSError if it has none."""
    return [json.loads(line) for line in (folder / RUNS_FILE).read_text().splitlines()]


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the missing runs and the table."""
    parser = FlagParser(doc=__doc__)
    parser.add_argument("--clusters", default=",".join(CLUSTERS))
    parser.add_argument("--modes", type=names(MODES), default=MODES)
    parser.add_argument("--seeds", type=seeds, default=(0, 1, 2))
    parser.add_argument("--seconds", type=float, default=60.0, help="of each run")
    parser.add_argument("--network", default="lenet")
    parser.add_argument("--evaluator", action="store_true", help="a process beside the real workers evaluates")
    parser.add_argument("--folder", type=Path, default=Path("logs/real-vs-virtual"))
    parser.add_argument("--table", action="store_true", help="only the table of the runs that are done")
    given = parser.parse_args(arguments)
    folder, program = given.folder.resolve(), version.files_hash()
    folder.mkdir(parents=True, exist_ok=True)
    rows = read(folder) if (folder / RUNS_FILE).exists() else []
    # Real runs take hours and change little with the program; virtual ones are made anew.
    done = {(*job_of(row), row["kind"]) for row in rows if row["kind"] == "real" or row["program"] == program}
    for job, kind in ((job, kind) for job in jobs(given) for kind in ("real", "virtual")):
        if given.table or (*dataclasses.astuple(job), kind) in done:
            continue
        costs = calibrate(job, folder)
        runs = real(job, folder) if kind == "real" else virtual(job, folder, costs, job.network)
        row = {"kind": kind, **dataclasses.asdict(job), **sum_up(runs), "costs": costs, "program": program}
        append_line(folder / RUNS_FILE, json.dumps(row))
        rows.append(row)
        print(json.dumps(row), flush=True)
    part = table(rows)
    print(part)
    markdown.write(folder / "README.md", part)


if __name__ == "__main__":
    start.run(main)
