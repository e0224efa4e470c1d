"""A worker that trains lenet on fixed batches with one of the real trainers, in a cluster of processes, which saves the
final weights, or in memory.

    python tests/helpers/equivalence_worker.py ALGORITHM OUTPUT.npz

Every rank takes its equal part of the same three big batches. In the asynchronous algorithms the ranks take turns,
so that the order of the updates is known.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from contexts import context_of
from few_images import few_images
from one_worker import Batches
from page import Page
from ready import ready
from run_all import run_all

import models
from algorithms import TransportKind
from config import Config
from flag_values import parse_schedule
from trainer.algorithms.asynchronous import AsyncTrainer
from trainer.algorithms.dcasgd import PerWorkerDCASGD
from trainer.algorithms.esync import ESyncTrainer
from trainer.algorithms.local import LocalTrainer
from trainer.algorithms.sync import SyncTrainer
from trainer.algorithms.sync_switch import SyncSwitchTrainer
from trainer.clock import Clock, RealClock
from trainer.context import Context
from trainer.coordinator.queries import Queries
from trainer.datasets import loading
from trainer.datasets.samples import Samples
from trainer.engine import mx
from trainer.loop import Loop
from trainer.membership import Membership
from trainer.progress import Limits
from trainer.rendezvous import roles
from trainer.rendezvous.cluster import ClusterSpec
from trainer.run_logs.measure import Measure
from trainer.runtime.environment import prepare_environment
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_hub import VirtualExchange, VirtualHub
from trainer.simulation.virtual_server import MemoryServer, MemoryTransport
from trainer.steps import PLAIN, Rule
from trainer.trainer import Trainer
from trainer.transport.protocol import Transport

ROUNDS = 3
BIG_BATCH = 32
LEARNING_RATE = 0.002
WITH_ALL = "-with-all"  # behind an algorithm's name: with momentum, weight decay and a schedule
OF_ALL: dict[str, Any] = {"momentum": 0.5, "weight_decay": 0.01}
SCHEDULE = "warmup:64"
RULE = Rule(**OF_ALL, batch_size=BIG_BATCH // 2, schedule=parse_schedule(SCHEDULE))


class OneStepARound:
    """A state server that always says: aggregate."""

    generation, round_trip_s = 1, 0.0

    def begin_job(self, resumed):
        pass

    def join(self, job, rank, num_workers, progress=None):
        pass

    def report(self, *told, **more):
        pass

    def leave(self, *told):
        pass

    def stop_waiting(self):
        pass

    def query(self, *told, **more):
        return True


def parts(rank: int, num_workers: int) -> Iterator[Samples]:
    train = loading.load("mnist", str(few_images())).train
    size = BIG_BATCH // num_workers
    for round_ in range(ROUNDS):
        begin = round_ * BIG_BATCH + rank * size
        yield Samples(*(part[begin : begin + size] for part in train))


def a_context(rank: int, num_workers: int, **others: Any) -> Context:
    batches = list(parts(rank, num_workers))
    return context_of(
        # Only rank 0's weights may count: every rank begins with others.
        network=models.build("lenet", (1, 28, 28), 10, mx.cpu(), seed=rank),
        batches=Batches(*batches),
        warm_up_batch=ready(batches[0]),
        limits=Limits(max_rounds=ROUNDS),
        membership=lambda: Membership(rank, num_workers),
        **others,
    )


def kind_of(algorithm: str) -> TransportKind:
    return TransportKind.SUM if algorithm in ("sync", "esync") else TransportKind.SERVER


def config_of(algorithm: str, num_workers: int) -> Config:
    """The flags of a phase of Sync-Switch. Other trainers get what they need of these from `trainer_of`."""
    is_bsp, more = algorithm.startswith("bsp"), {}
    if algorithm.endswith(WITH_ALL):
        more = {**OF_ALL, "lr_schedule": SCHEDULE}
    return Config(
        mode="sync-switch",
        switch_order="1" if is_bsp else "0",
        train_steps=(ROUNDS if is_bsp else 1000,),
        # ASP divides it by the number of workers.
        learning_rate=LEARNING_RATE if is_bsp else LEARNING_RATE * num_workers,
        batch_size=BIG_BATCH // num_workers,
        **more,
    )


def trainer_of(algorithm: str, shared: Transport, num_servers: int, **others: Any) -> Trainer:
    """An algorithm: sync, esync, async, dcasgd-LAMBDA, or bsp or asp (phases of Sync-Switch), or one WITH_ALL."""
    rule = RULE if algorithm.endswith(WITH_ALL) else PLAIN
    algorithm = algorithm.removesuffix(WITH_ALL)
    state: Any = Page() if algorithm in ("bsp", "asp") else OneStepARound()
    about: dict[str, Any] = {"transport": shared, "num_servers": num_servers, "state_server": state, "rule": rule}
    mine = a_context(shared.rank, shared.num_workers, **about, **others)
    if algorithm == "sync":
        return SyncTrainer(mine, LEARNING_RATE)
    if algorithm == "esync":
        return ESyncTrainer(mine, LEARNING_RATE, 1.0, Queries(state, mine.run.clock, waits=True))
    if algorithm in ("bsp", "asp"):
        return SyncSwitchTrainer(mine)
    if algorithm == "async":
        return AsyncTrainer(mine, LEARNING_RATE)
    strength = float(algorithm.removeprefix("dcasgd-"))
    return AsyncTrainer(mine, LEARNING_RATE, PerWorkerDCASGD, compensation=strength)


def train(algorithm: str, trainer: Trainer, shared: Transport, clock: Clock) -> list[np.ndarray]:
    """Returns the final weights."""
    with tempfile.TemporaryDirectory() as folder:
        if algorithm.startswith(("async", "dcasgd", "asp")):
            take_turns(trainer, shared, Path(folder), clock)
        else:
            Loop(trainer).run(lambda: Path(folder))
    return [weight.copy() for weight in trainer.parameters.weights]


def train_alone(path: str) -> None:
    """Plain SGD on the big batches. SSGD divides the sum of two workers' gradients by two: so does this."""
    trainer = LocalTrainer(a_context(0, 1), LEARNING_RATE / 2)
    with tempfile.TemporaryDirectory() as folder:
        Loop(trainer).run(lambda: Path(folder))
    np.savez(path, *(weight for weight in trainer.parameters.weights))


