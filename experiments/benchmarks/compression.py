"""Bytes, time and accuracy with compression where one of four workers is behind a slow link, in virtual time.

    .venv/bin/python experiments/benchmarks/compression.py results/compression/runs.json

LeNet-5 on scripts/clusters/slow-link.csv by simulate.py, for the virtual seconds of `JOBS`, with two seeds. Prints a
table of the means, and writes it into README.md beside OUTPUT. The same program, data and MXNet give the same bits.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import simulate
from experiments import markdown
from flag_parser import FlagParser
from trainer.run_logs.round_log import read_rounds
from utils import write_json

SEEDS = (0, 1)
EVALUATIONS = 3  # one alone is too noisy: their mean counts
LR = "0.003"


@dataclass(frozen=True)
class Job:
    """An algorithm.

    Attributes:
        rounds: after these seconds without compression, rounded down.
        every: rounds between two evaluations.
    """

    name: str
    flags: tuple[str, ...]
    seconds: int
    rounds: int
    every: int
    ways: tuple[tuple[str, ...], ...]  # values of --compression, the threshold behind


NONE, FP16 = ("none",), ("fp16",)
JOBS = (
    Job("SSGD", ("-m", "sync", "-l", LR), 60, 120, 10, (NONE, FP16, ("2bit", "1"))),
    Job("SSGD, ring", ("-m", "sync", "-l", LR, "--collective", "ring"), 60, 120, 10, (NONE, FP16)),
    Job("ESync", ("-m", "esync", "-ll", LR), 30, 50, 5, (NONE, FP16, ("2bit", "0.003"))),
)


def flags_of(job: Job, way: Sequence[str], seed: int) -> list[str]:
    """Those of simulate.py, without a place for the logs."""
    compression = ["--compression", way[0], *(("--compression-threshold", way[1]) if way[1:] else ())]
    limits = ["--max-seconds", str(job.seconds), "-e", str(job.every), "--seed", str(seed)]
    return [*job.flags, "--cluster", "slow-link", "-n", "lenet", *compression, *limits]


def measure(job: Job, way: Sequence[str], seed: int) -> dict[str, Any]:
    """One run: the numbers of the worker that evaluates."""
    from trainer.simulation import virtual_cluster  # needs MXNet; the table does not

    flags = flags_of(job, way, seed)
    with tempfile.TemporaryDirectory() as folder:
        _, (one,) = simulate.parse([*flags, "--log-base", folder, "--log-form", "files"])
        virtual_cluster.run(one.job)
        (evaluator,) = {path.parent for path in Path(folder).rglob("final.json")}
        records = list(read_rounds(evaluator, print))
    last = records[-1]
    accuracies = [(record["num_iters"], record["accuracy"]) for record in records if "accuracy" in record]
    after_rounds = [accuracy for number, accuracy in accuracies if number <= job.rounds]
    return {
        "job": job.name,
        "compression": " ".join(way),
        "seed": seed,
        "command": " ".join(["simulate.py", *flags]),
        "rounds": len(records),
        "seconds": last["total_time"],
        "bytes_pushed": last["bytes_pushed"],
        "bytes_pulled": last["bytes_pulled"],
        "accuracies_after_equal_rounds": after_rounds[-EVALUATIONS:],
        "accuracies_after_equal_seconds": [accuracy for _, accuracy in accuracies[-EVALUATIONS:]],
    }


def table(runs: Sequence[dict[str, Any]]) -> list[str]:
    """A row a job and way: means over the seeds."""
    rows = [
        "| | `--compression` | kB pushed, pulled | ms a round | rounds | accuracy after as many rounds | at the end |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for job in JOBS:
        for way in job.ways:
            mine = [run for run in runs if (run["job"], run["compression"]) == (job.name, " ".join(way))]

            def mean(key: str, mine: Sequence[dict[str, Any]] = mine) -> float:
                return float(np.mean([run[key] for run in mine]))

            cells = [
                f"{job.name}, {job.seconds} s",
                ", threshold ".join(way),
                f"{mean('bytes_pushed') / 1e3:.0f}, {mean('bytes_pulled') / 1e3:.0f}",
                f"{1e3 * mean('seconds') / mean('rounds'):.0f}",
                f"{mean('rounds'):.0f}",
                f"{mean('accuracies_after_equal_rounds'):.3f} ({job.rounds})",
                f"{mean('accuracies_after_equal_seconds'):.3f}",
            ]
            rows.append(f"| {' | '.join(cells)} |")
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Makes the missing runs, and the table."""
    parser = FlagParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path, help="JSON of all runs; only missing ones are made")
    output = parser.parse_args(arguments).output
    runs: list[dict[str, Any]] = json.loads(output.read_text()) if output.exists() else []
    done = {run["command"] for run in runs}
    for job in JOBS:
        for way in job.ways:
            for seed in SEEDS:
                if " ".join(["simulate.py", *flags_of(job, way, seed)]) not in done:
                    runs.append(measure(job, way, seed))
                    write_json(output, runs)
    part = "\n".join(table(runs))
    print(part)
    markdown.write(output.parent / "README.md", part)


if __name__ == "__main__":
    start.run(main)
