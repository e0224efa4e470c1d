"""Workers of one job on a network whose links are cut and healed, in virtual time: the real Joining, Generations and
state server; in place of TCP and of training a model of both. Not a test itself.

A call and each byte need both directions of a link. A worker behind a firewall is not called, but calls others.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, pairwise, permutations
from typing import Any

from run_all import run_all

from esync.protocol import NoAnswer
from trainer.rendezvous.generations import Generations
from trainer.rendezvous.joining import Joining, Member, Start
from trainer.rendezvous.peers import PATIENCE_SHARE, SILENT_SHARE, TEST_SHARE
from trainer.simulation.in_process import InProcessLink, InProcessServer
from trainer.simulation.virtual_clock import VirtualClock
from utils import JobError, PeerLost

SERVER = -1  # in place of a worker's number
FAULT_TIMEOUT_S = 10.0
STEP_S = 0.5
POLL_S = 0.1  # between two looks at what would wake a worker
BEAT_S = 1.0
SETTLED_S, CALM_S = 35.0, 10.0  # from the last change to the end of a job; in which nothing changes any more
FIRST_PORT = 4000

Cut = tuple[int, int]  # nothing passes from the first one to the second one


@dataclass(frozen=True)
class Change:
    """From a moment on: which directions are cut, and who is behind a firewall."""

    at_s: float
    cuts: frozenset[Cut] = frozenset()
    walled: frozenset[int] = frozenset()

    def passes(self, one: int, other: int) -> bool:
        return (one, other) not in self.cuts and (other, one) not in self.cuts

    def reaches(self, one: int, other: int) -> bool:
        """Whether a call is answered."""
        return self.passes(one, other) and other not in self.walled


@dataclass(frozen=True)
class Round:
    """A round that a set of workers has done."""

    at_s: float
    generation: int
    workers: frozenset[int]


@dataclass
class _Shared:
    """What the workers of a generation share.

    Attributes:
        arrived: numbers of those that have come to each of their exchanges.
        pauses: of the complete ones, whether all have agreed to pause.
    """

    arrived: dict[int, set[int]] = field(default_factory=dict)
    votes: set[int] = field(default_factory=set)
    pauses: dict[int, bool] = field(default_factory=dict)
    open: dict[int, _Connections] = field(default_factory=dict)


class _Connections:
    """One worker's connections with the others of a generation."""

    group: Any = None

    def __init__(self, network: CutNetwork, me: int, start: Start) -> None:
        self._network, self._me = network, me
        self._others = {rank: number_of(member) for rank, member in enumerate(start.members) if rank != start.rank}
        self.all = frozenset((me, *self._others.values()))
        self._shared = network.generations.setdefault(start.generation, _Shared())
        self.is_interrupted, self._watches, self._exchanges = False, True, 0
        self._heard, self._missed = dict.fromkeys(self._others, network.clock.now()), set[int]()
        self._shared.open[me] = self
        try:
            for rank, other in self._others.items():
                calls = (start.rank, rank) in start.calls or (
                    rank < start.rank and (rank, start.rank) not in start.calls
                )
                self._wait(lambda pair=(me, other) if calls else (other, me): network.now.reaches(*pair))
            self.exchange(False, PATIENCE_SHARE * FAULT_TIMEOUT_S)
        except PeerLost:
            self.stop_watching()
            raise

    def watch(self, on_lost: Callable[..., object]) -> None:
        self._report = on_lost
        self._network.clock.start(self._watch, "watch")

    def _wait(self, condition: Callable[[], bool]) -> None:
        give_up = self._network.clock.now() + PATIENCE_SHARE * FAULT_TIMEOUT_S
        while not condition():
            if self._network.clock.now() >= give_up or self.is_interrupted or self._is_told():
                raise PeerLost("not connected")
            self._network.clock.sleep(POLL_S)

    def _is_told(self) -> bool:
        """Whether another one has closed its connections, as far as this one hears."""
        members = [self._shared.open.get(other) for other in self._others.values()]
        return any(
            other is not None and other.is_interrupted and self._network.now.passes(self._me, other._me)
            for other in members
        )

    def exchange(self, wants_pause: bool, patience_s: float = math.inf) -> bool:
        """Waits for all others; returns whether one of them wants to pause."""
        clock, network, shared = self._network.clock, self._network, self._shared
        give_up = clock.now() + patience_s
        number, self._exchanges = self._exchanges, self._exchanges + 1
        shared.arrived.setdefault(number, set()).add(self._me)
        if wants_pause:
            shared.votes.add(number)
        while number not in shared.pauses:
            if self.is_interrupted or self._is_told() or clock.now() > give_up:
                if self._exchanges > 1:
                    self._report((), "")
                raise PeerLost("another one has left")
            complete = shared.arrived[number] == self.all
            if complete and all(network.now.passes(*pair) for pair in combinations(sorted(self.all), 2)):
                shared.pauses[number] = number in shared.votes
                break
            clock.sleep(POLL_S)
        return shared.pauses[number]

    def _watch(self) -> None:
        clock, heard = self._network.clock, self._heard
        while self._watches:
            for rank, other in self._others.items():
                there = self._shared.open.get(other)
                if self._network.now.passes(self._me, other):
                    heard[rank] = clock.now()
                    if there is None or not there._watches:
                        self._missed.add(rank)
                        self._report([rank], "")
                elif clock.now() - heard[rank] > SILENT_SHARE * FAULT_TIMEOUT_S:
                    self._missed.add(rank)
                    self._report([rank], "silent")
            clock.sleep(BEAT_S)

    def heard(self) -> list[int]:
        since = self._network.clock.now() - SILENT_SHARE * FAULT_TIMEOUT_S / 2
        return [rank for rank, at in self._heard.items() if at > since and rank not in self._missed]

    def interrupt(self) -> None:
        self.is_interrupted = True

    def let_leave(self) -> None:
        self._report = lambda lost, why: None

    def stop_watching(self) -> None:
        self._watches, self.is_interrupted = False, True

    def close(self) -> None:
        self.stop_watching()


