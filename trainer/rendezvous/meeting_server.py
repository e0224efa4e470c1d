"""The scheduler's side of the meeting: who is there, whether their set-ups agree and their ports are open, who is lost.

    WAITING --all are there, set-ups agree--> TRYING --all ports are open--> RUNNING --all have said good-bye--> closed
       ^                                        |                               |
       +------------a process went away---------+                               +--one is lost: everybody is told, ENDED
       (a difference or a closed port: everybody is told which, ENDED)

Where the workers go on without those that are lost (--on-worker-death continue), the loss of one ends nothing once all
have begun: the others are told. MXNet's own way out waits for all, so the job's end is told here as well.

One thread, one asyncio loop, JSON lines over TCP. `trainer/rendezvous/meeting_client.py` is the other side and says
what the lines are.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import os
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from config import CONTINUE, names_of
from trainer.rendezvous import tcp_proxy
from trainer.rendezvous.addresses import TRY_S, Target, by_target
from trainer.rendezvous.config_check import (
    ADVICE,
    PROGRAM,
    ProcessInfo,
    are_texts,
    differences,
    join_names,
    missing,
    size_differs,
    verdict,
)
from trainer.rendezvous.meeting_client import ALL_DONE, EVALUATOR, GONE, HELLO, REMIND_EVERY_S, keep_alive
from trainer.rendezvous.peer import Participant, messages
from trainer.runtime.environment import INTERVAL
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError, die_on_error

LONGEST_LINE = 1 << 24  # bytes
SETTLE_S = 3.0  # for more processes to come, after the first that expects another number of them
LOOK_EVERY_S = 2.0  # whether plain MXNet programs still listen
LATE_S = 15.0  # for processes that have not come yet to hear why there will be no job
FAREWELL_S = 2.0  # for the others to end first, so that they have heard why
_ADVICE = (
    "Open these ports in the firewalls (PORT fixes the port of a process), and see that DMLC_INTERFACE on the host "
    "that cannot be reached names the card that leads to the others (of several hosts, none can take lo)"
)


class State(enum.Enum):
    """How far the job is."""

    WAITING = enum.auto()
    TRYING = enum.auto()
    RUNNING = enum.auto()
    ENDED = enum.auto()


class Host:
    """Everybody's meeting point, in a thread of the scheduler's process."""

    def __init__(
        self,
        listener: socket.socket,
        num_servers: int,
        num_workers: int,
        remind_every_s: float = REMIND_EVERY_S,
        settle_s: float = SETTLE_S,
        try_s: float = TRY_S,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        """
        Args:
            listener: at the address that all processes of the job know.
        """
        self._listener = listener
        self._num_servers, self._num_workers = num_servers, num_workers
        self._remind_every_s, self._settle_s, self._try_s = remind_every_s, settle_s, try_s
        self._look_every_s = look_every_s
        self._participants: list[Participant] = []
        self._state = State.WAITING
        self._end: dict[str, Any] = {}  # the message that told everybody
        self._round = 0  # of tries to connect
        self._settling: asyncio.TimerHandle | None = None
        self._trying: asyncio.TimerHandle | None = None
        self._gathered: dict[str, dict[int, Any]] = {}
        self._cannot_gather = False
        self._goes_on = False  # when a worker is lost: all have begun, and are to survive it
        self._min_workers = 1
        self._done: set[int] = set()  # workers that have said good-bye, by rank
        self._plain_addresses: set[str] = set()  # from which plain MXNet programs have called
        self._late = 0  # processes that have not heard of the end
        self._lost: set[int] = set()  # workers without which the others go on
        self._scheduler_port = 0  # MXNet's own
        self._loop = asyncio.new_event_loop()
        self._running = asyncio.Event()
        threading.Thread(target=self._run, name="meeting host", daemon=True).start()

    def _run(self) -> None:
        with die_on_error("the meeting of the job's processes failed"):
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._loop.set_exception_handler(_die)
        server = await asyncio.start_server(self._attend, sock=self._listener, limit=LONGEST_LINE)
        async with server:
            await server.serve_forever()

    # ------------------------------------------------------------------------------- for the scheduler's other threads

    def declare_lost(self, peers: Sequence[tuple[str, int]], why: str) -> None:
        """Tells everybody that processes, given by role and rank, show no sign of life."""

        def tell() -> None:
            out = self._lost | self._done if self._goes_on else set()  # MXNet does not know that they have left
            new = [(role, rank) for role, rank in peers if role != "worker" or rank not in out]
            texts = [f"no sign of life from {self._name_of(*peer)}: {why}" for peer in new]
            if not self._goes_on or any(role != "worker" for role, _ in new):
                names = join_names([self._name_of(*peer) for peer in new])
                self._finish(f"no sign of life from {names}: {why}", EXIT_PEER_LOST)
            else:
                for (_, rank), text in zip(new, texts, strict=True):
                    self._go_on_without(rank, text)

        self._loop.call_soon_threadsafe(tell)

    def knows(self, peer: tuple[str, int]) -> bool:
        """Whether the process of this role and rank is one of this program."""
        return any(
            participant.card and (participant.card.role, participant.rank) == peer
            for participant in tuple(self._participants)
        )

    def close(self) -> None:
        """Waits until the others have left; for a moment only: what they do then is no matter of the job."""

        async def wait() -> None:
            await self._until_alone(with_goodbye=True)

        asyncio.run_coroutine_threadsafe(wait(), self._loop).result()

    # ------------------------------------------------------------------------------------------------ one connection

    async def _attend(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with die_on_error("the meeting of the job's processes failed"):
            await self._serve_one(reader, writer)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection to its end."""
        participant = Participant(writer, writer.get_extra_info("peername")[0])
        try:
            keep_alive(writer.get_extra_info("socket"))
            first = await reader.readexactly(len(HELLO))
            if first == HELLO:
                await self._converse(participant, reader)
            elif tcp_proxy.is_zero_mq(first):
                await self._splice(participant, first, reader)
        except asyncio.IncompleteReadError:
            pass  # a port scanner, or a process that ended at once
        except ConnectionResetError:
            self._gone(participant)
        except OSError as error:
            self._broken(participant, error)
        except SetupError as error:
            logging.warning("a connection from %s was ended: %s", participant.address, error)
            participant.send(end=str(error), code=EXIT_SETUP)
            participant.last_words = str(error)
            self._gone(participant)
        else:
            self._gone(participant)
        finally:
            with contextlib.suppress(ValueError):
                self._participants.remove(participant)
            writer.close()

    async def _converse(self, participant: Participant, reader: asyncio.StreamReader) -> None:
        participant.send(welcome=True)
        reminder = self._loop.create_task(self._remind(participant))
        try:
            async for message in messages(reader):
                self._heed(participant, message)
        finally:
            reminder.cancel()

    def _heed(self, participant: Participant, message: Any) -> None:
        """Does what a message asks.

        Raises:
            SetupError: it is none that this participant may send now. Nothing was done.
        """
        match message:
            case {"fails": str(why)} if not participant.card:
                if self._state in (State.WAITING, State.TRYING):
                    there = sum(card.role != "scheduler" for card in self._cards())
                    self._finish(why, EXIT_SETUP, late=self._num_servers + self._num_workers - there - 1)
                else:
                    self._late -= 1
            case {"card": fields} if not participant.card:
                self._welcome(participant, ProcessInfo.from_message(fields))
            case {"tried": int(number), "problems": list(problems)} if participant.card and are_texts(problems):
                if number == self._round and self._state is State.TRYING:
                    participant.tried, participant.problems = True, problems
                    if all(other.tried for other in self._known()):
                        self._judge_tries()
            case {"freed": True} if participant.role == "scheduler" and self._scheduler_port:
                self._running.set()
                for other in self._known():
                    if other is not participant:
                        other.send(go=self._scheduler_port)
            case {"rank": int(rank)} if participant.card and self._may_have(participant, rank):
                participant.rank = rank
            case {"gather": str(label), "value": value} if (
                participant.role == "worker" and participant.rank is not None
            ):
                self._gathered.setdefault(label, {})[participant.rank] = value
                self._answer_gathers()
            case {"last_words": str(text)} if participant.card:
                participant.last_words = text
            case {"leaves": True} if self._goes_on and participant.role == "worker" and participant.rank is not None:
                self._participants.remove(participant)
                self._go_on_without(participant.rank, f"{participant.name} was asked to leave", in_order=True)
            case {"goodbye": True} if participant.card:
                participant.said_goodbye = True
                if participant.role == "worker" and participant.rank is not None:
                    self._done.add(participant.rank)
                    self._look_whether_over()
            case _:
                raise SetupError(
                    f"this process sent a line that it may not send, or not now: {message!r:.200}; {ADVICE[PROGRAM]}"
                )

    def _may_have(self, participant: Participant, rank: int) -> bool:
        """Whether a rank can be this participant's: gathered values go by those of the workers."""
        taken = [other.rank for other in self._known() if other is not participant and other.role == participant.role]
        return participant.role != "worker" or (0 <= rank < self._num_workers and rank not in taken)

    def _welcome(self, participant: Participant, card: ProcessInfo) -> None:
        """Takes a process in, or says why not."""
        if self._state is State.ENDED:
            if card.role == "scheduler":
                self._tell_last(participant)
            else:
                participant.send(**self._end)
                self._late -= 1
            return
        same_size = not size_differs([*self._cards(), card])
        wanted = {"server": self._num_servers, "worker": self._num_workers}.get(card.role, 1)
        there = [other for other in self._known() if other.role == card.role]
        if self._state is State.RUNNING or (len(there) >= wanted and same_size):
            names = join_names([other.name for other in there])
            found = "; ".join(differences([*self._cards(), card]).values())
            participant.card = card
            self._tell_all(warning=f"{participant.name} is one too many and was sent away{found and ': ' + found}")
            text = f"this job has its {wanted} {card.role}(s) already ({names})"
            raise SetupError(f"{text}: start no more, or all with a higher number{found and '; ' + found}")
        participant.card = card
        self._participants.append(participant)
        logging.info("%s is here", participant.name)
        self._look()

    def _gone(self, participant: Participant) -> None:
        """A connection was closed by the other side."""
        if participant not in self._participants:
            return
        self._participants.remove(participant)
        if self._state in (State.WAITING, State.TRYING):
            logging.warning("%s went away before the job was complete", participant.name)
            self._state = State.WAITING
            self._look()
        elif self._state is State.RUNNING and participant.card and not participant.said_goodbye:
            how = f"ended: {participant.last_words}" if participant.last_words else GONE
            if self._goes_on and participant.role == "worker" and participant.rank is not None:
                self._go_on_without(participant.rank, f"{participant.name} {how}")
            else:
                self._finish(f"{participant.name} {how}", EXIT_PEER_LOST)

    def _broken(self, participant: Participant, error: OSError) -> None:
        """The network lost a connection."""
        if self._state is not State.RUNNING or participant not in self._participants:
            self._gone(participant)
            return
        why = error.strerror or error
        logging.warning("the connection to %s broke (%s)", participant.name, why)  # heartbeats tell if it is dead
        self._cannot_gather = True
        self._answer_gathers()

    # ------------------------------------------------------------------------------------------------- who is there

    def _known(self) -> list[Participant]:
        return [participant for participant in self._participants if participant.card]

    def _cards(self) -> list[ProcessInfo]:
        return [participant.card for participant in self._participants if participant.card]

    def _plain(self) -> list[Participant]:
        return [participant for participant in self._participants if not participant.card]

    def _name_of(self, role: str, rank: int) -> str:
        for participant in self._known():
            if participant.card and (participant.card.role, participant.rank) == (role, rank):
                return participant.name
        return f"{role} {rank}"

    def _missing(self) -> str:
        if not any(card.role == "scheduler" for card in self._cards()):
            return "the scheduler"
        return missing(self._cards(), len(self._plain()), self._num_servers, self._num_workers)

    def _look(self) -> None:
        """Goes on where all are there."""
        if self._state not in (State.WAITING, State.TRYING):
            return
        if not self._missing():
            text = verdict(self._cards())
            if text:
                self._finish(text, EXIT_SETUP)
            else:
                self._try()
        elif size_differs(self._cards()) and self._settling is None:
            self._settling = self._loop.call_later(self._settle_s, self._settled)

    def _settled(self) -> None:
        self._settling = None
        if self._state is State.WAITING and size_differs(self._cards()):
            self._finish(verdict(self._cards()), EXIT_SETUP)

    async def _remind(self, participant: Participant) -> None:
        """Says from time to time what a process waits for, as long as it does."""
        while self._state in (State.WAITING, State.TRYING):
            await asyncio.sleep(self._remind_every_s)
            if self._state is State.WAITING and participant.card:
                participant.send(info=self._reminder(participant, participant.card))

    def _reminder(self, participant: Participant, card: ProcessInfo) -> str:
        here = join_names([other.name for other in self._participants if other is not participant])
        found = "; ".join(differences(self._cards()).values())
        address = ":".join(map(str, self._listener.getsockname()[:2]))
        return (
            f"waiting for {self._missing()}; here are {here or 'no others'}. This process speaks from "
            f"{participant.address}, and MXNet will listen at {card.address}:{card.port}"
            f"{found and '. So far ' + found}. Check that the "
            f"missing ones run, have DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT of {address}, and that no firewall closes "
            "that port"
        )

    # ------------------------------------------------------------------------------------------- the tries to connect

    def _try(self) -> None:
        """Lets all try to reach those that MXNet will connect them with."""
        self._state = State.TRYING
        self._round += 1
        for participant in self._known():
            participant.tried, participant.problems = False, []
            participant.send(targets=list(self._targets_of(participant)), round=self._round)
        if self._trying:
            self._trying.cancel()
        self._trying = self._loop.call_later(3 * self._try_s, self._judge_tries)

    def _targets_of(self, participant: Participant) -> Iterator[Target]:
        for other in self._known():
            assert participant.card and other.card
            if participant.card.role != other.card.role:
                interface = f" with DMLC_INTERFACE={other.card.interface}" if other.card.interface else ""
                yield Target(f"{other.name}{interface}", other.card.address, other.card.port, other.card.token)

    def _judge_tries(self) -> None:
        if self._trying:
            self._trying.cancel()
        if self._state is not State.TRYING:
            return
        known = self._known()
        problems = by_target({participant.name: participant.problems for participant in known})
        problems += [f"{participant.name} did not answer" for participant in known if not participant.tried]
        if problems:
            self._finish(f"{'; '.join(problems)}. {_ADVICE}", EXIT_SETUP)
        else:
            self._begin()

    def _begin(self) -> None:
        self._state = State.RUNNING
        plain = self._plain()
        for participant in plain:
            self._tell_all(warning=f"{participant.name} takes part: its set-up cannot be compared")
        self._cannot_gather = bool(plain)
        (scheduler,) = (participant for participant in self._known() if participant.role == "scheduler")
        assert scheduler.card
        self._scheduler_port = scheduler.card.port
        # It frees its port first. What MXNet sent to whoever listens there now would be lost, and not sent again.
        scheduler.send(go=self._scheduler_port)

    # --------------------------------------------------------------------------------------------------- during the job

    def _answer_gathers(self) -> None:
        for label, values in list(self._gathered.items()):
            if self._cannot_gather or len(values) == self._num_workers:
                del self._gathered[label]
                answer = None if self._cannot_gather else [values[rank] for rank in range(self._num_workers)]
                if label == EVALUATOR and not self._cannot_gather:
                    self._goes_on = self._said("on_worker_death") == CONTINUE
                    self._min_workers = int(self._said("min_workers") or 1)
                for participant in self._known():
                    if participant.rank in values and participant.role == "worker":
                        participant.send(gathered=label, values=answer)

    # ------------------------------------------------------------------------------------------ without the lost

    def _said(self, field: str) -> str:
        """What the workers' flags say, which agree on it; empty where none says so."""
        (flag, *_) = names_of(field)
        return next((card.setup.get(flag, "") for card in self._cards() if card.role == "worker"), "")

    def _go_on_without(self, rank: int, why: str, in_order: bool = False) -> None:
        left = self._num_workers - len(self._lost) - 1
        if left < self._min_workers and (left or not in_order):
            text = f"{why}; {left} worker(s) are left, and --min-workers is {self._min_workers}"
            self._finish(text, EXIT_OK if in_order else EXIT_PEER_LOST)
            return
        self._lost.add(rank)
        for participant in self._known():
            if participant.role == "worker" and participant.rank == rank:  # it wakes up, or its network comes back
                participant.send(end="the others have gone on without this worker", code=EXIT_PEER_LOST)
                self._participants.remove(participant)
        self._tell_all(lost=rank, why=why)
        self._look_whether_over()

    def _look_whether_over(self) -> None:
        """MXNet's own end would wait for those that are lost."""
        if self._goes_on and len(self._done | self._lost) == self._num_workers:
            self._finish(ALL_DONE, EXIT_OK)

    def _tell_all(self, **message: Any) -> None:
        for participant in self._known():
            participant.send(**message)

    def _finish(self, text: str, code: int, late: int = 0) -> None:
        """Tells everybody why the job is over: the own process last, which takes this host with it.

        Args:
            late: how many processes are on their way, and would look for this host in vain.
        """
        if self._state is State.ENDED:
            return
        self._late = late
        self._state, self._end = State.ENDED, {"end": text, "code": code}
        own = [participant for participant in self._known() if participant.role == "scheduler"]
        for participant in self._known():
            if participant not in own:
                participant.send(**self._end)

        for participant in own:
            self._tell_last(participant)

    def _tell_last(self, participant: Participant) -> None:
        """Tells the own process, once the others have heard."""

        async def tell() -> None:
            await self._until_alone()
            end = self._loop.time() + LATE_S
            while self._late > 0 and self._loop.time() < end:
                await asyncio.sleep(0.05)
            participant.send(**self._end)

        self._farewell = self._loop.create_task(tell())

    async def _until_alone(self, with_goodbye: bool = False) -> None:
        # A server leaves MXNet's cluster only between two heartbeats.
        end = self._loop.time() + FAREWELL_S + int(os.environ.get(INTERVAL) or 0)
        while self._loop.time() < end and any(
            participant.card
            and participant.card.role != "scheduler"
            and not (with_goodbye and participant.said_goodbye)
            for participant in self._participants
        ):
            await asyncio.sleep(0.01)

    # ------------------------------------------------------------------------------------------ plain MXNet programs

    async def _splice(self, participant: Participant, first: bytes, reader: asyncio.StreamReader) -> None:
        """Takes in a plain MXNet program: once the job is complete, its connection leads to MXNet's own scheduler."""
        if participant.address not in self._plain_addresses:  # once: another program may call again and again
            self._plain_addresses.add(participant.address)
            logging.warning("%s wants to take part: its set-up cannot be compared", participant.name)
        self._participants.append(participant)
        self._look()
        running = self._loop.create_task(self._running.wait())
        more = self._loop.create_task(tcp_proxy.words(reader))  # none come before it is answered, unless it ends
        await asyncio.wait({more, running}, return_when=asyncio.FIRST_COMPLETED)
        if not self._running.is_set():
            running.cancel()
            return
        place = await tcp_proxy.lead(
            tcp_proxy.Caller(first, more, reader, participant.writer),
            self._listener.getsockname()[0],
            self._scheduler_port,
        )
        if place:
            await self._look_after(participant, *place)

    async def _look_after(self, participant: Participant, address: str, port: int) -> None:
        """Ends the job where a plain MXNet program, which says nothing here, no longer listens though the job goes on.

        At the end of a job MXNet's scheduler ends together with the programs, and so does this process.
        """
        misses = 0
        while misses < 2:
            await asyncio.sleep(self._look_every_s)
            misses = 0 if await tcp_proxy.is_listening(address, port) else misses + 1
            if self._state is not State.RUNNING or any(known.said_goodbye for known in self._known()):
                return
        self._finish(f"{participant.name} {GONE}", EXIT_PEER_LOST)


def _die(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    with die_on_error("the meeting of the job's processes failed"):
        raise context.get("exception") or RuntimeError(context["message"])
