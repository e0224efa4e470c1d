"""The drill of a hosts file that gets one more worker: scripts/cluster.sh, all on this machine, without ssh.

The workers' logs are in the project's logs/, as on every host.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from algorithms import folder_name
from experiments.fault_drill.drilled_job import ROOT, WORKERS, Job
from experiments.fault_drill.drilled_logs import END_S, LONGEST_S, Logs
from experiments.fault_drill.faults import NAMES
from scripts.launch.roles import HOST

HOST_NAME = "fault-drill"  # in the log tree
NEW, NEW_STEP_S = "worker3", "0.06"


class HostsJob(Job):
    """A job whose launcher has a hosts file."""

    place = f"{HOST_NAME}/cpu{{number}}"  # of Logs

    def plan(self, mode: str, log_base: Path) -> tuple[list[str], Logs]:
        log_base.mkdir(parents=True)
        self._file = log_base / "hosts.csv"
        self.names(WORKERS.split(","))
        folder = ROOT / "logs" / "lenet" / folder_name(mode, split_by_class=False)
        for old in folder.glob(f"{HOST_NAME}*"):
            shutil.rmtree(old)
        options = ["scripts.launch.cluster", "--hosts", str(self._file), "--log-base", str(log_base)]
        return options, Logs(folder / HOST_NAME, folder, self.place)

    def row(self, number: int, step_s: str) -> str:
        return f"{HOST},{HOST_NAME},1,cpu,{step_s}"

    def names(self, step_times_s: Sequence[str]) -> None:
        rows = [self.row(number, step_s) for number, step_s in enumerate(step_times_s)]
        self._file.write_text("\n".join(["address,name,workers,devices,step_time_s", *rows]) + "\n")


def drill(way: str, mode: str, seconds: float, folder: Path) -> dict[str, Any]:
    """One job that a worker joins while all train.

    Args:
        folder: of the launcher's files.

    Returns:
        A row of the drill. again_s: the longest pause of the others between two rounds; back_s: seconds from the signal
        until the new worker has done two rounds.
    """
    row: dict[str, Any] = {}
    with HostsJob(way, mode, seconds, folder) as job:
        if job.wait_for(job.logs.have_begun, LONGEST_S):
            began = time.time()
            job.names([*WORKERS.split(","), NEW_STEP_S])
            job.signal(signal.SIGUSR1)
            row["back_s"] = job.train_again([NEW], began)
            job.train_again(NAMES, time.time())
            row["again_s"] = max(job.logs.pause_s(name, began) for name in NAMES)
        row["exit_code"] = job.end(seconds + END_S)
    return row | job.logs.left() | {"said": job.notices()}
