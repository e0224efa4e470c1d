"""A cluster in this process, in virtual time: the real trainers, networks small enough to follow by hand."""

import itertools
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from contexts import context_of
from one_worker import Batches
from page import Page
from ready import ready
from round_records import read_rounds
from run_all import run_all

from algorithms import TransportKind
from config import HUB, KVSTORE, Config
from esync.client import StateClient
from esync.clock import Clock
from esync.progress import Limits
from trainer.collectives.schedules import SUMS
from trainer.context import Context
from trainer.datasets.samples import Samples
from trainer.emulation import Slowdown
from trainer.engine import mx
from trainer.hub.server_part import JOB, Answer, Arrays, Message
from trainer.hub.sums import HubSums
from trainer.loop import Loop
from trainer.membership import Change, Membership, lost_of
from trainer.simulation.in_process import InProcessServer
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_hub import VirtualExchange, VirtualHub
from trainer.simulation.virtual_kvstore import VirtualKVStore, VirtualServer
from trainer.simulation.virtual_mesh import MemoryNetwork, in_memory
from trainer.steps import PLAIN, Rule
from trainer.trainer import Trainer
from trainer.transport.protocol import Transport

ZERO = np.zeros((2, 4))  # the first weights of `dense`
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # float32, of gradients that nearly cancel


def dense() -> Any:
    """One weight a class and pixel, no bias; zero at first."""
    network = mx.gluon.nn.Dense(2, use_bias=False, in_units=4)
    network.initialize(mx.init.Zero())
    return network


def normalised() -> Any:
    """BatchNorm in front of the weights: its running mean and variance are a part of the model."""
    network = mx.gluon.nn.HybridSequential()
    network.add(mx.gluon.nn.BatchNorm(in_channels=1, momentum=0.5), mx.gluon.nn.Dense(2, use_bias=False, in_units=4))
    network.initialize(mx.init.Zero())
    network(mx.nd.zeros((1, 1, 2, 2)))
    return network


def batch(number: int, size: int = 1) -> Samples:
    """Images of 2 x 2 pixels that differ by number; class 0 and 1 in turn."""
    pixels = (np.arange(4 * size, dtype=np.uint8).reshape(size, 1, 2, 2) * 7 + 31 * (number + 1)) % 251
    return Samples(pixels.astype(np.uint8), np.full(size, number % 2, dtype=np.uint8))


def gradient(weight: np.ndarray, samples: Samples) -> np.ndarray:
    """Of the summed loss of `dense` with this weight (2, 4), by hand: (softmax(W x) - y) x^T, summed over the batch."""
    images = samples.images.reshape(len(samples.labels), 4).astype(np.float64) / 255
    scores = images @ weight.T.astype(np.float64)
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(shares)), samples.labels] -= 1
    return shares.T @ images


def after_steps(weight: np.ndarray, *ranks: int, eta: float) -> np.ndarray:
    """SGD on these workers' batches, one after the other."""
    for rank in ranks:
        weight = weight - eta * gradient(weight, batch(rank))
    return weight


@dataclass
class Worker:
    """One worker of a cluster: what it trains on, how long a step takes and each sample of it, and how many samples it
    holds."""

    batches: Sequence[Samples]
    step_s: float = 1.0
    sample_s: float = 0.0
    samples: int = 1
    link: WorkerLink = field(default_factory=WorkerLink)


@dataclass
class Trained:
    """What is left of a run."""

    clock: VirtualClock
    trainers: list[Trainer]
    ended_s: dict[int, float]  # by rank, when each had done all its rounds
    records: list[list[dict[str, Any]]]  # by rank, of the rounds in its log
    pages: list[Page]  # by rank, where there was no state server

    @property
    def rounds_ended_s(self) -> list[list[float]]:
        """By rank, when its rounds ended, since it began to train."""
        return [[round(record["total_time"], 3) for record in records] for records in self.records]

    def weights(self, rank: int = 0) -> np.ndarray:
        """Of the last layer (2, 4), as this worker has them."""
        return self.trainers[rank].parameters.weights[-1].copy()

    def assert_all_have(self, expected: np.ndarray, **close: float) -> None:
        """All workers have these weights, and to the bit the same ones."""
        np.testing.assert_allclose(self.weights(), expected, **(close or CLOSE))
        for rank in range(len(self.trainers)):
            np.testing.assert_array_equal(self.weights(rank), self.weights())


class StateServer:
    """A state server on the workers' virtual clock, which it takes from the first of them."""

    running: InProcessServer

    def __init__(self, policy: str, round_trip_s: float = 0.0, **more: Any) -> None:
        """
        Args:
            more: what else the clients are made with.
        """
        self._policy = policy
        self._round_trip_s = round_trip_s
        self._more = {"batch_size": 1, **more}

    def client(self, clock: Clock) -> StateClient:
        """A worker's client."""
        if not hasattr(self, "running"):
            self.running = InProcessServer(clock)
        return StateClient(self.running.link(self._round_trip_s), clock, self._policy, 0.5, **self._more)


class Killed(Exception):
    """In place of a kill -9."""


class Returning(VirtualExchange):
    """Of a worker in the place of a lost one: no other worker waits for it to begin."""

    def begin(self, about: Message, model: Arrays, held: Callable[[], Arrays]) -> Answer:
        hub = self._hub
        if (answer := hub.part.joined(self.rank)) is None:
            hub.clock.wait_until(lambda: self.rank in hub.answers)
            answer = hub.answers.pop(self.rank)
        return self._taken(Answer({**answer.message, JOB: hub.name}, answer.arrays))


