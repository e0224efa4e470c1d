"""A job that survives, in virtual time: real trainers, Generations and Survivors over an in-memory network.

The state server is the real one in this process. A worker that is killed raises Killed where it is; its connections
close at that moment, and the others are told as the watch over TCP connections tells them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from contexts import context_of
from memory_cluster import batch, dense
from one_worker import Batches
from ready import ready
from round_records import read_rounds
from run_all import run_all

from esync.client import StateClient
from esync.progress import Limits
from trainer.collectives.mesh import MeshGroup
from trainer.collectives.schedules import ScheduleMaker, ring
from trainer.context import Context
from trainer.draws import Draws
from trainer.engine import mx
from trainer.jobs.gluon import GluonNetwork, GluonPasses, cross_entropy
from trainer.loop import Loop
from trainer.membership import Membership
from trainer.rendezvous.generations import Generations
from trainer.rendezvous.joining import Joining, Member, Start
from trainer.rendezvous.rendezvous_info import RendezvousInfo
from trainer.simulation.in_process import InProcessLink, InProcessServer
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_mesh import MemoryMesh, MemoryNetwork
from trainer.survival.recovery import Survivors
from trainer.trainer import Trainer
from trainer.transport.collective import CollectiveTransport
from utils import JobError, PeerLost

ADDRESS, FIRST_PORT = "10.0.0.1", 4000
PATIENCE_S = 10.0


class Killed(JobError):
    """In place of a kill -9: the product lets it pass, also where it catches PeerLost."""


@dataclass(eq=False)
class Worker:
    """One worker, and what happens to it.

    Attributes:
        samples: n_k.
        begins_s: when it comes to the job.
        dies_in: round, and exchange of that round before which it is killed, from 1; 0: in the middle of a step.
        leaves_after: round after which it was asked to leave.
        setup: what must be the same on all.
    """

    samples: int = 1
    step_s: float = 1.0
    begins_s: float = 0.0
    dies_in: tuple[int, int] | None = None
    leaves_after: int | None = None
    setup: dict[str, str] = field(default_factory=dict)

    trainer: Trainer = field(init=False)
    batches: Batches = field(init=False)
    generations: Generations = field(init=False)
    leave: Callable[..., object] = field(init=False)  # tells the others that it does, once it has asked for them
    is_dead: bool = False
    exchanges: int = 0  # in this round
    ended: str = ""  # why, in words
    error: JobError | None = None
    records: list[dict[str, Any]] = field(default_factory=list)  # its log

    def weights(self) -> np.ndarray:
        """Of the last layer (2, 4)."""
        return self.trainer.parameters.weights[-1].copy()

    def events(self) -> list[str]:
        """What its log says of the others, each with its round."""
        return [f"{each['num_iters']}: {event['text']}" for each in self.records for event in each.get("events", [])]

    def dies_at(self, exchange: int) -> bool:
        return hasattr(self, "trainer") and self.dies_in == (self.trainer.rounds, exchange)


class _Link(InProcessLink):
    """The way to the state server of a worker that may be dead."""

    worker: Worker

    def send(self, *message: Any) -> Any:
        if self.worker.is_dead:
            raise Killed
        return super().send(*message)


class MemoryConnections:
    """One worker's connections with the others of a generation."""

    def __init__(self, job: Job, worker: Worker, start: Start) -> None:
        if gone := [rank for rank, number in enumerate(numbers_of(start)) if job.workers[number].is_dead]:
            raise PeerLost(f"worker(s) {gone} are not there")
        self.job = job
        self.worker, self.rank = worker, start.rank
        self.watches = False
        self.members = job.generations.setdefault(start.generation, {})
        self.members[start.rank] = self
        links = [WorkerLink()] * len(start.members)
        self.network = job.networks.setdefault(start.generation, MemoryNetwork(job.clock, links))
        self.group = MeshGroup(_Mesh(self), job.algorithm)
        self.group.all_gather(b"")

    def watch(self, on_lost: Callable[..., object]) -> None:
        self.watches, self.report = True, on_lost

    def interrupt(self) -> None:
        self.network.lose(self.rank)

    def let_leave(self) -> None:
        self.watches = False

    def heard(self) -> list[int]:
        return [rank for rank, other in self.members.items() if other is not self and not other.worker.is_dead]

    def stop_watching(self) -> None:
        self.watches = False
        if self.members.pop(self.rank, None):
            for other in list(self.members.values()):
                if other.watches:
                    other.report([self.rank], "")

    def close(self) -> None:
        self.stop_watching()
        self.interrupt()


class _Mesh(MemoryMesh):
    """Kills its worker where that is to be, and says when an exchange has failed."""

    def __init__(self, connections: MemoryConnections) -> None:
        super().__init__(connections.network, connections.rank)
        self._connections = connections

    def exchange(self, *message: Any, **more: Any) -> None:
        worker = self._connections.worker
        worker.exchanges += 1
        if worker.dies_at(worker.exchanges) or worker.is_dead:
            self._connections.job.kill(worker)
        try:
            super().exchange(*message, **more)
        except PeerLost:
            if self._connections.watches:
                self._connections.report((), "")
            raise