class _Link(InProcessLink):
    """A worker's way to the state server."""

    def __init__(self, network: CutNetwork, me: int) -> None:
        super().__init__(network.server, network.clock, 0.002)
        self._passes = lambda: network.now.passes(me, SERVER)

    def send(self, *message: Any) -> Any:
        if not self._passes():
            self._clock.sleep(1.0)
            raise NoAnswer("it is cut off")
        return super().send(*message)


def number_of(member: Member) -> int:
    return member.port - FIRST_PORT


class CutNetwork:
    """Runs a job.

    Attributes:
        rounds: that were done, in their order; each once for each of its workers.
    """

    def __init__(self, begin_s: Sequence[float], changes: Iterable[Change], until_s: float) -> None:
        """
        Args:
            begin_s: when each worker comes; those of 0 begin the job.
            changes: in order.
            until_s: the end of the job.
        """
        self.clock = VirtualClock()
        self.server = InProcessServer(self.clock)
        self.generations: dict[int, _Shared] = {}
        self.now = Change(0.0)
        self.rounds: list[Round] = []
        self._until_s = until_s
        self._num_workers = sum(not each for each in begin_s)
        workers = [partial(self._run, number, at_s) for number, at_s in enumerate(begin_s)]
        run_all(self.clock, [*workers, partial(self._change, changes)], until_s + 300.0)

    def _change(self, changes: Iterable[Change]) -> None:
        for change in (*changes, Change(self._until_s)):  # so that all hear of the end
            self.clock.sleep(change.at_s - self.clock.now())
            self.now = change

    def _run(self, me: int, begins_s: float) -> None:
        self.clock.sleep(begins_s)
        clock = self.clock

        def call(other: Member) -> str:
            reaches = self.now.reaches(me, number_of(other))
            clock.sleep(0.002 if reaches else TEST_SHARE * FAULT_TIMEOUT_S)
            return "" if reaches and self.now.reaches(me, number_of(other)) else "no answer"

        patience_s = PATIENCE_SHARE * FAULT_TIMEOUT_S
        about = {"num_workers": self._num_workers, "min_workers": 1, "patience": patience_s}
        about |= {"address": "10.0.0.1", "port": FIRST_PORT + me, "device": {"host": "h", "device": f"cpu{me}"}}
        joining = Joining(_Link(self, me), clock, "a", about, call)
        try:
            generations = Generations(joining, partial(_Connections, self, me), clock, joining.wait(0.0), clock.start)
            while clock.now() < self._until_s:
                self._round(generations)
        except JobError:  # the job is over
            return
        generations.taken.connections.let_leave()
        generations.leave()

    def _round(self, generations: Generations) -> None:
        self.clock.sleep(STEP_S)
        taken = generations.taken
        connections = taken.connections
        assert isinstance(connections, _Connections)
        try:
            pauses = connections.exchange(taken.newcomer_waits)
            self.rounds.append(Round(self.clock.now(), taken.start.generation, connections.all))
            if pauses:
                generations.pause()
                generations.take()
        except PeerLost:
            if not generations.taken.is_broken:
                raise
            generations.take()


