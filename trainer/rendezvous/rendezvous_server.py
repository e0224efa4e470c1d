"""The scheduler's side of the rendezvous: answers JOIN by the state server's rule, and detects losses.

    WAITING --all are there, agree and reach each other--> RUNNING --all have said good-bye--> closed
       |                                                      |
       +--set-ups differ, or a port is closed--> ENDED <------+--a process is lost; all processes get the reason

With --on-worker-death continue a worker lost in RUNNING does not end the job: the others are notified, and a new
process on its host may take its place (returns.py). Since MXNet's own shutdown waits for all workers, this server
then also announces the end of the job.

One thread, one asyncio loop, JSON lines over TCP; `rendezvous_client.py` lists the lines.
"""

from __future__ import annotations

import asyncio
import enum
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from config import CONTINUE, names_of
from trainer.rendezvous import tcp_proxy
from trainer.rendezvous.config_check import differences, join_names
from trainer.rendezvous.participant import Participant, ProcessConnections
from trainer.rendezvous.rendezvous_client import ALL_DONE, GONE, LAST_GATHER
from trainer.rendezvous.returns import Returns, rank_on_device
from trainer.rendezvous.scheduler_link import JOB, log
from trainer.runtime.environment import INTERVAL
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError

# isort: split
from server.membership import Group, decide
from server.messages import Call, Join, Left, Response
from server.reach import together

SETTLE_S = 3.0  # for others to tell the same
LOOK_EVERY_S = 2.0  # between two checks that a plain MXNet program still listens
LATE_S = 15.0  # for late processes to connect and get the reason for the end
CUT = "the network between them is cut"
FAREWELL_S = 2.0  # for the other processes to end before the scheduler


class JobState(enum.Enum):
    """The phase of the job."""

    WAITING = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


