"""The hub: a process to which every worker of a job is connected, and which runs the algorithm's server part.

    WAITING --all are there and agree--> RUNNING --all have left, or are lost--> OVER
       |                                   |
       +--set-ups differ-------------------+--a worker is lost, and the job does not survive that--> OVER

What a worker sends after the greeting (connections.py), and what it gets:

    {"join": JOIN, as at the state server}          {"response": RESPONSE, with START the worker's place}
    {"gather": label, "value": ...}                 {"gathered": values of all workers by rank}
    {"begin": about the job} + rank 0's model       {"answer": ...} + the newest model
    {"ask": message} + arrays                       {"answer": ...} + arrays, or later
    {"wish": message}, while it waits
    {"tell": {"save": round}}
    {"tell": message} + arrays, without an answer
    {"beat": ...}, each second                      {"beat": ...}, each second
    {"left": why; empty: its job is done, "goes_on": without it}
    {"failed": why}, before it joins                {"end": why, "code": exit code}: end with this line
                                                    {"lost": rank, "serial": ..., "why": ...}, {"back": rank, ...}

With --on-worker-death continue a lost worker leaves the others as they are, and a new process on its device takes its
rank. A worker whose connection was lost comes back with {"again": its place, "join": ...}; so all workers of a hub that
was killed come to the one that is started in its place. That one asks the worker with the newest model for it ({"send":
true}, {"model": about the job} + model), and goes on with it. A job has one hub, at one address, and no worker trains
on without its answers, so it cannot become two.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from config import CONTINUE, Config, names_of
from server import wire
from server.errors import BadMessage
from server.messages import Call, Join, Left, Member, Place, Response
from server.rendezvous.membership import Assignment
from server.rendezvous.record import recorded
from server.setups import PROGRAM, differences, join_names, verdict
from trainer import version
from trainer.array_tree import Damaged
from trainer.hub import server_part
from trainer.hub.connections import Connection, Connections, Refused, State
from trainer.hub.frames import num_numbers
from trainer.hub.server_part import JOB, KEPT, SHARED, STATE, Answer, Answers, Arrays, Message, Served, ServerPart, Sink
from trainer.hub.shared_memory import SharedMemory
from trainer.hub.sums import SumServer
from trainer.hub.wire import BEAT_S, HUB, SILENT_S, error_of_end, how_lost, local_name
from trainer.membership import Change, changes_in, lost_of
from trainer.rendezvous import addresses
from trainer.rendezvous.cluster import ClusterSpec
from trainer.rendezvous.rendezvous_client import ALL_DONE, LAST_GATHER
from trainer.rendezvous.silence import Silence
from trainer.runtime.stop_signals import SignalWatch
from trainer.survival.checkpoint_manager import HubCheckpoints, wait_until_written
from utils import EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError, printable

LOOK_S = 0.25
_AGAIN = {"job", "rank", "version", "changes", "members", "gathered", "age_s"}  # what a worker says that comes again
RECOVER_S = 5.0  # for the workers of a hub that was killed to come to the new one, from the first on
MOST_STATES = 4  # models that a worker's state has at most: with two of an optimizer, and one to spare
SILENT = "it is frozen, its host or network is down, or large packets are lost on the way"
LATE = "the others have gone on without this worker"


def _device_of(member: Member) -> tuple[str, str, str]:
    return member.host, member.device, member.address


class Hub(Connections):
    """One job's. `run` returns how it has ended."""

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        address: str,  # at which it listens
        mode: str,
        num_workers: int,
        start_timeout_s: float = 0.0,  # for all to be there; 0: for ever
        on_begin: Callable[[], None] = lambda: None,  # called once they are
        own: Mapping[str, str] | None = None,  # what workers' set-ups must have, too
    ) -> None:
        super().__init__(listeners, address, HUB, f"the hub of mode {mode}", num_workers)
        self._num_workers, self._start_timeout_s, self._on_begin = num_workers, start_timeout_s, on_begin
        self._own = own or {}
        self._ended: asyncio.Future[tuple[str, int]]
        self._members: list[Member] = []  # by rank, from RUNNING on
        self._there: dict[int, Connection] = {}  # by rank, the connected
        self._setup: Mapping[str, str] = {}  # of the workers
        self._survives = False
        self._done: set[int] = set()  # ranks of workers that have left in order
        self._changes: dict[int, Change] = {}
        self._num_changes = 0
        self._known_values: dict[str, list[Any]] = {}  # by label, what all have gathered
        self._job = secrets.token_hex(8)
        self._began = 0.0  # when all trained
        self._awake = -math.inf  # when this process went on after it was frozen
        self._looked = math.inf  # when `_watch` slept last
        self._part: ServerPart | None = None
        self._sums: SumServer | None = None  # the same, where the workers sum
        self._shapes: list[tuple[int, ...]] | None = None  # of the model
        self._checks = False
        self._memory: SharedMemory | None = None  # with the workers on this host
        self._begins: set[int] = set()  # ranks that wait for the others to begin
        self._version = 0  # counts messages that the server part has acted on
        self._last_sum_s = 0.0  # when they did so last
        self._silence = Silence()
        self._saving: asyncio.Lock  # held while a checkpoint waits for the one before
        self._writer: HubCheckpoints | None = None
        self._again: dict[int, tuple[Connection, Message]] = {}  # workers of a hub that was killed, by rank
        self._asked: Connection | None = None  # of these, for its model

    async def run(self) -> tuple[str, int]:
        """Serves the job to its end; returns the last line, and the exit code."""
        loop = asyncio.get_running_loop()
        self._ended, self._saving = loop.create_future(), asyncio.Lock()
        self.accept()
        self.start(self._watch())
        if self._start_timeout_s:
            loop.call_later(self._start_timeout_s, self._give_up)
        text, code = await self._ended
        await self.until_alone()
        async with self._saving:  # the last checkpoint may have to wait
            return text, code

    def _give_up(self) -> None:
        if self._state is State.WAITING:
            text = f"the job was not complete after {self._start_timeout_s:g} s (--start-timeout)"
            self._finish(text, EXIT_PEER_LOST)

    def may_come(self, message: Message, shapes: Sequence[tuple[int, ...]]) -> bool:
        if self._shapes is None or list(shapes) == self._shapes:
            return True
        told = message.get("tell")
        is_state = isinstance(told, dict) and STATE in told
        return is_state and num_numbers(list(shapes)) <= MOST_STATES * num_numbers(self._shapes)

    def into(self, connection: Connection, message: Message, shapes: Sequence[tuple[int, ...]]) -> Sink | None:
        asked, rank = message.get("ask"), connection.rank
        if rank is None or self._sums is None or not isinstance(asked, dict):
            return None
        return self._sums.into(rank, asked, shapes)

    # --------------------------------------------------------------------------------------------------- messages

    async def handle(self, connection: Connection, message: Message, arrays: Arrays) -> None:
        rank = connection.rank
        match message:
            case {"beat": _}:
                return
            case {"ask": dict(asked), **rest} if rank is not None and self._part is not None:
                connection.asked = time.monotonic()
                if SHARED in rest:
                    arrays = self._shared_upload(connection, rank, asked)
                self._version += 1
                self._send_all(self._part.act(rank, server_part.marked(rank, asked, arrays, self._checks), arrays))
            case {"wish": dict(wish)} if rank is not None and self._part is not None:
                self._send_all(self._part.act(rank, wish, ()))
            case {"join": dict(join), **rest}:
                self._join(connection, join, rest.get("again"))
            case {"failed": str(why)}:
                self._fail(why)
            case {"gather": str(label), "value": value} if rank is not None:
                if label in self._known_values:  # it comes to a job at work
                    connection.send({"gathered": self._known_values[label]})
                else:
                    self._gather(label, rank, value)
            case {"begin": dict(said)} if rank is not None:
                connection.asked = time.monotonic()
                connection.heard = math.inf  # a slow disk is not its silence
                saved = await self._resumed(said) if rank == 0 and self._part is None else None
                connection.heard = time.monotonic()
                self._begin(rank, said, arrays, saved or {})
            case {"model": dict(said)} if rank is not None:
                if self._part is None:  # else another one was faster
                    self._recover(said, arrays)
            case {"tell": {"save": int(round_)}} if rank is not None:
                self.start(self._save(round_))  # beside: a slow disk must stop neither beats nor this worker's messages
            case {"tell": dict(told)} if rank is not None and self._part is not None:
                self._send_all(self._part.act(rank, told, arrays))
            case {"left": str(why), "goes_on": bool(goes_on)} if rank is not None:
                self._leave(connection, rank, printable(why), goes_on)
            case _:
                raise Refused(f"this process sent what it may not send now: {message!r:.200}")

    def _send_all(self, answers: Answers, is_round: bool = True) -> None:
        if self._sums and is_round and len(answers) > 1:
            before, self._last_sum_s = self._last_sum_s, time.monotonic()
            if before:
                self._silence.add_round(self._last_sum_s - before)
        for rank, answer in answers.items():
            connection = self._there.get(rank)
            if connection is not None and connection.asked is not None:  # else it has come back since it asked
                waited_s, connection.asked = time.monotonic() - connection.asked, None
                said = {"answer": answer.message, "waited_s": waited_s, "version": self._version}
                slot = self._memory.slot_of(answer.arrays) if self._memory and connection.shares else None
                connection.send(said if slot is None else {**said, SHARED: slot}, answer.arrays if slot is None else ())

    # ---------------------------------------------------------------------------------------------------- meeting

    def _join(self, connection: Connection, said: Message, again: Message | None) -> None:
        found = {**said, "address": connection.address, "port": said.get("port") or connection.port}
        join = wire.understand(found)
        if not isinstance(join, Join) or join.num_servers:
            raise BadMessage("this process does not join a hub")
        own = {"DMLC_NUM_WORKER": str(self._num_workers), **self._own}
        its = {"DMLC_NUM_WORKER": str(join.num_workers), **join.setup}
        differing = verdict(differences([("the hub", {**its, **own}), (join.member.called(), its)]))
        if differing and self._state is not State.WAITING:
            raise Refused(differing)
        self._joins[connection] = join
        if differing:
            self._finish(differing, EXIT_SETUP)
            return
        if self._state is State.OVER:
            self._tell_end(connection, join)
            return
        if again is not None:
            if not again.keys() >= _AGAIN:
                raise Refused("this process does not say from where it comes again")
            self._come_again(connection, join, again)
            return
        if self._state is State.RUNNING:
            answer, reason = self._offer_place(join)
        elif self._again:
            answer, reason = Assignment(Call.WAIT), "the hub was started again, and waits for its workers"
        else:
            self._group, answer, reason = recorded(self._group, join, time.monotonic(), self._job)
        if answer.call is Call.REFUSED:
            self._finish(reason, EXIT_SETUP)
            return
        if answer.call is Call.START and answer.place is not None:
            if self._state is State.WAITING:
                self._state = State.RUNNING
                self._on_begin()
                self._members, self._setup = list(answer.place.members), join.setup
                ranks = {each.name: rank for rank, each in enumerate(self._members)}
                for each, joined in self._joins.items():  # that one of them ends counts from here on
                    if joined.sender in ranks:
                        each.rank = ranks[joined.sender]
                        self._there[each.rank] = each
            connection.rank = answer.place.rank
            self._there[connection.rank] = connection
        response = Response(join.sender, join.job, reason, answer.call, None, *answer[1:]).to_wire(self._job)
        connection.send({"response": response, **self._place_of_return(connection)})

    def _place_of_return(self, connection: Connection) -> Message:
        """What a worker that comes to a job at work has to know."""
        if connection.rank is None or not self._survives:
            return {}
        if not connection.came_back.serial:
            connection.came_back = self._next(is_lost=False)
        changes = {**self._changes, connection.rank: connection.came_back}
        return {"changes": [*changes.items()], "age_s": time.monotonic() - self._began}

    def _offer_place(self, join: Join) -> tuple[Assignment, str]:
        """Where a process belongs in a job at work: it asks again, or its device on its host is that of a lost
        worker."""
        member = join.member
        names = [each.called(rank) for rank, each in enumerate(self._members)]
        own = [rank for rank, each in enumerate(self._members) if each.name == member.name]
        same = [rank for rank, each in enumerate(self._members) if _device_of(each) == _device_of(member)]
        if not own and not (self._survives and same):
            found = verdict(differences([(names[0], self._setup), (member.called(), join.setup)]))
            raise Refused(
                f"this job has its {self._num_workers} worker(s) already ({join_names(names)}), and {member.called()} "
                f"is one too many: start no more{found and '; ' + found}"
            )
        is_free = (lost_of(self._changes) - self._there.keys()).__contains__
        rank = next((rank for rank in [*own, *same] if rank in own or is_free(rank)), None)
        if rank is None:
            return Assignment(Call.WAIT), f"{names[same[0]]} is still there"
        if found := verdict(differences([(names[rank], self._setup), (member.called(rank), join.setup)])):
            raise Refused(f"{found} (the job is at work)")
        self._members[rank] = member
        return Assignment(Call.START, Place(1, rank, tuple(self._members), self._job)), f"worker {rank}"

    def _all_gathered(self, label: str, values: list[Any]) -> None:
        self._known_values[label] = values
        if label == LAST_GATHER:
            self._survives = self._flag("on_worker_death") == CONTINUE
            self._began = time.monotonic()
        super()._all_gathered(label, values)

    def _flag(self, field: str) -> str:
        return self._setup.get(names_of(field)[0], "")

    # ------------------------------------------------------------------------------------------- begin, and again

    def _begin(self, rank: int, said: Message, model: Arrays, saved: Message) -> None:
        if self._part is None and rank == 0:
            shown, kept = server_part.shown_and_kept(saved, model)
            self._serve_part(said, shown, kept)
        if len(self._begins) == self._num_workers:  # it comes to a job at work
            self._note_return(rank)
            self._answer_first(rank)
            return
        self._begins.add(rank)
        if len(self._begins) == self._num_workers:
            self._share()
            for each in sorted(self._begins):
                self._answer_first(each)

    def _note_return(self, rank: int) -> None:
        """Tells all that a lost worker is there again, if it was lost."""
        if rank in lost_of(self._changes):
            came_back = self._there[rank].came_back
            self._changes[rank] = came_back if came_back.serial else self._next(is_lost=False)
            name = self._members[rank].called(rank)
            logging.info("%s is back", name)
            self._tell_all({"back": rank, "serial": self._changes[rank].serial, "who": name})

    def _share(self) -> None:
        """Shares memory with the workers that are there now and on this host, where the server part keeps no upload. A
        process that comes in the place of another one gets none: the one before may still write to it."""
        local = [each for each in self._there.values() if each.socket.family == socket.AF_UNIX]
        if local and self._shapes and (self._sums or not getattr(self._part, "keeps_uploads", True)):
            memory = SharedMemory.made(num_numbers(self._shapes), self._num_workers)
            if memory is not None:
                self._memory = memory
                for connection in local:
                    connection.send({"memory": memory.place})

    def _shared_upload(self, connection: Connection, rank: int, asked: Message) -> Arrays:
        """The arrays of a message that stand in the memory shared with this worker; () where a sink has taken them."""
        if self._memory is None or not self._shapes:
            raise Refused("this process has no memory in common with the hub")
        connection.shares, slot = True, self._memory.upload(rank)
        if (sink := self.into(connection, {"ask": asked}, self._shapes)) is None:
            return server_part.shaped(slot, self._shapes)
        sink(0, slot)
        return ()

    def _memory_of_sum(self, number: int, size: int) -> np.ndarray:
        return self._memory.sum(number) if self._memory is not None else np.empty(size, np.float32)

    def _answer_first(self, rank: int) -> None:
        assert self._part is not None
        if (answer := self._part.joined(rank)) is not None:
            self._send_all({rank: Answer({**answer.message, JOB: self._job}, answer.arrays)})

    async def _save(self, round_: int) -> None:
        """Writes a checkpoint of the server part, once the one before is written."""
        async with self._saving:
            if self._writer is not None and self._part is not None:
                await asyncio.to_thread(self._writer.wait)
                self._writer.write(round_, self._part.state())

    async def _resumed(self, said: Message) -> Message:
        """The state of the checkpoint that the job resumes; empty in a new job. A slow disk does not stop the beats."""
        if not (told := said["checkpoints"]):
            return {}
        try:
            return await asyncio.to_thread(HubCheckpoints(told).resumed)
        except (Damaged, SetupError) as error:
            raise Refused(f"the hub cannot resume its checkpoint in {told['folder']}: {error}") from None

    def _serve_part(self, said: Message, model: Arrays, kept: Message) -> None:
        """Makes the server part, which resumes what was `kept`."""
        config = server_part.config_in(said)
        # Of sums a hub that is started again has no model.
        self._shapes = [array.shape for array in model] or None
        self._writer = HubCheckpoints(said["checkpoints"]) if said["checkpoints"] else None
        decays, counts = tuple(said["decays"]), tuple(said["sample_counts"])
        its = (config, self._num_workers, decays, counts, list(model), kept, time.monotonic)
        own = (lambda: any(each.is_sending for each in self._joins), self._memory_of_sum)
        self._part = server_part.serve(Served(*its, *own))
        self._sums = self._part if isinstance(self._part, SumServer) else None
        self._checks = config.max_bad_steps > 0 and self._sums is None  # a worker checks what it sums

    def _come_again(self, connection: Connection, join: Join, again: Message) -> None:
        """A worker whose connection was lost."""
        rank = int(again["rank"])
        if self._state is State.WAITING:
            if any(each["job"] != again["job"] for _, each in self._again.values()):
                raise Refused("workers of another job have come to this hub")
            if not self._again:
                asyncio.get_running_loop().call_later(RECOVER_S, self._ask_for_model)
            was_asked = self._asked is not None and self._asked is self._there.get(rank)
            if rank in self._there:
                self._cut(rank)
            connection.rank = rank
            self._again[rank] = connection, again
            self._there[rank] = connection
            expected = {*range(self._num_workers)} - lost_of(changes_in(self._news()["changes"]))
            if was_asked or expected <= self._again.keys():
                self._ask_for_model()
            return
        if again["job"] != self._job:
            raise Refused("the hub has another job by now")
        if self._members[rank].name != join.sender:
            connection.send({"end": LATE, "code": EXIT_PEER_LOST})
            return
        if rank in self._there:
            self._cut(rank)
        if rank not in lost_of(self._changes) and self._part is not None and not self._sums:
            self._send_all(self._part.lost(rank))  # what it asked there has no answer; in a sum it asks again
        connection.rank = rank
        self._there[rank] = connection
        self._note_return(rank)
        self._take_back(rank)

    def _take_back(self, rank: int) -> None:
        """Tells a worker that it is in the job, and what has become of the others."""
        others = [change for change in self._changes.items() if change[0] != rank]
        self._there[rank].send({"again": self._job, "changes": others})

    def _ask_for_model(self) -> None:
        """The worker with the newest one sends it."""
        if self._part is None and self._again and self._asked not in self._joins:
            self._asked, _ = max(self._again.values(), key=lambda each: each[1]["version"])
            self._asked.send({"send": True})

    def _news(self) -> Message:
        """Of the worker that has heard of the newest change."""
        return max(
            (again for _, again in self._again.values()),
            key=lambda each: max((serial for _, (serial, _) in each["changes"]), default=0),
        )

    def _recover(self, said: Message, model: Arrays) -> None:
        """Goes on in place of the hub that was killed."""
        newest = self._news()
        self._job, self._members = newest["job"], msgspec.convert(newest["members"], list[Member])
        for rank, (connection, _) in self._again.items():
            self._members[rank] = self._joins[connection].member
        self._setup = self._joins[next(iter(self._again.values()))[0]].setup
        self._known_values = newest["gathered"]
        self._survives = self._flag("on_worker_death") == CONTINUE
        self._began = time.monotonic() - newest["age_s"]
        self._changes = changes_in(newest["changes"])
        self._num_changes = max((change.serial for change in self._changes.values()), default=0)
        self._version = max(again["version"] for _, again in self._again.values())
        self._begins = {*range(self._num_workers)}
        self._state = State.RUNNING
        self._on_begin()
        self._serve_part(said, model, said[KEPT])
        for connection in self._joins:
            connection.heard = time.monotonic()  # a worker that comes back sends no beats
        logging.warning("warning: the hub goes on with the newest model, of %d worker(s)", len(self._again))
        for rank in range(self._num_workers):
            if rank in self._again:
                self._take_back(rank)
            elif rank in lost_of(self._changes):
                assert self._part is not None
                self._part.lost(rank)
            else:
                self._lose(rank, f"{self._members[rank].called(rank)} did not come back to the hub")
        self._again = {}

    # -------------------------------------------------------------------------------------------- losses, and the end

    async def _watch(self) -> None:
        """Notices workers that are silent, and shows them that the hub is not."""
        beat = time.monotonic()
        while True:
            self._looked = time.monotonic()
            await asyncio.sleep(LOOK_S)
            now, most_s = time.monotonic(), self._most_silent_s()
            if now - self._looked > most_s / 2:  # this process itself was frozen
                self._awake = now
                for connection in self._joins:
                    connection.heard = now
            for rank, connection in list(self._there.items()):
                self._silence.add_gap(now, connection.take_gap())
                if now - connection.heard > most_s and self._state is State.WAITING:
                    connection.close()
                elif now - connection.heard > most_s:
                    what = "nothing more of a message" if connection.is_receiving else "no sign of life"
                    self._cut(rank)
                    self._lose(rank, f"{what} from {self._members[rank].called(rank)} for {most_s:.1f} s: {SILENT}")
            if now - beat >= BEAT_S:
                beat = now
                for connection in [each for each in self._joins if not each.is_sending]:
                    connection.send({"beat": 0})

    def _most_silent_s(self) -> float:
        """How long a worker may be silent: where the others wait for it in each round, twice a long round."""
        return min(SILENT_S, self._silence.limit_s()) if self._survives and self._sums else SILENT_S

    def on_closed(self, connection: Connection, error: Exception) -> None:
        join, rank = self._joins.pop(connection, None), connection.rank
        if rank is not None:
            self._break_off(connection, rank)
        if join is None or self._state is State.OVER:
            return
        name = join.member.called(rank)
        if self._state is State.WAITING:
            logging.warning("warning: %s went away before the job began", name)
            if rank is not None and self._there.get(rank) is connection:
                del self._again[rank], self._there[rank]
                if connection is self._asked:
                    self._ask_for_model()
            self._group = recorded(self._group, Left(join.sender, join.job), time.monotonic(), "").group
        elif rank is not None and self._there.get(rank) is connection:
            del self._there[rank]
            # Workers have given up a hub that was frozen, and come again.
            now = time.monotonic()
            was_frozen = self._survives and (
                now - self._looked > self._most_silent_s() / 2 or now - self._awake < RECOVER_S
            )
            loop = asyncio.get_running_loop()
            loop.call_later(RECOVER_S * was_frozen, self._lose, rank, how_lost(name, error))

    def _leave(self, connection: Connection, rank: int, why: str, goes_on: bool) -> None:
        if self._state is State.WAITING:
            connection.close()
            return
        name = self._members[rank].called(rank)
        del self._there[rank]
        connection.rank = None
        if goes_on:
            self._lose(rank, f"{name} was asked to leave", on_request=True)
        elif why:
            self._lose(rank, f"{name} ended: {why}")
        else:
            self._done.add(rank)
            self._finish_if_done()

    def _cut(self, rank: int) -> None:
        """Ends the connection of a worker."""
        connection = self._there.pop(rank)
        self._break_off(connection, rank)
        connection.rank = None
        connection.close()
        if connection is self._asked:
            self._asked = None

    def _break_off(self, connection: Connection, rank: int) -> None:
        """The worker's upload, if one is on its way here, has no end."""
        if connection.is_streaming and self._sums is not None:
            connection.is_streaming = False
            answers = self._sums.broke_off(rank)
            if answers:
                name, count = self._members[rank].called(rank), len(answers)
                logging.warning("warning: an upload of %s broke off: %d other worker(s) send theirs again", name, count)
            self._send_all(answers, is_round=False)

    def _lose(self, rank: int, why: str, on_request: bool = False) -> None:
        """Goes on without a worker, where the job may; else ends it."""
        gone = lost_of(self._changes) | self._done
        if self._state is State.OVER or rank in self._there or rank in gone:  # it is back, or was about to be
            return
        if not self._survives:
            self._finish(why, EXIT_PEER_LOST)
            return
        left, least = self._num_workers - len(lost_of(self._changes)) - 1, int(self._flag("min_workers") or 1)
        if left < least and (left or not on_request):
            text = f"{why}; {left} worker(s) are left, and --min-workers is {least}"
            self._finish(text, EXIT_OK if on_request else EXIT_PEER_LOST)
            return
        self._changes[rank] = self._next(is_lost=True)
        logging.warning("warning: %s; the others go on without it", why)
        self._tell_all({"lost": rank, "serial": self._changes[rank].serial, "why": why})
        if self._part is not None:
            self._send_all(self._part.lost(rank))
        self._finish_if_done()

    def _next(self, is_lost: bool) -> Change:
        self._num_changes += 1
        return Change(self._num_changes, is_lost)

    def _finish_if_done(self) -> None:
        lost = lost_of(self._changes) if self._survives else frozenset()
        if len(self._done | lost) == self._num_workers:
            self._finish(ALL_DONE, EXIT_OK)

    def _finish(self, text: str, code: int, late: int = 0) -> None:
        if self._state is not State.OVER:
            super()._finish(text, code, late)
            self._ended.set_result((text, code))