def drawn(seed: int) -> tuple[list[float], list[Change], float]:
    """A random job: when its workers come, the changes of the network, and its end."""
    choose = random.Random(seed)
    number = choose.randint(2, 6)
    begin_s = [0.0] * number + [choose.uniform(3, 30) for _ in range(choose.randint(0, min(2, number - 1)))]
    everyone = [*range(len(begin_s)), SERVER]
    changes, at_s = [], 5.0
    for _ in range(choose.randint(1, 4)):
        at_s += choose.choice([choose.uniform(0, 3), choose.uniform(3, 25)])
        share = choose.choice([0.0, 0.05, 0.1, 0.3, 0.6])
        cuts = {
            pair for pair in permutations(everyone, 2) if choose.random() < share * (0.3 if SERVER in pair else 1.0)
        }
        walled = {one for one in range(len(begin_s)) if choose.random() < 0.1}
        changes.append(Change(at_s, frozenset(cuts), frozenset(walled)))
    return begin_s, changes, max(at_s, *begin_s) + SETTLED_S


def check(begin_s: Sequence[float], changes: Sequence[Change], until_s: float) -> float:
    """Runs a job. Fails unless it never becomes two, only changes stop it, and what trains at the end is a set that
    nothing can be added to; returns the longest time from a change until it trains again."""
    network = CutNetwork(begin_s, changes, until_s)
    generations, times = [each.generation for each in network.rounds], [each.at_s for each in network.rounds]
    assert generations == sorted(generations), "an older set has gone on beside a newer one"
    last, final = changes[-1], network.rounds[-1].workers
    if not any(last.passes(one, SERVER) for one in frozenset().union(*(each.workers for each in network.rounds))):
        return 0.0  # newcomers alone do not know the model
    assert times[-1] > until_s - 2 * STEP_S, "nothing trains"
    assert all(last.passes(*pair) for pair in combinations(sorted(final), 2)), "workers train that cannot exchange"
    fits = [
        one
        for one in range(len(begin_s))
        if one not in final and last.passes(one, SERVER) and all(last.reaches(one, other) for other in final)
    ]
    assert not fits, f"{fits} could train with {sorted(final)}"
    calm = {each.generation for each in network.rounds if each.at_s > until_s - CALM_S}
    assert len(calm) == 1, "a worker that cannot take part stops the others"
    begins_s = [*begin_s, *(each.at_s for each in changes)]
    pauses = [at_s for before_s, at_s in pairwise([0.0, *times]) if at_s - before_s > 3 * STEP_S]
    return max((at_s - max(each for each in begins_s if each < at_s) for at_s in pauses), default=0.0)
