"""How the processes of a job meet, and which of them are members: a pure function, like the policies.

`decide(group, event, now) -> (group, answer, reason)`, without Django, lock or clock. The state server applies it to
workers that sum among themselves, the scheduler to the processes that MXNet connects. They JOIN with the address at
which they listen and their set-up, and again until all are there. Where the set-ups differ, all are refused. Before
MXNet connects them, which would wait for ever, processes also call each other. Then each is told its rank and all
addresses, and they are a generation. LEFT tells that a worker is gone: its own, or one of others, whose connections
with it have ended. All workers end soon after one is lost, so the first LEFT counts as the cause. One with an error,
from a process that has not joined, ends those that wait for it.

Where the job is to survive (Join.min_workers), those that lost a worker come back with JOIN, and with those that wait
they are the next generation:

    a lost worker, or PAUSE to rank 0's BEAT --> each member JOINs again --> all who are not gone are back: START

Members tell which others they have seen to be gone, and which they hear. Each calls the others that are there, and
tells which have answered; two that hear each other need no call. Two can exchange where one of them has reached the
other, which then calls. Of those that come back as many start as can all exchange with each other (reach.py). The
others wait like newcomers: they go on testing, and the job pauses for one only once it has reached all members. One
that does not come back counts as lost once all others have called it in vain, or, since it is cut off from this server,
after Join.patience. A member that is left out again and again, as over a link that fails now and then, is taken in
after 2, 4, 8, ... s: each time costs the others a pause.

One job never becomes two. A generation trains only while all of its members take part in it, and the next one begins
only once a member of the newest has come back from it, or all of them have ended: by their launcher's word, or since
others listen in their places. No time-out ends a generation. A member of another one, which was left out or asks a
server that knows another job, hears REGROUP and comes back. What the group knows outlives a server that keeps a
journal (journal.py). One without a journal learns it from the places of the workers: it adopts the newest only when it
has heard all members of it, or the launcher has seen the others end and it has heard all that live. A successor of an
older generation is possible there (a fork), where all members of the newest end together with the server.

Ranks follow the addresses, then the ports. So they are the same in each run where these are, in whatever order the
workers came; and they are the ranks that MXNet's scheduler gives to workers of one host.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from server.errors import Conflict
from server.messages import MAX_MEMBERS, Beat, Call, Join, Launched, Left, Member, Place
from server.rendezvous.reach import Cut, heaviest_group
from server.setups import Setup, differences, join_names, verdict

WAITING_S = 10.0  # without a message a worker counts as gone: it asks several times a second
ALIVE_S = 2.0  # likewise, where the others would wait for it again
GONE_S = 30.0  # without a message of its members a job is silent; one that ends with a loss has ended
FIRST_WAIT_S, LONGEST_WAIT_S = 2.0, 60.0  # of one that was left out for the second time, and for the seventh
FORGET_S = 60.0  # without being left out
SETTLE_S = 3.0  # for more to come, after a process with another number of processes
MEMBER = MAX_MEMBERS + 1  # weight of a member: no number of newcomers takes its place
_OPEN_PORTS = (
    "Open these ports in the firewalls (PORT fixes the port of a process), and see that DMLC_INTERFACE on the host "
    "that cannot be reached names the card that leads to the others (of several hosts, none can take lo)"
)


class Waiting(NamedTuple):
    """A waiting process, its last message, the time of that, the names of those that it has reached, and of those in
    the newest generation, from which it comes, that it hears."""

    member: Member
    event: Join
    heard: float
    reached: frozenset[str] | None
    hears: frozenset[str] = frozenset()

    @classmethod
    def of(cls, event: Join, now: float, newest: str = "") -> Waiting:
        """`newest` is the id of the newest generation."""
        reached = None if event.reached is None else frozenset(event.reached)
        before = event.before
        members = before.members if before and before.id == newest else ()
        hears = frozenset(members[rank].name for rank in event.heard if rank < len(members))
        return cls(event.member, event, now, reached, hears)

    def is_with(self, other: Waiting) -> bool:
        """Whether the two hear each other."""
        return other.member.name in self.hears and self.member.name in other.hears


class LauncherReport(NamedTuple):
    """What a launcher knew of its processes when it started one of them."""

    process: Launched
    living: frozenset[int]  # numbers of the others that it had not seen end

    def has_ended(self, name: str) -> bool:
        """Whether the process of this name has certainly ended."""
        other = Launched.of(name)
        if other is None or other.launcher != self.process.launcher:
            return False
        return other.number < self.process.number and other.number not in self.living

    def unheard(self, heard_from: Collection[str]) -> list[str]:
        """The living whose names are not among these."""
        heard = {
            found.number for found in map(Launched.of, heard_from) if found and found.launcher == self.process.launcher
        }
        return [f"process {number} of the launcher" for number in sorted(self.living - heard)]


@dataclass(frozen=True, slots=True)
class Group:
    """The processes of one job."""

    waiting: tuple[Waiting, ...] = ()  # those that wait for others, in the order in which they came
    found: Mapping[str, str] = field(default_factory=dict)  # the differences of their set-ups, in words
    since_odd: float | None = None  # from when on they wait for several numbers of processes
    refused: frozenset[str] = frozenset()  # names of those that were refused together
    refusal: str = ""  # why
    failed: tuple[float, str] = (-math.inf, "")  # when a process has ended before the job began, and why
    setup: Setup = field(default_factory=dict)  # of the members, where it is known
    generation: int = 0  # how many times workers have started; 0: none have, or this server has no record of it
    id: str = ""  # of the generation, as in Place
    lineage: str = ""  # likewise
    report: LauncherReport | None = None  # the newest one
    heard_from: Mapping[str, Place | None] = field(default_factory=dict)  # by name, while there is no record: places
    members: tuple[Member, ...] = ()  # those that started last, by rank
    # Ranks of pairs of members in which the first one calls; in the others the higher rank does
    calls: tuple[tuple[int, int], ...] = ()
    left: frozenset[int] = frozenset()  # ranks of members that have left, or have certainly ended
    cause: str = ""  # of the first departure out of order; empty before
    survives: bool = False  # the job continues without lost members
    lost: frozenset[int] = frozenset()  # ranks of members that others have seen to be gone
    heard: float = 0.0  # time of a member's last message, in a job that survives
    asked: float = 0.0  # time of the last message
    since: float = 0.0  # from when on there were messages all the time: before, this server may have been away
    forming: float | None = None  # when the first member came back for the next generation; None: none has
    is_over: bool = False  # the last member of a job that survives has left in order
    late: frozenset[str] = frozenset()  # names of workers that waited to take part when it did
    # How many times workers were left out of a generation after theirs, and when last, by name
    lapses: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def there(self) -> dict[int, Member]:
        """The members that have neither left nor been lost, by rank."""
        gone = self.left | self.lost
        return {rank: member for rank, member in enumerate(self.members) if rank not in gone}

    @property
    def is_at_work(self) -> bool:
        """Whether the job survives and one of its members may be alive: then others join it, and begin none beside."""
        return self.survives and not self.is_over and len(self.left) < len(self.members)

    def due(self, name: str) -> float:
        """From when on a worker that waits may take part."""
        count, last = self.lapses.get(name, (0, 0.0))
        return last + min(FIRST_WAIT_S * 2 ** (count - 2), LONGEST_WAIT_S) if count > 1 else 0.0

    def lapsed(self, names: Iterable[str], now: float) -> dict[str, tuple[int, float]]:
        """The lapses with those of these workers now."""
        kept = {name: (count, last) for name, (count, last) in self.lapses.items() if now - last <= FORGET_S}
        return kept | {name: (kept.get(name, (0, now))[0] + 1, now) for name in names}

    def rank_of(self, name: str) -> int | None:
        """Of a worker that has started and has not left."""
        ranks = (rank for rank, member in enumerate(self.members) if member.name == name and rank not in self.left)
        return next(ranks, None)


class Assignment(NamedTuple):
    """The answer to a worker."""

    call: Call | None = None  # its next action; None: nothing to do
    place: Place | None = None  # its own, where the call is START
    # Those that it is to call for a test, where the call is WAIT
    others: tuple[Member, ...] = ()
    calls: tuple[tuple[int, int], ...] = ()  # as in Group, where the call is START


class Outcome(NamedTuple):
    """The new group, the answer, and the reason in words."""

    group: Group
    answer: Assignment
    reason: str


def decide(group: Group, event: Join | Beat | Left, now: float, plain: int = 0, drawn: str = "") -> Outcome:
    """Applies a message. One that comes twice gets the same answer. `plain` is the number of programs that take part,
    in the place of servers or workers, and send no messages; `drawn` becomes the id of a generation that the message
    begins. Raises Conflict where a worker expects another number of workers than those that wait."""
    if isinstance(event, Left):
        return _left(group, event, now)
    group = replace(group, report=_newest_report(group.report, event))
    before = event.before
    if before is not None and before.generation > group.generation > 0 and before.lineage == group.lineage:
        group = Group(report=group.report)  # the record is older than the job
    if not group.generation and (before is not None or group.heard_from):
        group, missing = _recollect(group, event, now)
        if missing:
            reason = f"this state server has no record of job {event.job!r}, and waits to hear from {missing}"
            return Outcome(group, Assignment(Call.WAIT if isinstance(event, Join) else None), reason)
    group = replace(group, asked=now, since=now if now - group.asked > ALIVE_S else group.since)
    return _join(group, event, now, plain, drawn) if isinstance(event, Join) else _beat(group, event, now)


def _newest_report(known: LauncherReport | None, event: Join | Beat) -> LauncherReport | None:
    """Of the known one and that of the message: of one launcher the later, of two launchers that of the sender's."""
    process = Launched.of(event.sender)
    if process is None or isinstance(event, Beat):
        return known
    if known is not None and known.process.launcher == process.launcher and known.process.number >= process.number:
        return known
    return LauncherReport(process, frozenset(event.living))


