"""The numbers of a row of the published experiments, from what its run has logged."""

from typing import Any

from experiments.reproduction.reproduction import Row
from report import metrics
from scripts.run_process import curve_of


def measured(row: Row, about: dict[str, Any], devices: metrics.Devices) -> dict[str, Any]:
    """Fields of the row."""
    workers = list(devices.values())
    seconds = metrics.duration(workers)
    pushed = sum(sum(worker.bytes_pushed_list or ()) for worker in workers)
    return {
        "seconds": round(seconds, 3),
        "samples_per_s": round(metrics.throughput(workers), 2),
        "traffic": round(pushed / 1e6 / seconds, 3),
        "rounds": min(len(worker.elapsed_time_list) for worker in workers),
        "computing": [round(metrics.computing_ratio(worker) or 0.0, 4) for worker in workers],
        "curve": curve_of(devices),
    }
