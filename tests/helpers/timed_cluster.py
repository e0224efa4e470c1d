"""A cluster in virtual time that computes nothing: the real ESync trainer, and what each worker did in each round."""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from run_all import run_all

from config import NO_NETWORK, Config
from esync.client import StateClient
from esync.protocol import Message, NoAnswer, Reply, Timeouts
from trainer.algorithms.esync import ESyncTrainer, Settings
from trainer.context import Context, Peers
from trainer.emulation import Speed
from trainer.from_flags import run_settings
from trainer.loop import Loop
from trainer.membership import Membership
from trainer.simulation import stub_network
from trainer.simulation.in_process import InProcessLink, InProcessServer
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_kvstore import VirtualKVStore, VirtualServer

# Factor on a worker's step time, from (round, local step within the round), both from 1; infinite: it falls silent.
Pace = Callable[[int, int], float]

LONG_S = 1e5  # a job that has not ended by then never does


@dataclass(frozen=True)
class Worker:
    """One worker and its network; all in seconds."""

    step_s: float
    transmission_s: float = 0.0  # of a model, each way
    round_trip_s: float = 0.0  # of a question to the state server
    pace: Pace = lambda round_, step: 1.0
    cut: tuple[float, float] = (math.inf, math.inf)  # moments between which it does not reach the state server


@dataclass(frozen=True)
class Round:
    """What one worker did in a round that all have completed; moments in virtual seconds."""

    steps: int
    computed_s: float
    abandoned_s: float  # of a step that was given up
    waited_s: float  # from the arrival of its own update at the server to that of the last one
    length_s: float


@dataclass
class Outcome:
    """What a cluster did: of each worker, the rounds. The state server's table is as it was at the end."""

    history: list[list[Round]]
    state_server: InProcessServer
    began_s: float  # when worker 0 had the model for the first time


@dataclass
class _Noted:
    began: float
    computed_s: float = 0.0
    abandoned_s: float = 0.0
    steps: int = 0
    arrived: float = math.nan
    ended: float = math.nan


class _CutLink(InProcessLink):
    cut = (math.inf, math.inf)

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        if self.cut[0] <= (now := self._clock.now()) < self.cut[1]:
            self._clock.sleep(min(timeouts.answer_s, self.cut[1] - now))
            raise NoAnswer("is cut off")
        return super().send(message, timeouts)


class _Watched(ESyncTrainer):
    """Keeps a record of its rounds."""

    noted: list[_Noted]
    transmission_s: float

    def begin_round(self) -> None:
        self.noted.append(_Noted(self.clock.now()))
        super().begin_round()

    def local_step(self, *batch) -> bool:
        begin, noted = self.clock.now(), self.noted[-1]
        is_whole = super().local_step(*batch)
        took_s = self.clock.now() - begin
        if is_whole:
            noted.computed_s += took_s
            noted.steps += 1
        else:
            noted.abandoned_s += took_s
        return is_whole

    def synchronize(self, wants_stop: bool) -> bool:
        noted = self.noted[-1]
        noted.arrived = self.clock.now() + self.transmission_s
        stop = super().synchronize(wants_stop)
        noted.ended = self.clock.now()
        return stop


def follow(
    workers: Sequence[Worker],
    rounds: int,
    policy: str = "journal",
    waits: bool = True,
    until: float = LONG_S,
    anchor: int = 0,
) -> Outcome:
    """Does so many rounds, or as many as are possible where a worker falls silent.

    Args:
        policy: the state server's rule.
        waits: for the answer to each question.
        until: virtual seconds.
        anchor: how many steps of the straggler a round has; 0: as the rule says.
    """
    clock = VirtualClock()
    state_server = InProcessServer(clock)
    links = [WorkerLink(latency_s=worker.transmission_s) for worker in workers]
    server = VirtualServer(clock, links)
    trainers: list[_Watched] = []
    for rank, worker in enumerate(workers):
        membership = Membership(rank, len(workers))
        link = _CutLink(state_server, clock, worker.round_trip_s)
        link.cut = worker.cut
        client = StateClient(link, clock, policy, 0.5, batch_size=1, anchor=anchor)
        config = Config(network=NO_NETWORK, batch_size=1, max_rounds=rounds, log_form="lines", max_bad_steps=0)
        settings = run_settings(config, clock=clock, speed=Speed(worker.step_s, pace=_pace_of(worker, trainers, rank)))
        settings.tell_every_s = math.inf
        peers = Peers(lambda membership=membership: membership, VirtualKVStore(server, rank), client)
        context = Context(config, stub_network.learning_task(1, None), peers, settings)
        trainer = _Watched(context, Settings(local_lr=0.1, query="blocking" if waits else "non-blocking"))
        trainer.noted, trainer.transmission_s = [], worker.transmission_s
        trainers.append(trainer)
    with tempfile.TemporaryDirectory() as folder:
        folders = [Path(folder) / str(rank) for rank in range(len(workers))]
        for each in folders:
            each.mkdir()
        run_all(
            clock, [partial(Loop(one).run, lambda at=at: at) for one, at in zip(trainers, folders, strict=True)], until
        )
    return Outcome(_rounds([trainer.noted for trainer in trainers]), state_server, trainers[0].noted[0].began)


def _pace_of(worker: Worker, trainers: Sequence[_Watched], rank: int) -> Callable[[], float]:
    def pace() -> float:
        trainer = trainers[rank]
        return worker.pace(trainer.rounds, trainer.steps + 1) if trainer.rounds else 1.0

    return pace


def _rounds(noted: Sequence[Sequence[_Noted]]) -> list[list[Round]]:
    complete = min(sum(not math.isnan(each.ended) for each in of_worker) for of_worker in noted)
    last_arrived = [max(of_worker[number].arrived for of_worker in noted) for number in range(complete)]
    return [
        [
            Round(
                each.steps, each.computed_s, each.abandoned_s, last_arrived[number] - each.arrived,
                each.ended - each.began,
            )
            for number, each in enumerate(of_worker[:complete])
        ]
        for of_worker in noted
    ]  # fmt: skip