def _recollect(group: Group, event: Join | Beat, now: float) -> tuple[Group, str]:
    """Learns the newest generation from the places of the workers, on a server without a record of it. Returns the
    group, and for whom it waits, in words: all members of the newest generation, each of which comes from there or from
    an older one; where some have ended by the launcher's word, all that live, since one may come from a newer one."""
    told = (group.heard_from.get(event.sender), event.before)  # a message may be late
    newer = max((place for place in told if place), key=lambda place: place.generation, default=None)
    group = replace(group, heard_from={**group.heard_from, event.sender: newer})
    places = [place for place in group.heard_from.values() if place is not None]
    newest = max(places, key=lambda place: place.generation)
    ended = frozenset(
        rank for rank, member in enumerate(newest.members) if group.report and group.report.has_ended(member.name)
    )
    missing = [
        member.called(rank)
        for rank, member in enumerate(newest.members)
        if rank not in ended and member.name not in group.heard_from
    ]
    if ended and group.report is not None:
        missing += group.report.unheard(group.heard_from)
    if missing:
        return group, join_names(missing)
    known = Group(
        generation=newest.generation, id=newest.id, lineage=newest.lineage, members=newest.members, left=ended
    )
    return replace(known, report=group.report, setup=event.setup, survives=True, heard=now), ""