class RendezvousServer(ProcessConnections):
    """Runs in a thread of the scheduler's process."""

    def __init__(
        self,
        listener: socket.socket,  # at the scheduler's published address
        num_servers: int,
        num_workers: int,
        settle_s: float = SETTLE_S,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        super().__init__(listener, 1 + num_servers + num_workers)
        self._num_servers, self._num_workers = num_servers, num_workers
        self._settle_s, self._look_every_s = settle_s, look_every_s
        self._state = JobState.WAITING
        self._group = Group()  # of the processes, until RUNNING
        self._end: dict[str, Any] = {}  # the last message to all
        self._gathered: dict[str, dict[int, Any]] = {}  # by label and rank
        self._known_values: dict[str, list[Any]] = {}  # by label, what all have gathered
        self._cannot_gather = False
        self._survives = False  # the job continues without lost workers: all have begun, and the flags say so
        self._min_workers = 1
        self._returns = Returns(self._loop, self._tell_all, self._on_closed)
        self._late = 0  # processes still to be told of the end
        self._start()

    # ------------------------------------------------------------------------------- for the scheduler's other threads

    def declare_lost(self, processes: Sequence[tuple[str, int]], why: str) -> None:
        """Handles processes, given by role and rank, without heartbeats as lost."""

        def tell() -> None:
            young = {each.worker_rank for each in self._known() if each.no_alarm_before > self._loop.time()}
            for each in self._known():
                if each.comes_back and each.number and ("worker", each.rank) in processes and each.rank not in young:
                    self._returns.send_away(each, f"the others go on without this worker: {why}", EXIT_PEER_LOST)
            # MXNet still expects heartbeats of these.
            left = self._returns.lost | self._returns.done | young if self._survives else set()
            new = [(role, rank) for role, rank in processes if role != "worker" or rank not in left]
            names = join_names([self._name_of(*process) for process in new])
            self._lose(dict.fromkeys(new, f"no sign of life from {names}: {why}"))

        self._loop.call_soon_threadsafe(tell)

    def knows(self, process: tuple[str, int]) -> bool:
        """Whether the process of this role and rank is connected here."""
        return self._find(*process) is not None

    def close(self) -> None:
        """Waits at most a few seconds until the others have disconnected or said good-bye."""
        asyncio.run_coroutine_threadsafe(self._until_alone(with_goodbye=True), self._loop).result()

    def _handle(self, participant: Participant, message: Any) -> None:
        if self._state is JobState.RUNNING and participant.process and participant not in self._participants:
            return  # it has left, or the others have gone on without it
        rank = participant.worker_rank
        match message:
            case Join(before=None, min_workers=None) if message.num_servers and (
                not participant.process or participant.process.member == message.member
            ):
                self._join(participant, message)
            case Left(cause=cause) if not participant.process and cause:
                if self._state is JobState.WAITING:
                    there = sum(other.role != "scheduler" for other in self._known())
                    self._finish(cause, EXIT_SETUP, late=self._num_servers + self._num_workers - there - 1)
                else:
                    self._late -= 1
                participant.send(msg_type="RESPONSE", reason=cause)
            case Left(goes_on=True) if self._survives and rank is not None:
                self._participants.remove(participant)
                self._lose({("worker", rank): f"{participant.name} was asked to leave"}, on_request=True)
            case Left(goes_on=False, cause=cause) if participant.process:
                participant.error, participant.said_goodbye = cause, not cause
                participant.send(msg_type="RESPONSE", reason=cause)
                if rank is not None and not cause:
                    self._returns.done.add(rank)
                    self._finish_if_done()
            case {"freed": True} if participant.role == "scheduler" and self._scheduler_port:
                self._running.set()
            case {"rank": int(number)} if participant.process and self._may_have_rank(participant, number):
                self._returns.note_rank(participant, number)
            case {"gather": str(label)} if participant.comes_back and participant.number and rank is not None:
                if label == LAST_GATHER:  # it is about to train
                    self._returns.take_back(participant, rank)
                participant.send(gathered=label, values=self._known_values.get(label))
            case {"gather": str(label), "value": value} if (
                rank is not None
                and not participant.comes_back
                and rank not in set[int]().union(*self._gathered.values())
            ):
                self._gathered.setdefault(label, {})[rank] = value
                self._answer_gathers()
            case {"unreached": list(places)} if participant.process and all(isinstance(each, str) for each in places):
                participant.unreached = places
                self._loop.call_later(self._settle_s, self._judge_reach)  # others will tell the same
            case _:
                raise SetupError(
                    f"this process sent a line that it may not send, or not now: {message!r:.200}; bring the same "
                    "version of this program to every host"
                )

    def _may_have_rank(self, participant: Participant, rank: int) -> bool:
        """Gathered values are stored by rank, so a worker's rank must be unique."""
        taken = [other.worker_rank for other in self._known() if other is not participant]
        is_own = participant.rank == rank or (participant.rank is None and not participant.comes_back)
        return participant.role != "worker" or (0 <= rank < self._num_workers and rank not in taken and is_own)

    def _join(self, participant: Participant, join: Join) -> None:
        """A process is there, and asks again until the job begins. Raises SetupError where the job has enough of this
        role, or is running."""
        is_new, participant.process = participant.process is None, join
        if is_new:
            self._admit(participant, join)
        if self._state is JobState.ENDED:
            participant.send(msg_type="RESPONSE", reason="the job has ended")  # the reason comes once it is its turn
            return
        if participant.comes_back:
            answer, reason = self._returns.offer_place(participant, join, self._known())
        else:
            self._group, answer, reason = decide(self._group, join, self._loop.time(), len(self._plain()))
        call = answer.call
        if call is Call.REFUSED:
            self._finish(reason, EXIT_SETUP)
            return
        if call is Call.START and self._state is JobState.WAITING:
            self._begin()
        if call is Call.START and join.role != "scheduler" and not self._running.is_set():
            # The scheduler first closes its own listener at MXNet's port: that would swallow messages, sent once.
            call, reason = Call.WAIT, "MXNet's scheduler is about to listen"
        participant.send(**Response(join.sender, join.job, reason, call, None, *answer[1:]).to_wire(""))

    def _admit(self, participant: Participant, join: Join) -> None:
        self._strangers.pop(participant, None)
        if self._state is JobState.ENDED:
            self._late -= join.role != "scheduler"
            self._tell_end(participant)
            return
        there = [other for other in self._known() if other.role == join.role]
        wanted = {"server": self._num_servers, "worker": self._num_workers}.get(join.role, 1)
        agree = all(
            (each.num_servers, each.num_workers) == (join.num_servers, join.num_workers) for each in self._joins()
        )
        if self._survives and join.role == "worker" and rank_on_device(self._returns.workers, join) is not None:
            self._returns.expect(participant)
        elif self._state is JobState.RUNNING or (len(there) >= wanted and agree):
            names = join_names([other.name for other in there])
            setups = [(each.member.called(), each.setup) for each in (*self._joins(), join)]
            found = "".join(f"; {each}" for each in differences(setups).values())
            self._tell_all(warning=f"{participant.name} is one too many and was sent away{found}")
            text = f"this job has its {wanted} {join.role}(s) already ({names})"
            raise SetupError(f"{text}: start no more, or all with a higher number{found}")
        self._participants.append(participant)
        log.info("%s is here", participant.name)

    def _on_closed(self, participant: Participant) -> None:
        if participant not in self._participants:
            return
        self._participants.remove(participant)
        if self._state is JobState.WAITING:
            log.warning("%s went away before the job was complete", participant.name)
            if participant.process:
                self._group = decide(self._group, Left(participant.process.sender, JOB), self._loop.time()).group
        elif self._state is JobState.RUNNING and participant.comes_back:
            log.warning("%s went away before it was back", participant.name)
            if participant.number and participant.rank is not None:  # the server may count it
                self._returns.lose(participant.rank, f"{participant.name} went away before it was back")
        elif self._state is JobState.RUNNING and participant.process and not participant.said_goodbye:
            how = f"ended: {participant.error}" if participant.error else GONE
            self._lose({(participant.role, participant.rank): f"{participant.name} {how}"})

    def _on_broken(self, participant: Participant, error: OSError) -> None:
        gone = participant.comes_back or participant not in self._participants
        if self._state is not JobState.RUNNING or gone:
            self._on_closed(participant)
            return
        why = error.strerror or error
        log.warning("the connection to %s broke (%s)", participant.name, why)  # missing heartbeats show its death
        self._cannot_gather = True
        self._answer_gathers()

    def _begin(self) -> None:
        self._state = JobState.RUNNING
        plain = self._plain()
        for participant in plain:
            self._tell_all(warning=f"{participant.name} takes part: its set-up cannot be compared")
        self._cannot_gather = bool(plain)
        (scheduler,) = (join for join in self._joins() if join.role == "scheduler")
        self._scheduler_port = scheduler.port

    # --------------------------------------------------------------------------------------------------- during the job

    def _answer_gathers(self) -> None:
        for label, values in list(self._gathered.items()):
            if self._cannot_gather or len(values) == self._num_workers:
                del self._gathered[label]
                answer = None if self._cannot_gather else [values[rank] for rank in range(self._num_workers)]
                if answer is not None:
                    self._known_values[label] = answer
                if label == LAST_GATHER and not self._cannot_gather:
                    self._returns.began = self._loop.time()
                    self._survives = self._flag("on_worker_death") == CONTINUE
                    self._min_workers = int(self._flag("min_workers") or 1)
                for participant in self._known():
                    if participant.worker_rank in values:
                        participant.send(gathered=label, values=answer)

    def _flag(self, field: str) -> str:
        """A flag of the workers, which agree on it; empty where none has it."""
        (flag, *_) = names_of(field)
        return next((process.setup.get(flag, "") for process in self._joins() if process.role == "worker"), "")

    def _lose(self, lost: Mapping[tuple[str, int | None], str], on_request: bool = False) -> None:
        """Goes on without workers, where the job may; else ends it. `lost` has role and rank of the processes, and why
        they are lost; `on_request`: they were asked to leave."""
        left = self._num_workers - len(self._returns.lost | {rank for _, rank in lost if rank is not None})
        text = "; ".join(dict.fromkeys(lost.values()))
        if not self._survives or any(role != "worker" or rank is None for role, rank in lost):
            self._finish(text, EXIT_PEER_LOST)
        elif left < self._min_workers and (left or not on_request):
            text = f"{text}; {left} worker(s) are left, and --min-workers is {self._min_workers}"
            self._finish(text, EXIT_OK if on_request else EXIT_PEER_LOST)
        else:
            for (role, rank), why in lost.items():
                assert rank is not None
                if participant := self._find(role, rank):  # it may still be running
                    participant.send(end="the others have gone on without this worker", code=EXIT_PEER_LOST)
                    self._participants.remove(participant)
                self._returns.lose(rank, why)
            self._finish_if_done()

    def _judge_reach(self) -> None:
        """Leaves out the workers that cannot exchange with a server; a server with which none can is lost."""
        by_place = {each.place: each for each in self._known() if each.role != "scheduler" and not each.comes_back}
        cuts = {
            frozenset((place, other)) for place, each in by_place.items() for other in by_place.keys() & each.unreached
        }
        if self._state is not JobState.RUNNING or not cuts:
            return
        heavy = len(by_place)  # a server weighs more than all workers
        weights = {place: heavy if each.role == "server" else 1 for place, each in by_place.items()}
        left = together(weights, cuts)
        lost = [each for place, each in by_place.items() if place not in left]
        if all(each.role == "server" or each in lost for each in by_place.values()):
            torn = frozenset().union(*cuts)
            alone = [each.name for place, each in by_place.items() if each.role == "server" and place in torn]
            self._finish(f"no worker exchanges with {join_names(alone)}: {CUT}", EXIT_PEER_LOST)
            return
        told = {}
        for each in lost:
            others = [other.name for place, other in by_place.items() if frozenset((each.place, place)) in cuts]
            told[each.role, each.rank] = f"{each.name} does not exchange with {join_names(others)}: {CUT}"
        self._lose(told)

    def _finish_if_done(self) -> None:
        if self._survives and len(self._returns.done | self._returns.lost) == self._num_workers:
            self._finish(ALL_DONE, EXIT_OK)

    # ------------------------------------------------------------------------------------------------- the end

    def _finish(self, text: str, code: int, late: int = 0) -> None:
        """Tells all processes why the job is over: the scheduler last, since it runs this server. As many as `late` are
        still to connect and must be told too."""
        if self._state is JobState.ENDED:
            return
        self._late = late
        self._state, self._end = JobState.ENDED, {"end": text, "code": code}
        for participant in self._known():
            self._tell_end(participant)

    def _tell_end(self, participant: Participant) -> None:
        async def tell_last() -> None:
            await self._until_alone()
            end = self._loop.time() + LATE_S
            while self._late > 0 and self._loop.time() < end:
                await asyncio.sleep(0.05)
            participant.send(**self._end)

        if participant.role == "scheduler":
            self._farewell = self._loop.create_task(tell_last())
        else:
            participant.send(**self._end)

    async def _until_alone(self, with_goodbye: bool = False) -> None:
        """Waits for the other processes to disconnect, or, `with_goodbye`, to say good-bye."""
        # A server leaves MXNet's cluster only between two heartbeats.
        end = self._loop.time() + FAREWELL_S + int(os.environ.get(INTERVAL) or 0)
        while self._loop.time() < end and any(
            participant.role != "scheduler" and not (with_goodbye and participant.said_goodbye)
            for participant in self._known()
        ):
            await asyncio.sleep(0.01)

    async def _watch_plain(self, participant: Participant, address: str, port: int) -> None:
        """Ends the job if a plain MXNet program, which sends no good-bye, stops listening in RUNNING.

        When the job ends normally, the programs and MXNet's scheduler, in this process, end together.
        """
        misses = 0
        while misses < 2:
            await asyncio.sleep(self._look_every_s)
            misses = 0 if await tcp_proxy.is_listening(address, port) else misses + 1
            if self._state is not JobState.RUNNING or any(known.said_goodbye for known in self._known()):
                return
        self._finish(f"{participant.name} {GONE}", EXIT_PEER_LOST)
