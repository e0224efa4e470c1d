"""What trainers are built from: each algorithm's module has a function `build(site)`, which algorithms.py names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from config import Config
from trainer.base import Job
from trainer.cluster import Cluster
from trainer.state_client import StateClient
from trainer.transport.protocol import Transport


@dataclass(frozen=True)
class Site:
    """Flags, job, cluster and transport of this process. One on its own has neither of the latter."""

    config: Config
    job: Job
    cluster: Cluster | None
    transport: Transport | None
    state: StateClient | None  # where the algorithm has a state server

    @property
    def num_servers(self) -> int:
        """Parameter servers of the job."""
        return self.cluster.num_servers if self.cluster else 0

    @property
    def state_server(self) -> StateClient:
        """The state server's client, of an algorithm that has one."""
        assert self.state is not None
        return self.state

    @property
    def shared(self) -> Transport:
        """The way to the other workers, of a distributed algorithm."""
        assert self.transport is not None
        return self.transport

    @property
    def averaging(self) -> tuple[Any, ...]:
        """What every model-averaging trainer needs."""
        return self.job, self.shared, self.config.local_lr, self.config.global_lr
