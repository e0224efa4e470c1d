"""A worker that trains lenet on fixed batches with one of the real trainers, in a cluster of processes, which saves the
final weights, or in memory.

    python tests/helpers/equivalence_worker.py ALGORITHM OUTPUT.npz

Every rank takes its equal part of the same three big batches. In the asynchronous algorithms the ranks take turns,
so that the order of the updates is known.
"""

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from contexts import by_flags, context_of
from few_images import few_images
from one_worker import Batches
from page import Page
from ready import ready
from run_all import run_all

import models
from algorithms import TransportKind
from config import Config
from esync.measure import Measure
from esync.progress import Limits
from trainer.context import Context
from trainer.datasets import loading
from trainer.datasets.samples import Samples
from trainer.engine import mx
from trainer.loop import Loop
from trainer.membership import Membership
from trainer.rendezvous import roles
from trainer.rendezvous.cluster import ClusterSpec
from trainer.runtime.environment import prepare_environment
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_hub import VirtualExchange, VirtualHub
from trainer.simulation.virtual_kvstore import VirtualKVStore, VirtualServer
from trainer.trainer import Trainer
from utils import setup_logging

ROUNDS = 3
BIG_BATCH = 32
LEARNING_RATE = 0.002
WITH_MOMENTUM = "-with-momentum"  # behind an algorithm's name: and with weight decay


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
    return TransportKind.SUM if algorithm == "sync" else TransportKind.HUB


def config_of(algorithm: str) -> Config:
    """The flags of SSGD or ASGD with two workers."""
    more: dict[str, Any] = {"learning_rate": LEARNING_RATE, "batch_size": BIG_BATCH // 2}
    if algorithm.endswith(WITH_MOMENTUM):
        more |= {"momentum": 0.5, "weight_decay": 0.01}
    if algorithm.startswith("dcasgd-"):
        more |= {"use_dcasgd": 1, "dcasgd_lambda": float(algorithm.removeprefix("dcasgd-"))}
    return Config(mode="sync" if algorithm == "sync" else "async", **more)


def trainer_of(algorithm: str, rank: int, **others: Any) -> Trainer:
    """One of two workers with an algorithm: sync, async, dcasgd-LAMBDA; or one WITH_MOMENTUM."""
    config = config_of(algorithm)
    return by_flags(config.mode)(a_context(rank, 2, state_server=Page(), config=config, **others))


def train(algorithm: str, trainer: Trainer, meet: Callable[[], object]) -> list[np.ndarray]:
    """Returns the final weights. `meet` waits for the other workers."""
    with tempfile.TemporaryDirectory() as folder:
        if kind_of(algorithm) is TransportKind.HUB:
            take_turns(trainer, Path(folder), meet)
        else:
            Loop(trainer).run(lambda: Path(folder))
    return [weight.copy() for weight in trainer.parameters.weights]


def train_alone() -> list[np.ndarray]:
    """Plain SGD on the big batches. SSGD divides the sum of two workers' gradients by two: so does this."""
    return train("sync", by_flags("local", learning_rate=LEARNING_RATE / 2)(a_context(0, 1)), lambda: None)


def train_in_cluster(algorithm: str, path: str) -> None:
    cluster = ClusterSpec.from_environment("kvstore")
    assert cluster is not None
    numbers = itertools.count()
    with roles.join(cluster, kind_of(algorithm), 60) as joined:
        trainer = trainer_of(algorithm, joined.place.rank, transport=joined.transport, hub=joined.hub)
        np.savez(path, *train(algorithm, trainer, lambda: joined.gather(f"turn {next(numbers)}", None)))
        del trainer


def train_in_memory(algorithm: str) -> list[list[np.ndarray]]:
    """The final weights by rank of two workers in one process, whose steps take the same time."""
    clock, links = VirtualClock(), [WorkerLink()] * 2
    server, hub = VirtualServer(clock, links), VirtualHub(clock, config_of(algorithm), links)
    weights: list[list[np.ndarray]] = [[], []]
    met = 0

    def meet() -> None:
        nonlocal met
        met += 1
        last = met + met % 2
        clock.changed()
        clock.wait_until(lambda: met >= last)

    def work(rank: int) -> None:
        more = {"transport": VirtualKVStore(server, rank), "hub": VirtualExchange(hub, rank), "clock": clock}
        weights[rank] = train(algorithm, trainer_of(algorithm, rank, min_step_s=1.0, **more), meet)

    run_all(clock, [partial(work, rank) for rank in range(2)])
    return weights


TURNS = (0, 1, 1, 0, 1, 0)  # ranks


def take_turns(trainer: Trainer, folder: Path, meet: Callable[[], object]) -> None:
    loop = Loop(trainer)
    trainer.broadcast()
    trainer.measure = Measure(folder, trainer.clock.now)
    for turn in TURNS:
        if turn == trainer.membership.rank:
            trainer.rounds += 1
            loop.train_round()
        meet()


def dcasgd_of_mxnet(strength: float) -> list[list[np.ndarray]]:
    """The final weights of two workers, by the formula: MXNet's DCASGD compares the weights with those before the last
    update of any worker."""
    trainers = [by_flags("local", learning_rate=LEARNING_RATE)(a_context(rank, 2)) for rank in range(2)]
    weights = [weight.copy() for weight in trainers[0].parameters.weights]
    before = [weight.copy() for weight in weights]
    for each in trainers:
        each.parameters.replace(weights)
    for turn in TURNS:
        mine = trainers[turn]
        mine.compute_gradients(next(mine.context.task.batches))
        for weight, earlier, g in zip(weights, before, mine.parameters.gradients, strict=True):
            step = LEARNING_RATE * (g + strength * g * g * (weight - earlier))
            earlier[...] = weight
            weight -= step
        mine.parameters.replace(weights)
    return [[weight.copy() for weight in each.parameters.weights] for each in trainers]


if __name__ == "__main__":
    setup_logging("worker")
    prepare_environment()
    train_in_cluster(*sys.argv[1:])