def _join(group: Group, event: Join, now: float, plain: int, drawn: str) -> Outcome:
    if event.sender in group.refused:
        return Outcome(group, Assignment(Call.REFUSED), group.refusal)
    newcomer, before = event.member, event.before
    if group.survives:
        group = replace(group, left=group.left | _ended(group, newcomer))
    is_member = group.rank_of(newcomer.name) is not None
    if is_member and (before is None or before.id != group.id):
        return _start(group, newcomer)  # it asks again, since the answer was lost
    if event.min_workers is not None and group.is_at_work:
        at_work = (group.members[0].called(0), group.setup)
        found = "" if before else verdict(differences([at_work, (newcomer.called(), event.setup)]))
        if found and group.setup != event.setup:
            return Outcome(group, Assignment(Call.REFUSED), f"{found} (worker 0 is at work)")
        return _come_back(group, event, now, drawn)
    if group.is_over and (newcomer.name in group.late or before is not None):
        return Outcome(group, Assignment(Call.OVER), f"job {event.job!r} has ended")
    return _meet(group, event, now, plain, drawn)


def _meet(group: Group, event: Join, now: float, plain: int, drawn: str) -> Outcome:
    """The processes that wait begin the job once all are there, agree and, where MXNet connects them, reach each
    other."""
    me, (failed, why) = event.member, group.failed
    if now - failed <= WAITING_S:
        return Outcome(group, Assignment(Call.REFUSED), why)
    others = [one for one in group.waiting if now - one.heard <= WAITING_S and not _is_replaced(one.member, me)]
    odd = [one for one in others if one.event.num_workers != event.num_workers]
    if odd and not event.num_servers and not group.survives:  # one state server may have another job of this name
        raise Conflict(
            "job-settings",
            f"{names([one.member for one in odd])} wait(s) for a job {event.job!r} of {odd[0].event.num_workers} "
            f"workers, and {me.called()} for one of {event.num_workers}: give all the same DMLC_NUM_WORKER, or each "
            "job a name of its own (--job-name)",
        )
    waiting = (*others, Waiting.of(event, now))
    is_known = len(waiting) == len(group.waiting) and any(one.member.name == me.name for one in group.waiting)
    found = group.found if is_known else differences((one.member.called(), one.event.setup) for one in waiting)
    since_odd = group.since_odd
    if found.keys().isdisjoint({"DMLC_NUM_SERVER", "DMLC_NUM_WORKER"}):
        since_odd = None
    elif since_odd is None:  # such a job can never be complete
        since_odd = now
    group = replace(group, waiting=waiting, found=found, since_odd=since_odd)
    lacking = _lacking(waiting, plain)
    if found and (not lacking or (since_odd is not None and now - since_odd > SETTLE_S)):
        return _refuse(group, verdict(found))
    reason = f"{lacking} of job {event.job!r} are missing"
    if not lacking and event.num_servers:
        if closed := _closed(waiting):
            return _refuse(group, f"{'; '.join(closed)}. {_OPEN_PORTS}")
        if any(True for one in waiting for _ in _to_call(one, waiting)):
            lacking = reason = f"the processes of job {event.job!r} try each other's ports"
    if not lacking:
        return _start(_next(replace(group, lineage=""), waiting, now, event.min_workers is not None, drawn), me)
    reason = "; ".join([reason, f"here are {names([one.member for one in waiting])}", *found.values()])
    to_call = _to_call(waiting[-1], waiting) if event.num_servers else ()
    return Outcome(group, Assignment(Call.WAIT, others=tuple(to_call)), reason)