def numbers_of(start: Start) -> list[int]:
    """Which workers these are, by rank."""
    return [member.port - FIRST_PORT for member in start.members]


class Job:
    """Runs workers in virtual time until each has done its rounds, is dead, or has left."""

    def __init__(
        self,
        workers: Sequence[Worker],
        build: Callable[[Context], Trainer],
        rounds: int,
        algorithm: ScheduleMaker = ring,
        policy: str = "",
    ) -> None:
        """
        Args:
            build: makes a worker's trainer.
            algorithm: of the sums.
            policy: the state server's, of an algorithm that asks it.
        """
        self.workers, self.algorithm = workers, algorithm
        self._build, self._rounds, self._policy = build, rounds, policy
        self.clock = VirtualClock()
        self._state_server = InProcessServer(self.clock)
        self.networks: dict[int, MemoryNetwork] = {}
        self.generations: dict[int, dict[int, MemoryConnections]] = {}  # by number and rank, those that are open
        with tempfile.TemporaryDirectory() as folder:
            run_all(self.clock, [partial(self._run, number, Path(folder)) for number in range(len(workers))], 1e4)

    def alive(self) -> list[Worker]:
        """The workers that have done all rounds."""
        return [worker for worker in self.workers if worker.ended and worker.leaves_after is None]

    def kill(self, worker: Worker) -> NoReturn:
        """Closes the worker's connections, in any thread of it; whatever it does next raises Killed."""
        worker.is_dead = True
        for members in self.generations.values():
            for connections in [each for each in members.values() if each.worker is worker]:
                connections.close()
        raise Killed

    def _run(self, number: int, logs: Path) -> None:
        worker, folder = self.workers[number], logs / str(number)
        folder.mkdir()
        self.clock.sleep(worker.begins_s)
        try:
            self._train(number, folder)
        except Killed:
            pass
        except JobError as error:
            worker.error = error
            worker.leave(cause=str(error))
        worker.records = list(read_rounds(folder, pytest.fail))

    def _train(self, number: int, folder: Path) -> None:
        worker = self.workers[number]
        link = _Link(self._state_server, self.clock, 0.0)
        link.worker = worker
        num_workers = sum(not each.begins_s for each in self.workers)
        about = {"num_workers": num_workers, "min_workers": 1, "patience": PATIENCE_S, "setup": worker.setup}
        about |= {"address": ADDRESS, "port": FIRST_PORT + number, "device": {"host": "h", "device": f"cpu{number}"}}
        joining = Joining(link, self.clock, "a", about, self._call)
        worker.leave = joining.leave
        connect, begin = partial(MemoryConnections, self, worker), partial(self._start, number)
        worker.generations = Generations(joining, connect, self.clock, joining.wait(0.0), begin)
        worker.leave = worker.generations.leave
        transport = CollectiveTransport(worker.generations.taken.connections.group, self.clock)
        group = RendezvousInfo(transport, transport.gather, (), generations=worker.generations)
        context = self._context(number, transport, partial(Survivors, group))
        if self._policy:
            context.peers.state_server = StateClient(link, self.clock, self._policy, 0.5, batch_size=1)
        worker.trainer = self._build(context)
        worker.ended = Loop(worker.trainer).run(lambda: folder)
        worker.leave()

    def _call(self, other: Member) -> str:
        return "no answer" if self.workers[other.port - FIRST_PORT].is_dead else ""

    def _start(self, number: int, work: Callable[[], None], name: str) -> None:
        def run() -> None:
            with contextlib.suppress(Killed):
                work()

        self.clock.start(run, f"{name} of worker {number}")

    def _context(self, number: int, transport: CollectiveTransport, company: Callable[[Any], Survivors]) -> Context:
        worker = self.workers[number]
        worker.batches = Batches(*(batch(number + turn) for turn in range(5)))

        class Passes(GluonPasses):
            def forward(passes, *samples: Any) -> None:
                worker.exchanges = 0
                if worker.dies_at(0):
                    self.clock.sleep(worker.step_s / 2)
                    self.kill(worker)
                super().forward(*samples)

        def membership() -> Membership:
            start = worker.generations.taken.start
            counts = tuple(self.workers[each].samples for each in numbers_of(start))
            return Membership(start.rank, len(counts), counts)

        network = GluonNetwork(dense(), mx.cpu())
        return context_of(
            network=network,
            passes=lambda trainer: Passes(network, cross_entropy(), Draws(network.seed), lambda: 0),
            batches=worker.batches,
            warm_up_batch=ready(batch(number)),
            limits=Limits(self._rounds),
            membership=membership,
            leaves=lambda: worker.leaves_after is not None and worker.trainer.rounds >= worker.leaves_after,
            transport=transport,
            company=company,
            min_step_s=worker.step_s,
            clock=self.clock,
        )