def serve(cluster: ClusterSpec, config: Config) -> None:
    """Runs the hub to the job's end. Raises SetupError where it cannot listen, or the workers do not fit together;
    PeerLost where one is lost, and the job does not go on."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # mpiexec passes it on to all, and it is for the workers
    signals = SignalWatch(on_first="the job ends when its workers do")
    addresses.check_ipv4("DMLC_PS_ROOT_URI", cluster.root_uri)
    address = socket.gethostbyname(cluster.root_uri)
    remedy = (
        "the hub listens at DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT, on its own host; there is no scheduler. "
        "Set a port that is free there, in every process of the job"
    )
    listeners = [addresses.listen(address, cluster.root_port, remedy)]
    local = socket.socket(socket.AF_UNIX)
    try:
        local.bind(local_name(address, cluster.root_port))
        local.listen(256)
        listeners.append(local)
    except OSError:  # of another system, or taken: all use TCP
        local.close()
    where, its = f"{address}:{cluster.root_port}", (config.mode, cluster.num_workers)
    logging.info("the hub of mode %s waits for %d worker(s) at %s", *its, where)
    own = {PROGRAM: version.files_hash()}
    hub = Hub(listeners, address, *its, config.start_timeout, signals.be_patient, own)
    text, code = asyncio.run(hub.run())
    wait_until_written()
    if code != EXIT_OK:
        raise error_of_end({"end": text, "code": code})
    logging.info("%s", text)