def _refuse(group: Group, why: str) -> Outcome:
    """Turns all away that wait, also when they ask again."""
    refused = frozenset(one.member.name for one in group.waiting)
    group = replace(group, waiting=(), since_odd=None, refused=refused, refusal=why)
    return Outcome(group, Assignment(Call.REFUSED), why)


def _lacking(waiting: Sequence[Waiting], plain: int) -> str:
    """The missing processes, in words; empty if the job is complete."""
    first = next((one for one in waiting if one.member.role == "scheduler"), waiting[-1]).event
    there = Counter[str](one.member.role for one in waiting)
    wanted = {"scheduler": int(first.num_servers > 0), "server": first.num_servers, "worker": first.num_workers}
    lacking = {role: number - there[role] for role, number in wanted.items() if number > there[role]}
    total = sum(lacking.values())
    if total <= plain and "scheduler" not in lacking:
        return ""
    of = " and ".join(f"{count} {role}(s)" for role, count in lacking.items())
    return f"{total - plain} of {of}" if plain else of


def _to_call(one: Waiting, waiting: Sequence[Waiting]) -> Iterator[Member]:
    """The processes with which MXNet connects this one, and which it has not reached yet."""
    for other in waiting:
        if other.member.role != one.member.role and other.member.name not in (one.reached or ()):
            yield other.member


def _closed(waiting: Sequence[Waiting]) -> list[str]:
    """A sentence for each process that cannot be reached, with those that cannot reach it."""
    there = {one.member.name: one for one in waiting}
    callers: dict[str, list[str]] = defaultdict(list)
    for one in waiting:
        for name, why in one.event.unreached.items():
            if name in there:
                card = there[name].event.interface
                with_card = f" with DMLC_INTERFACE={card}" if card else ""
                callers[f"{there[name].member.called()}{with_card} ({why})"].append(one.member.called())
    return [f"{each} cannot be reached from {join_names(names)}" for each, names in callers.items()]


