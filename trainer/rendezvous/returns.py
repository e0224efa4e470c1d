"""Losses of workers from a job at work beside a parameter server, and their returns, as the scheduler counts them.

A new process on the device of a lost worker asks for its place. In MXNet's cluster it takes that itself (rejoining.py):

    JOIN --the place is free--> START --MXNet connects it, heartbeats begin--> its rank --> it trains: it is back
      +--not within RETURN_S------+--not within RETURN_S, or without heartbeats--+--> it is sent away
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

import msgspec

from trainer.membership import lost_of, number_of_change
from trainer.rendezvous.config_check import differences, verdict
from trainer.rendezvous.participant import Participant
from trainer.runtime.environment import INTERVAL
from utils import EXIT_PEER_LOST, EXIT_SETUP, SetupError

# isort: split
from server.membership import Assignment
from server.messages import Call, Join, Member, Place

RETURN_S = 120.0  # for a worker to take the place of a lost one, and for that place to become free
ALARM_S = 3.0  # from a worker's first heartbeat until no alarm about the one before it can come (heartbeat.py)


def rank_on_device(workers: Mapping[int, Join], join: Join) -> int | None:
    """Of the worker, perhaps lost, of the same device of the same host; None: there is none."""
    same = (rank for rank, old in workers.items() if (old.device, old.address) == (join.device, join.address))
    return next(same, None)


def offer(
    join: Join, workers: Mapping[int, Join], free: frozenset[int], others: Sequence[Member], generation: int
) -> tuple[int, Assignment, str]:
    """What a worker is told that asks for the place of a lost one, and its rank: a pure function.

    Args:
        workers: by rank, with the lost ones.
        free: ranks of lost workers whose place no other process takes.
        others: scheduler and parameter servers, those of each role by rank.

    Raises:
        SetupError: no worker has ever had this place, or one with another set-up.
    """
    rank = rank_on_device(workers, join)
    if rank is None:
        raise SetupError("this job has no worker on this device")
    before = workers[rank]
    if found := verdict(differences([(each.member.called(), each.setup) for each in (before, join)])):
        raise SetupError(f"{found} (the job is at work)")
    if rank not in free:
        return rank, Assignment(Call.WAIT), f"{before.member.called(rank)} is still there"
    members = [*others, *(workers[each].member for each in sorted(workers))]
    at = members.index(before.member)
    members[at] = msgspec.structs.replace(join.member, port=before.port)
    return rank, Assignment(Call.START, Place(generation, at, tuple(members))), f"takes the place of worker {rank}"


class Returns:
    """The lost workers of a job, and those that come back."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, tell_all: Callable[..., None], drop: Callable[[Participant], None]
    ) -> None:
        """`tell_all` sends a message to all processes; `drop` acts on the end of a connection, also again."""
        self._loop, self._tell_all, self._drop = loop, tell_all, drop
        self.workers: dict[int, Join] = {}  # by rank, also of the lost
        self.done: set[int] = set()  # ranks of workers that have said good-bye
        self.began = 0.0  # when all were about to train
        self._changes: dict[int, int] = {}  # as context.Peers has them
        self._num_changes = 0

    @property
    def lost(self) -> frozenset[int]:
        """Ranks of workers that the job has lost."""
        return lost_of(self._changes)

    def expect(self, participant: Participant) -> None:
        """A worker waits for the place of a lost one, or for that one's loss to be noticed."""
        participant.comes_back = True
        text = f"the worker of this device is still there after {RETURN_S:g} s: start no more"
        self._loop.call_later(RETURN_S, self._give_up, participant, None, text, EXIT_SETUP)

    def offer_place(self, participant: Participant, join: Join, known: Sequence[Participant]) -> tuple[Assignment, str]:
        """As `offer`; the worker has the place with START. `known`: the processes that are there."""
        free = self.lost - {each.worker_rank for each in known}
        others = sorted((each for each in known if each.role != "worker"), key=lambda each: each.rank or 0)
        members = [each.process.member for each in others if each.process]
        rank, answer, reason = offer(join, self.workers, free, members, self._num_changes + 1)
        if answer.call is Call.START:
            participant.rank = rank
            participant.process = self.workers[rank] = msgspec.structs.replace(join, port=self.workers[rank].port)
            text = f"it did not train within {RETURN_S:g} s"
            self._loop.call_later(RETURN_S, self._give_up, participant, rank, text, EXIT_PEER_LOST)
        return answer, reason

    def note_rank(self, participant: Participant, rank: int) -> None:
        """MXNet has connected it; a worker that comes back gets the number of its return, which it tells servers."""
        participant.rank = rank
        if participant.role == "worker" and participant.process:
            self.workers[rank] = participant.process
        if participant.comes_back:
            participant.number = self._next(is_lost=False)
            participant.no_alarm_before = self._loop.time() + int(os.environ.get(INTERVAL) or 0) + ALARM_S
            changes = [*{**self._changes, rank: participant.number}.items()]
            participant.send(changes=changes, age=self._loop.time() - self.began)

    def take_back(self, participant: Participant, rank: int) -> None:
        """It is about to train."""
        participant.comes_back = False
        self._changes[rank] = participant.number
        self._tell_all(back=rank, number=participant.number, who=participant.name)

    def lose(self, rank: int, why: str) -> None:
        """A worker is lost, also one whose return a server may count already."""
        self._changes[rank] = self._next(is_lost=True)
        self._tell_all(lost=rank, number=self._changes[rank], why=why)

    def send_away(self, participant: Participant, text: str, code: int) -> None:
        """It comes back no more."""
        participant.send(end=text, code=code)
        self._drop(participant)

    def _next(self, is_lost: bool) -> int:
        self._num_changes += 1
        return number_of_change(self._num_changes, is_lost)

    def _give_up(self, participant: Participant, rank: int | None, text: str, code: int) -> None:
        """Sends a worker away that is not back in time; without a rank, one whose place was not free in time."""
        if participant.comes_back and participant.rank == rank:
            self.send_away(participant, text, code)
