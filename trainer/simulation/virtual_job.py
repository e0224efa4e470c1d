"""A job of simulate.py, and whether it was done already. Imports no MXNet."""

import functools
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from algorithms import TransportKind
from config import HUB, Config
from trainer import straggler_trace, version
from trainer.jobs.sources import content_hash
from trainer.simulation.cluster_file import ClusterProfile
from utils import RUN_FILE, STOPPED, SetupError, read_json

HOST = "virtual"  # the folder of the workers in the log tree


@dataclass(frozen=True)
class VirtualJob:
    """A job of a virtual cluster."""

    config: Config  # of all workers; `log_dir` holds their folders
    cluster: ClusterProfile
    cluster_name: str  # for the logs
    model_bytes: float = 0.0  # size of the model in transfers; 0: its own
    evaluation_s: float = 0.0  # virtual seconds of an evaluation
    entry: str = ""  # the name in algorithms.ENTRIES that it is filed under
    rows: tuple[int, ...] = ()  # its workers' rows in the cluster file; empty where all take part
    earlier: Path | None = None  # where the logs of the run before are moved; None: they are removed

    @functools.cached_property
    def _hashes(self) -> dict[str, str]:
        """Of the program's files, and of the job file."""
        return {"program": version.files_hash()} | ({"job": content_hash(self.config.job)} if self.config.job else {})

    def about(self, rank: int) -> dict[str, Any]:
        """Entries of this worker's run.json beside the flags; infinite numbers are null."""
        row = self.cluster.workers[rank]
        trace = straggler_trace.read(row.straggler_trace) if row.straggler_trace else ()
        return {
            **self._hashes,
            "entry": self.entry or self.config.entry,
            "cluster": self.cluster_name,
            "row": self.rows[rank] if self.rows else rank,
            "num_workers": len(self.cluster.workers),
            "worker": _finite(vars(row) | {"straggler_trace": str(row.straggler_trace or "")}),
            "trace": [vars(entry) for entry in trace],
            **_finite({"server_bandwidth_mbit_s": self.cluster.server_bandwidth_mbit_s}),
            "model_bytes": self.model_bytes,
            "evaluation_s": self.evaluation_s,
        }

    def worker_config(self, rank: int) -> Config:
        """The flags of this worker's process."""
        row = self.cluster.workers[rank]
        return self.config.but(
            cpu=1,
            device_name=f"cpu{rank}",
            min_step_time=row.step_time_s,
            sample_time=row.sample_time_s,
            straggler_trace=str(row.straggler_trace or ""),
            earlier="",  # why.py takes the flags of another job
            quiet=0,  # it makes no other run
            # Here a server part is at work also where the real job has an optimizer of MXNet's.
            exchange=HUB if self.config.algorithm.transport is TransportKind.HUB else self.config.exchange,
        )

    def is_done(self) -> bool:
        """Whether each worker's run.json is of this job and this program, and says that it has ended without a
        signal."""
        return all(self._has_ended(rank) for rank in range(len(self.cluster.workers)))

    def _has_ended(self, rank: int) -> bool:
        config = self.worker_config(rank)
        try:
            about = read_json(Path(config.log_dir) / config.device / RUN_FILE)
        except SetupError:
            return False
        wanted = json.loads(json.dumps({"config": config.values_by_name(), "virtual": self.about(rank)}))
        return (
            isinstance(about, dict)
            and about.get("ended") not in (None, STOPPED)
            and all(about.get(key) == value for key, value in wanted.items())
        )


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    return {name: None if value == math.inf else value for name, value in row.items()}