def _come_back(group: Group, event: Join, now: float, drawn: str) -> Outcome:
    """A member of a running job comes back, or a new worker joins."""
    me = group.rank_of(event.member.name)
    seen = set(event.lost) - group.left - group.lost if me is not None else set()
    gone = {group.members[rank].name for rank in seen if rank < len(group.members)}
    others = [
        one
        for one in group.waiting
        if now - one.heard <= ALIVE_S and not _is_replaced(one.member, event.member) and one.member.name not in gone
    ]
    mine = Waiting.of(event, now, group.id)
    waiting = (*others, mine)
    if me is not None:  # it is alive, whatever others have seen
        lost = (group.lost | seen) - {me}
        forming = now if group.forming is None else max(group.forming, group.since)
        group = replace(group, lost=lost, heard=now, forming=forming)
    group = replace(group, waiting=waiting)
    by_name = {member.name: member for member in (*group.there.values(), *(one.member for one in waiting))}
    del by_name[event.member.name]
    back = {one.member.name: one for one in waiting if group.rank_of(one.member.name) is not None}
    met = {one.member.name for one in waiting if one.is_with(mine)}
    # One that is not back, and that all who are hear, may hear them as well
    met |= mine.hears.intersection(*(one.hears for one in back.values())) - {one.member.name for one in waiting}
    wait = Assignment(Call.WAIT, others=tuple(member for name, member in by_name.items() if name not in met))
    if group.forming is None:
        return Outcome(group, wait, f"job {event.job!r} is at work, and {_when_taken_in(group, event, now)}")
    is_late = now - group.forming > event.patience
    in_vain = set.intersection(*({*one.event.unreached} for one in back.values())) if back else set()
    missing = {rank: one for rank, one in group.there.items() if one.name not in back.keys() | in_vain}
    if missing and not is_late:
        reason = f"generation {group.generation + 1} of job {event.job!r} waits for "
        return Outcome(group, wait, reason + names(missing))
    cuts, untested = _cuts(waiting)
    tests = set() if is_late else {pair for pair in untested if pair <= back.keys()}
    weights = {member.name: MEMBER for member in group.members if member.name in back}
    newcomers = (one.member.name for one in waiting if one.member.name not in back)
    are_few = len(back) < (event.min_workers or 1)
    weights |= {name: 1 for name in newcomers if are_few or group.due(name) <= now}
    chosen = heaviest_group(weights, cuts | (untested - tests))
    if any(pair <= chosen for pair in tests):
        reason = f"the workers of generation {group.generation + 1} of job {event.job!r} test whether they can exchange"
        return Outcome(group, wait, reason)
    if len(chosen) < (event.min_workers or 1):
        reason = f"{len(chosen)} of at least {event.min_workers} workers (--min-workers) of job {event.job!r} are there"
        return Outcome(group, wait, reason)
    left_out = tuple(one._replace(hears=frozenset()) for one in waiting if one.member.name not in chosen)
    lapses = group.lapsed(
        {member.name for rank, member in enumerate(group.members) if rank not in group.left} - chosen, now
    )
    group = _next(group, [one for one in waiting if one.member.name in chosen], now, True, drawn)
    group = replace(group, waiting=left_out, lapses=lapses)
    if event.member.name in chosen:
        return _start(group, event.member)
    return Outcome(group, wait, f"job {event.job!r} is at work, and {_when_taken_in(group, event, now)}")


def _cuts(waiting: Sequence[Waiting]) -> tuple[set[Cut], set[Cut]]:
    """Pairs that cannot exchange, since both have called in vain; pairs of which neither has reached the other yet."""
    tests = {one.member.name: one for one in waiting if one.reached is not None}
    cuts: set[Cut] = set()
    untested: set[Cut] = set()
    for name, one in tests.items():
        for other in tests.keys() - (one.reached or ()) - {name}:
            if name not in (tests[other].reached or ()) and not one.is_with(tests[other]):
                is_cut = other in one.event.unreached and name in tests[other].event.unreached
                (cuts if is_cut else untested).add(frozenset((name, other)))
    return cuts, untested


def _when_taken_in(group: Group, event: Join, now: float) -> str:
    """When a worker that waits takes part in a job at work, in words."""
    if now - max(group.heard, group.since) > GONE_S:
        there = names(group.there)
        return f"none of its workers is heard: {there}. If all have ended, start the state server with --begin-anew"
    unreached = {rank: member for rank, member in group.there.items() if member.name in event.unreached}
    if unreached:
        return f"takes this worker in once it reaches {names(unreached)}"
    if group.due(event.sender) > now:
        return f"has lost this worker {group.lapses[event.sender][0]} times: it takes it in after a while"
    return "takes this worker in between two rounds"


