"""Runs a cluster file without gradients (simulate.py -n none), and measures what its logs say."""

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from round_records import computing_seconds, read_rounds

import simulate
from trainer.simulation import virtual_cluster


class Measured(NamedTuple):
    """What a cluster did.

    Attributes:
        samples_per_s: of all workers.
        traffic: of all workers, MB/s, one way.
        computing: share of the time that each worker computed, by rank; steps that were given up do not count.
        steps: mean number of local steps in a round, by rank.
        rounds_per_s: of worker 0.
    """

    samples_per_s: float
    traffic: float
    computing: Sequence[float]
    steps: Sequence[float]
    rounds_per_s: float


def measure(cluster: str, flags: Sequence[str], step_s: float | None = None) -> Measured:
    """Simulates a job.

    Args:
        cluster: a cluster file, or one of scripts/clusters.
        flags: of simulate.py, with a limit.
        step_s: of all workers, in place of those in the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        _, (run,) = simulate.parse(["--cluster", cluster, "-n", "none", "--log-base", folder, *flags])
        job = run.job
        if step_s is not None:
            workers = tuple(dataclasses.replace(each, step_time_s=step_s) for each in job.cluster.workers)
            job = dataclasses.replace(job, cluster=dataclasses.replace(job.cluster, workers=workers))
        virtual_cluster.run(job)
        devices = [Path(job.config.log_dir) / f"cpu{rank}" for rank in range(len(job.cluster.workers))]
        runs = [list(read_rounds(device, lambda text: None)) for device in devices]
    ends = [rounds[-1]["total_time"] for rounds in runs]
    computing_s = [sum(map(computing_seconds, rounds)) for rounds in runs]
    samples, pushed = (sum(each[key] for rounds in runs for each in rounds) for key in ("num_samples", "bytes_pushed"))
    return Measured(
        samples / max(ends),
        pushed / max(ends) / 1e6,
        [spent / end for spent, end in zip(computing_s, ends, strict=True)],
        [sum(each["num_samples"] for each in rounds) / job.config.batch_size / len(rounds) for rounds in runs],
        len(runs[0]) / ends[0],
    )
