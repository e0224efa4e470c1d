"""What trainers are built from: each algorithm's module has a function `build(site)`, which algorithms.py names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from config import Config
from trainer.base import Job
from trainer.cluster import Cluster
from trainer.state_client import StateClient


@dataclass(frozen=True)
class Site:
    """Flags, job, cluster and kvstore of this process. One on its own has no cluster and no store."""

    config: Config
    job: Job
    cluster: Cluster | None
    store: Any
    state: StateClient | None  # where the algorithm asks a state server

    @property
    def num_servers(self) -> int:
        """Parameter servers of the job."""
        return self.cluster.num_servers if self.cluster else 0

    @property
    def state_server(self) -> StateClient:
        """The state server's client, of an algorithm that asks one."""
        assert self.state is not None
        return self.state

    @property
    def averaging(self) -> tuple[Any, ...]:
        """What every model-averaging trainer needs."""
        return self.job, self.store, self.config.local_lr, self.config.global_lr