def train(
    kind: TransportKind,
    workers: Sequence[Worker],
    build: Callable[[Context], Trainer],
    rounds: int,
    network: Callable[[], Any] = dense,
    server_bytes_per_s: float = float("inf"),
    state_server: StateServer | None = None,
    membership: Callable[[int], Callable[[], Membership]] | None = None,
    as_halves: bool = False,
    exchange: str = KVSTORE,
    killed: Mapping[int, int] | None = None,
    back_s: Mapping[int, float] | None = None,
    leaving: Mapping[int, int] | None = None,
    trace: Mapping[int, Slowdown] | None = None,
    rule: Rule = PLAIN,
    mode: str = Config().mode,
    config: Config | None = None,
) -> Trained:
    """Runs workers in virtual time for so many rounds each.

    Args:
        build: makes a worker's trainer.
        membership: what a rank asks at the start of each round; else all workers take part, with their samples.
        exchange: of schedules.SUMS, or the parameter server, or the hub.
        killed: by rank, how many rounds a worker does before it is; the others know at once.
        back_s: by rank, seconds until a new process is in the place of one of these.
        leaving: as `killed`, of those that were asked to leave.
        trace: by rank, when a worker is slower.
        mode: that the flags name.
        config: all flags, with the mode.
    """
    changes: dict[int, Change] = {}
    numbers = itertools.count(1)
    clock = VirtualClock()
    links = [worker.link for worker in workers]
    flags = config or Config(mode=mode)
    hub = VirtualHub(clock, flags, links, server_bytes_per_s)
    place: Callable[[int], Transport | None]
    if kind is not TransportKind.SUM:
        place = {}.get
    elif exchange == HUB:
        place = lambda rank: HubSums(VirtualExchange(hub, rank), flags, hub.gather)  # noqa: E731
    elif exchange == KVSTORE:
        place = partial(VirtualKVStore, VirtualServer(clock, links, server_bytes_per_s))
    else:
        place = partial(in_memory, MemoryNetwork(clock, links, server_bytes_per_s), SUMS[exchange])
    trainers: list[Trainer] = []
    pages = [Page() for _ in workers]
    ended_s: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as folder:

        def work(rank: int) -> Callable[[], None]:
            path = Path(folder) / str(rank)
            path.mkdir()

            begin_round = trainers[rank].begin_round

            def die() -> None:
                if trainers[rank].rounds > (killed or {})[rank]:
                    raise Killed
                begin_round()

            def run() -> None:
                if rank in (killed or {}):
                    trainers[rank].begin_round = die  # type: ignore[method-assign]
                is_lost = False
                try:
                    Loop(trainers[rank]).run(lambda: path)
                except Killed:
                    is_lost = True
                if is_lost or trainers[rank].has_left:
                    changes[rank] = Change(next(numbers), is_lost=True)
                    hub.answers |= hub.part.lost(rank)
                    clock.changed()
                    if rank in (back_s or {}):
                        clock.sleep((back_s or {})[rank])
                        trainers[rank] = build(context(rank, **in_its_place(rank)))
                        Loop(trainers[rank]).run(lambda: path)
                ended_s[rank] = clock.now()

            return run

        def in_its_place(rank: int) -> dict[str, Any]:
            """What a new process has instead; the others hear of it when it is ready."""
            mine = {rank: Change(next(numbers))}

            def is_evaluator(step_s: float) -> bool:
                changes.update(mine)
                return False

            exchange = Returning(hub, rank)
            return {
                "transport": HubSums(exchange, flags, hub.gather) if kind is TransportKind.SUM else None,
                "hub": exchange,
                "job_age_s": clock.now,
                "changes": lambda: changes | mine,
                "leaves": lambda: False,
                "is_evaluator": is_evaluator,
            }

        def context(rank: int, **more: Any) -> Context:
            worker = workers[rank]
            counts = tuple(each.samples for each in workers)
            always = Membership(rank, len(workers), counts)

            def those_left() -> Membership:
                lost = lost_of(changes) - {rank}
                if not lost:
                    return always
                left = tuple(0 if each in lost else count for each, count in enumerate(always.sample_counts))
                return replace(always, sample_counts=left, lost=lost)

            given = {
                "network": network(),
                "batches": Batches(*worker.batches),
                "warm_up_batch": ready(worker.batches[0]),
                "limits": Limits(rounds),
                "membership": membership(rank) if membership else those_left,
                "changes": lambda: dict(changes),
                "leaves": lambda: rank in (leaving or {}) and trainers[rank].rounds >= leaving[rank],
                "transport": place(rank),
                "hub": VirtualExchange(hub, rank),
                "as_halves": as_halves,
                "state_server": state_server.client(clock) if state_server else pages[rank],
                "gather": lambda label, mine: [[7, 7]],
                "config": flags,
                "rule": rule,
                "trace": tuple(slow for each, slow in (trace or {}).items() if each == rank),
                "min_step_s": worker.step_s,
                "sample_s": worker.sample_s,
                "clock": clock,
            }
            return context_of(**(given | more))

        trainers += [build(context(rank)) for rank in range(len(workers))]
        run_all(clock, [work(rank) for rank in range(len(workers))])
        records = [[*read_rounds(Path(folder) / str(rank), warn=print)] for rank in range(len(workers))]
    return Trained(clock, trainers, ended_s, records, pages)
