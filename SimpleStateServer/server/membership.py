"""Who takes part in a job whose workers sum among themselves: a pure function, like the policies.

`decide(table, event, now) -> (table, answer, reason)`, without Django, lock or clock. Workers JOIN with the address at
which they listen, and again until enough are there: then each is told its rank and all addresses, and they are a
generation. A worker that is gone is told of by LEFT: its own, or those of others, whose connections with it have ended.
Whoever loses a worker loses others soon after, since nobody goes on alone: the first word counts as the cause.

Ranks follow the addresses, then the ports. So they are the same in each run where these are, in whatever order the
workers came; and they are the ranks that MXNet's scheduler gives to workers of one host.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from server.conflict import Conflict
from server.messages import Call, Join, Left, Member, Place

WAITING_S = 10.0  # a worker that was not heard for so long does not wait any more: it asks several times a second
FEW = 5  # names in one sentence


class Waiting(NamedTuple):
    """A worker that waits for others, and when it was heard."""

    member: Member
    heard: float


@dataclass(frozen=True, slots=True)
class Table:
    """What is known of the workers of one job.

    Attributes:
        waiting: those that wait for others, in the order in which they came.
        num_workers: for how many they wait.
        generation: how many times workers have started.
        members: those that started last, by rank.
        left: ranks of those of them that have left.
        cause: why the first of them left that did not leave in order; empty while all is well.
    """

    waiting: tuple[Waiting, ...] = ()
    num_workers: int = 0
    generation: int = 0
    members: tuple[Member, ...] = ()
    left: frozenset[int] = frozenset()
    cause: str = ""

    def rank_of(self, name: str) -> int | None:
        """Of a worker that has started and not left."""
        ranks = (rank for rank, member in enumerate(self.members) if member.name == name and rank not in self.left)
        return next(ranks, None)


class Answer(NamedTuple):
    """To the one who has spoken.

    Attributes:
        call: what it does next; None: there is nothing to do.
        place: its own, where the call is START.
    """

    call: Call | None = None
    place: Place | None = None


class Decision(NamedTuple):
    """The table from now on, the answer, and why, in words."""

    table: Table
    answer: Answer
    reason: str


def decide(table: Table, event: Join | Left, now: float) -> Decision:
    """What follows from a message. One that comes twice gets the same answer.

    Args:
        now: seconds.

    Raises:
        Conflict: a worker expects another number of workers than those that wait.
    """
    return _join(table, event, now) if isinstance(event, Join) else _left(table, event)


def _join(table: Table, event: Join, now: float) -> Decision:
    newcomer = event.member
    if table.rank_of(newcomer.name) is not None:  # it asks again, since the answer was lost
        return _start(table, newcomer)
    others = [one for one in table.waiting if now - one.heard <= WAITING_S and not _is_replaced(one.member, newcomer)]
    if others and event.num_workers != table.num_workers:
        raise Conflict(
            "job-settings",
            f"{names([one.member for one in others])} wait(s) for a job {event.job!r} of {table.num_workers} workers, "
            f"and {name(newcomer)} for one of {event.num_workers}: give all the same DMLC_NUM_WORKER, or each job a "
            "name of its own (--job)",
        )
    waiting = (*others, Waiting(newcomer, now))
    if len(waiting) < event.num_workers:
        table = replace(table, waiting=waiting, num_workers=event.num_workers)
        there = names([one.member for one in waiting])
        reason = f"{len(waiting)} of {event.num_workers} workers of job {event.job!r} are there: {there}"
        return Decision(table, Answer(Call.WAIT), reason)
    members = tuple(sorted((one.member for one in waiting), key=_place_of))
    return _start(Table(generation=table.generation + 1, members=members), newcomer)


def _start(table: Table, member: Member) -> Decision:
    rank = table.rank_of(member.name)
    assert rank is not None
    place = Place(table.generation, rank, table.members)
    reason = f"worker {rank} of {len(table.members)} in generation {table.generation}"
    return Decision(table, Answer(Call.START, place), reason)


def _left(table: Table, event: Left) -> Decision:
    waiting = tuple(one for one in table.waiting if one.member.name != event.sender)
    table = replace(table, waiting=waiting)
    rank = table.rank_of(event.sender)
    if rank is None:
        return Decision(table, Answer(), table.cause or "nobody waits for this worker")
    lost = [other for other in event.lost if other < len(table.members)]
    cause = table.cause
    if not cause and event.cause:
        cause = f"{name(table.members[rank], rank)} has ended: {event.cause}"
    elif not cause and lost:
        gone = "is gone: it was" if len(lost) == 1 else "are gone: they were"
        cause = f"{names([table.members[other] for other in lost], lost)} {gone} killed or crashed"
    table = replace(table, left=table.left | {rank}, cause=cause)
    return Decision(table, Answer(), cause or f"worker {rank} has left")


def _is_replaced(waiting: Member, newcomer: Member) -> bool:
    """Whether it is the same worker, or one that took its place: two processes cannot listen at one address."""
    return waiting.name == newcomer.name or (waiting.address, waiting.port) == (newcomer.address, newcomer.port)


def _place_of(member: Member) -> tuple[bool, int, str, int]:
    """What the ranks follow: IPv4 addresses as numbers, then names of hosts; then the port."""
    try:
        return (False, int(ipaddress.ip_address(member.address)), "", member.port)
    except ValueError:
        return (True, 0, member.address, member.port)


def name(member: Member, rank: int | None = None) -> str:
    """What a person calls a worker, such as "worker 2 (gpu0 on host b, 10.0.0.3:4711)"."""
    of_rank = "" if rank is None else f" {rank}"
    device, host = member.device.device, member.device.host
    place = " on host ".join(filter(None, (device, host)))
    address = f"{member.address}:{member.port}"
    return f"worker{of_rank} ({f'{place}, ' if place else ''}{address})"


def names(members: Sequence[Member], ranks: Sequence[int] | None = None) -> str:
    """Several; of many the first."""
    of_ranks = ranks if ranks is not None else [None] * len(members)
    listed = [name(member, rank) for member, rank in zip(members, of_ranks, strict=True)][:FEW]
    more = f" and {len(members) - FEW} more" if len(members) > FEW else ""
    return ", ".join(listed) + more