def train_in_cluster(algorithm: str, path: str) -> None:
    cluster = ClusterSpec.from_environment()
    assert cluster is not None
    with roles.join(cluster, kind_of(algorithm), 60) as joined:
        shared = joined.transport
        trainer = trainer_of(algorithm, shared, cluster.num_servers)
        np.savez(path, *train(algorithm, trainer, shared, RealClock()))
        del trainer


def train_in_memory(algorithm: str, num_workers: int = 2) -> list[list[np.ndarray]]:
    """The final weights by rank of workers in one process, whose steps take the same time. Those of Sync-Switch are at
    a hub, and use nothing but the barrier of the MemoryServer."""
    clock, links, config = VirtualClock(), [WorkerLink()] * num_workers, config_of(algorithm, num_workers)
    server, hub = MemoryServer(clock, kind_of(algorithm), links), VirtualHub(clock, config, links)
    shared = [MemoryTransport(server, rank) for rank in range(num_workers)]
    more = {"clock": clock, "min_step_s": 1.0}
    if algorithm.startswith(("bsp", "asp")):
        more["config"] = config
    trainers = [trainer_of(algorithm, each, 1, hub=VirtualExchange(hub, each.rank), **more) for each in shared]
    done: dict[int, list[np.ndarray]] = {}

    def work(rank: int) -> Callable[[], None]:
        return lambda: done.update({rank: train(algorithm, trainers[rank], shared[rank], clock)})

    run_all(clock, [work(rank) for rank in range(num_workers)])
    return [done[rank] for rank in range(num_workers)]


def take_turns(trainer: Trainer, shared: Transport, folder: Path, clock: Clock) -> None:
    loop = Loop(trainer)
    trainer.broadcast()
    trainer.measure = Measure(folder, clock.now)
    for turn in [0, 1, 1, 0, 1, 0]:
        if turn == shared.rank:
            trainer.rounds += 1
            loop.train_round()
        shared.wait_all()
        shared.barrier()


if __name__ == "__main__":
    prepare_environment()
    if sys.argv[1] == "local":
        train_alone(sys.argv[2])
    else:
        train_in_cluster(sys.argv[1], sys.argv[2])
