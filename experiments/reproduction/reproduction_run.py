"""What a run of the published experiments leaves in the results (experiments/reproduction/reproduce.py)."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.reproduction.reproduction import Row
from experiments.simulated import Ended, was_stopped
from report import metrics
from trainer import version
from utils import SetupError


def result(row: Row, ended: Ended) -> Row | None:
    """The row with what a run has left behind; None where a signal has ended it."""
    row = dataclasses.replace(
        row,
        diverged=ended.diverged,
        failed=ended.failed,
        commit=version.commit(),
        program=version.files_hash(),
    )
    try:
        about, devices = ended.read()
    except SetupError as error:
        return row if row.diverged or row.failed else dataclasses.replace(row, failed=str(error))
    if was_stopped(about):
        return None
    return dataclasses.replace(row, **measured(about, devices))


def measured(about: dict[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """The numbers of a row, from what its run has logged."""
    workers = list(devices.values())
    evaluator = metrics.evaluating_device(devices, lambda text: None)
    seconds = metrics.duration(workers)
    pushed = sum(sum(worker.bytes_pushed_list or ()) for worker in workers)
    return {
        "seconds": round(seconds, 3),
        "samples_per_s": round(metrics.throughput(workers), 2),
        "traffic": round(pushed / 1e6 / seconds, 3),
        "rounds": min(len(worker.elapsed_time_list) for worker in workers),
        "computing": [round(metrics.computing_ratio(worker) or 0.0, 4) for worker in workers],
        "curve": [(round(s, 3), round(accuracy, 5)) for s, accuracy in (evaluator.curve if evaluator else ())],
        "ended": about.get("ended") or "",
    }