def _next(group: Group, waiting: Sequence[Waiting], now: float, survives: bool, drawn: str) -> Group:
    """The next generation: all that wait."""
    found = sorted(waiting, key=lambda one: _place_of(one.member))
    before = {(group.members[low].name, group.members[high].name) for low, high in group.calls}
    calls = tuple(
        (low, high)
        for high, one in enumerate(found)
        for low, other in enumerate(found[:high] if one.reached is not None else ())
        if other.member.name not in (one.reached or ())
        and (one.member.name in (other.reached or ()) or (other.member.name, one.member.name) in before)
    )
    members = tuple(one.member for one in found)
    known = Group(setup=found[0].event.setup, survives=survives, heard=now, report=group.report)
    known = replace(known, generation=group.generation + 1, members=members, calls=calls)
    return replace(known, id=drawn, lineage=group.lineage or drawn)


def _beat(group: Group, event: Beat, now: float) -> Outcome:
    if group.rank_of(event.sender) is None or event.before.id != group.id:
        why = f"this worker is not in the newest generation of job {event.job!r}"
        return Outcome(group, Assignment(Call.REGROUP), why)
    there = {member.name for member in group.there.values()}
    others = [one for one in group.waiting if now - one.heard <= ALIVE_S]
    able = [one.member for one in others if one.reached is None or there <= one.reached]
    newcomers = [member for member in able if group.due(member.name) <= now]
    group = replace(group, heard=now)
    if not newcomers or group.forming is not None:
        return Outcome(group, Assignment(), f"generation {group.generation} is at work")
    return Outcome(group, Assignment(Call.PAUSE), f"{names(newcomers)} wait(s) to take part")


def _start(group: Group, member: Member) -> Outcome:
    rank = group.rank_of(member.name)
    assert rank is not None
    place = Place(group.generation, rank, group.members, group.id, group.lineage)
    reason = f"worker {rank} of {len(group.members)} in generation {group.generation}"
    return Outcome(group, Assignment(Call.START, place, calls=group.calls), reason)


def _left(group: Group, event: Left, now: float) -> Outcome:
    is_known = any(event.sender == member.name for member in group.members)
    if event.cause and not is_known and not group.is_at_work:  # without it the job cannot begin
        return _refuse(replace(group, failed=(now, event.cause)), event.cause)
    waiting = tuple(one for one in group.waiting if one.member.name != event.sender)
    group = replace(group, waiting=waiting)
    rank = group.rank_of(event.sender)
    if rank is None:
        return Outcome(group, Assignment(), group.cause or "no worker waits for this one")
    lost = {} if group.survives else {other: group.members[other] for other in event.lost if other < len(group.members)}
    cause = group.cause
    if not cause and event.cause:
        cause = f"{group.members[rank].called(rank)} has ended: {event.cause}"
    elif not cause and lost:
        gone = "is gone: it was" if len(lost) == 1 else "are gone: they were"
        cause = f"{names(lost)} {gone} killed or crashed"
    group = replace(group, left=group.left | {rank}, cause=cause)
    if group.survives and len(group.left | group.lost) == len(group.members):  # those that still wait came too late
        late = frozenset(one.member.name for one in group.waiting)
        group = replace(group, is_over=True, late=late, waiting=())
    return Outcome(group, Assignment(), cause or f"worker {rank} has left")


def _is_replaced(waiting: Member, newcomer: Member) -> bool:
    """Whether it is the same worker, or its successor: two processes cannot listen at one address."""
    if waiting.name == newcomer.name or (waiting.address, waiting.port) != (newcomer.address, newcomer.port):
        return waiting.name == newcomer.name
    one, other = Launched.of(waiting.name), Launched.of(newcomer.name)
    is_later = one is not None and other is not None and one.launcher == other.launcher and one.number > other.number
    return not is_later  # else the newcomer's message is late


def _ended(group: Group, newcomer: Member) -> set[int]:
    """Ranks of members that have certainly ended: by their launcher's word, or since another process listens in their
    place."""
    return {
        rank
        for rank, member in enumerate(group.members)
        if member.name != newcomer.name
        and (_is_replaced(member, newcomer) or (group.report is not None and group.report.has_ended(member.name)))
    }


def _place_of(member: Member) -> tuple[bool, int, str, int]:
    """Sort key of the ranks: IP addresses as numbers, then host names; then the port."""
    try:
        return (False, int(ipaddress.ip_address(member.address)), "", member.port)
    except ValueError:
        return (True, 0, member.address, member.port)


def names(members: Mapping[int, Member] | Sequence[Member]) -> str:
    """Several workers, with their ranks where these are given; of many the first ones."""
    if isinstance(members, Mapping):
        return join_names([member.called(rank) for rank, member in members.items()])
    return join_names([member.called() for member in members])
