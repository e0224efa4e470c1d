"""Which trainer and which kind of kvstore a mode has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from config import Config
from trainer.asynchronous import AsyncTrainer
from trainer.base import Job, Trainer
from trainer.checkpoint import CheckpointFile
from trainer.cluster import Cluster
from trainer.esync import ESyncTrainer
from trainer.local import LocalTrainer
from trainer.local_sgd import LocalSGDTrainer
from trainer.queries import BlockingQueries, NonBlockingQueries
from trainer.ssp import SSPTrainer
from trainer.state_client import StateClient
from trainer.sync import SyncTrainer
from trainer.sync_switch import SyncSwitchTrainer
from trainer.sync_switch_keeper import Settings
from trainer.wbsp import WBSPTrainer


@dataclass(frozen=True)
class Site:
    """What trainers are built from. A process on its own has no cluster and no store."""

    config: Config
    job: Job
    cluster: Cluster | None
    store: Any
    state: StateClient | None  # where the mode asks a state server

    @property
    def num_servers(self) -> int:
        """Parameter servers of the job."""
        return self.cluster.num_servers if self.cluster else 0

    @property
    def state_server(self) -> StateClient:
        """The state server's client, in a mode that asks one."""
        assert self.state is not None
        return self.state

    @property
    def averaging(self) -> tuple[Any, ...]:
        """What every model-averaging trainer needs."""
        return self.job, self.store, self.config.local_lr, self.config.global_lr


def checkpoint_file(config: Config, num_workers: int) -> CheckpointFile:
    """The checkpoint of this job; with other values of these flags it would be another job."""
    same = ("network", "dataset", "split_by_class", "batch_size", "seed", "switch_order", "momentum")
    job = {name: getattr(config, name) for name in same}
    job |= {"train_steps": list(config.train_steps), "num_workers": num_workers}
    return CheckpointFile(config.checkpoint_path, job)


def _async(site: Site) -> Trainer:
    config = site.config
    compensation = config.dcasgd_lambda if config.use_dcasgd else None
    return AsyncTrainer(site.job, site.store, site.num_servers, config.learning_rate, compensation)


def _esync(site: Site) -> Trainer:
    kind = BlockingQueries if site.config.query == "blocking" else NonBlockingQueries
    return ESyncTrainer(*site.averaging, state=site.state_server, queries=kind(site.state_server))


def _local(site: Site) -> Trainer:
    return LocalTrainer(site.job, site.config.learning_rate)


def _local_sgd(site: Site) -> Trainer:
    return LocalSGDTrainer(*site.averaging, sync_every=site.config.sync_every)


def _ssp(site: Site) -> Trainer:
    return SSPTrainer(site.job, site.store, site.num_servers, site.config.learning_rate, site.config.staleness)


def _sync(site: Site) -> Trainer:
    return SyncTrainer(site.job, site.store, site.config.learning_rate)


def _sync_switch(site: Site) -> Trainer:
    config = site.config
    settings = Settings(
        order=config.switch_order,
        steps=config.train_steps,
        ckpt_steps=config.ckpt_steps,
        step_size=config.learning_rate,
        momentum=config.momentum,
        policy=config.straggler_policy,
    )
    checkpoint = checkpoint_file(config, site.job.num_workers)
    return SyncSwitchTrainer(site.job, site.store, settings, site.state_server, checkpoint, bool(config.resume))


def _wbsp(site: Site) -> Trainer:
    overlap = bool(site.config.wbsp_overlap)
    return WBSPTrainer(site.job, site.store, site.config.local_lr, site.state_server, overlap)


@dataclass(frozen=True)
class Mode:
    """How one mode runs: `store_type` as MXNet calls it, None for a process on its own."""

    store_type: str | None
    build: Callable[[Site], Trainer]


MODES = {
    "esync": Mode("dist_sync", _esync),
    "sync": Mode("dist_sync", _sync),
    "local-sgd": Mode("dist_sync", _local_sgd),
    "async": Mode("dist_async", _async),
    "ssp": Mode("dist_async", _ssp),
    "wbsp": Mode("dist_async", _wbsp),
    "sync-switch": Mode("dist_async", _sync_switch),
    "local": Mode(None, _local),
}
