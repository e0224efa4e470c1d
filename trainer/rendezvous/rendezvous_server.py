"""The scheduler's side of the rendezvous: answers JOIN by the state server's rule, and detects losses.

    WAITING --all are there, agree and reach each other--> RUNNING --all have said good-bye--> closed
       |                                                      |
       +--set-ups differ, or a port is closed--> OVER <-------+--a process is lost; all processes get the reason

A killed process closes its connection. One that is frozen, or whose host or network is down, is silent.

One thread, one asyncio loop; `rendezvous_client.py` lists the messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from typing import Any

from esync.http import is_readable
from server import wire
from server.messages import Call, Join, Left, Response
from server.rendezvous.membership import decide
from server.setups import differences, join_names
from trainer.hub.connections import Connection, Connections, Refused, State
from trainer.hub.server_part import Arrays, Message
from trainer.hub.wire import BEAT_S, SCHEDULER, SILENT, SILENT_S, ZERO_MQ, how_lost, log
from trainer.rendezvous.cluster import WORKER
from trainer.rendezvous.rendezvous_client import JOB
from utils import EXIT_PEER_LOST, EXIT_SETUP, die_on_error, printable

LOOK_S = 0.05  # between two looks at a plain MXNet program that waits
LOOK_EVERY_S = 2.0  # between two checks that one still listens
LISTEN_S = 30.0  # for MXNet's own scheduler to listen
CHUNK = 1 << 16  # bytes
# The first ten bytes of a ZeroMQ connection: 0xff, a length of 8 bytes, and 0x7f
GREETING = re.compile(ZERO_MQ + rb"\0{7}.\x7f", re.DOTALL)


def _plain_name(connection: Connection) -> str:
    return f"a plain MXNet program at {connection.address}"


class RendezvousServer(Connections):
    """Runs in a thread of the scheduler's process."""

    def __init__(self, listener: socket.socket, num_servers: int, num_workers: int) -> None:
        """`listener` is at the scheduler's published address."""
        address = listener.getsockname()[0]
        whole = "the scheduler of a job with MXNet's kvstore"
        super().__init__([listener], address, SCHEDULER, whole, 1 + num_servers + num_workers)
        self._num_servers, self._num_workers = num_servers, num_workers
        self._left: dict[Connection, str] = {}  # processes that are about to end, and for which error; empty: good-bye
        self._plain: set[Connection] = set()  # of plain MXNet programs
        self._plain_addresses: set[str] = set()  # of these, all so far
        self._scheduler_port = 0  # MXNet's own
        self._is_free = False  # MXNet's scheduler may listen there
        self._cannot_gather = False
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._run, name="rendezvous server", daemon=True).start()

    def _run(self) -> None:
        with die_on_error("the rendezvous of the job's processes failed"):
            self._loop.call_soon(self.accept)
            self._loop.run_forever()

    def close(self) -> None:
        """Waits until the others have heard of the end and disconnected, also late ones; some seconds at most."""
        if self._late > 0:
            log.warning("%s; the other processes are waited for, to be told", self._end["end"])
        asyncio.run_coroutine_threadsafe(self.until_alone(), self._loop).result()

    async def handle(self, connection: Connection, message: Message, arrays: Arrays) -> None:
        join, rank = self._joins.get(connection), connection.rank
        match message:
            case {"join": dict(said)}:
                self._join(connection, wire.understand(said))
            case {"failed": str(why)} if join is None and why:
                self._fail(why)
            case {"left": str(why)} if join:
                self._left[connection] = printable(why)
            case {"beat": _} if join:
                pass
            case {"freed": True} if join and join.role == "scheduler" and self._scheduler_port:
                self._is_free = True
            case {"rank": int(number)} if join and self._may_have_rank(connection, join, number):
                connection.rank = number
            case {"gather": str(label), "value": value} if rank is not None and not any(
                rank in values for values in self._gathered.values()
            ):
                if self._cannot_gather:
                    connection.send({"gathered": None})
                else:
                    self._gather(label, rank, value)
            case _:
                raise _not_now(message)

    def _may_have_rank(self, connection: Connection, join: Join, rank: int) -> bool:
        """Gathered values are stored by rank, so a worker's rank must be unique."""
        taken = [other.rank for other in self._joins]
        is_first = join.role == WORKER and connection.rank is None
        return is_first and self._state is State.RUNNING and 0 <= rank < self._num_workers and rank not in taken

    def _join(self, connection: Connection, join: Any) -> None:
        """A process is there, and asks again until the job begins. Raises Refused where the job has enough of this
        role, or is running."""
        if not isinstance(join, Join) or join.before or join.min_workers is not None or not join.num_servers:
            raise _not_now(join)
        before = self._joins.get(connection)
        if before is not None and before.member != join.member:
            raise _not_now(join)
        if self._state is State.OVER:
            if before is None:
                self._tell_end(connection, join)
            return
        if before is None:
            self._admit(join)
        self._joins[connection] = join
        self._group, answer, reason = decide(self._group, join, self._loop.time(), len(self._plain))
        call = answer.call
        if call is Call.REFUSED:
            self._finish(reason, EXIT_SETUP)
            return
        if call is Call.START and self._state is State.WAITING:
            self._begin()
        if call is Call.START and join.role != "scheduler" and not self._is_free:
            # The scheduler first closes its own listener at MXNet's port: that would swallow messages, sent once.
            call, reason = Call.WAIT, "MXNet's scheduler is about to listen"
        response = Response(join.sender, join.job, reason, call, None, *answer[1:]).to_wire("")
        connection.send({"response": response})

    def _admit(self, join: Join) -> None:
        """Raises Refused where the job has enough of this role, or is running."""
        joins = self._joins.values()
        there = [one for one, its in self._joins.items() if its.role == join.role]
        wanted = {"server": self._num_servers, WORKER: self._num_workers}.get(join.role, 1)
        agree = all((each.num_servers, each.num_workers) == (join.num_servers, join.num_workers) for each in joins)
        if self._state is State.RUNNING or (len(there) >= wanted and agree):
            setups = [(each.member.called(), each.setup) for each in (*joins, join)]
            found = "".join(f"; {each}" for each in differences(setups).values())
            self._tell_all({"warning": f"{join.member.called()} is one too many and was sent away{found}"})
            text = f"this job has its {wanted} {join.role}(s) already ({join_names(list(map(self._name, there)))})"
            raise Refused(f"{text}: start no more, or all with a higher number{found}")
        log.info("%s is here", join.member.called())

    def _name(self, connection: Connection) -> str:
        """Of a process of the job, for messages."""
        return self._joins[connection].member.called(connection.rank)

    def on_closed(self, connection: Connection, error: Exception) -> None:
        is_plain = connection in self._plain
        if connection not in self._joins and not is_plain:
            return
        name = _plain_name(connection) if is_plain else self._name(connection)
        self._plain.discard(connection)
        join, its = self._joins.pop(connection, None), self._left.get(connection)
        if self._state is State.WAITING:
            log.warning("%s went away before the job was complete", name)
            if join:
                self._group = decide(self._group, Left(join.sender, JOB), self._loop.time()).group
        elif self._state is State.RUNNING and join and its != "":
            self._finish(how_lost(name, Refused(its) if its else error), EXIT_PEER_LOST)
        elif self._state is State.RUNNING and is_plain and isinstance(error, OSError):
            log.warning("the connection to %s broke (%s)", name, error.strerror or error)

    def _begin(self) -> None:
        self._state = State.RUNNING
        for connection in self._plain:
            self._tell_all({"warning": f"{_plain_name(connection)} takes part: its set-up cannot be compared"})
        self._cannot_gather = bool(self._plain)
        (self._scheduler_port,) = (join.port for join in self._joins.values() if join.role == "scheduler")
        self.start(self._watch())

    async def _watch(self) -> None:
        """Notices processes that are silent, and shows them that this one is not."""
        while self._state is State.RUNNING:
            looked = time.monotonic()
            await asyncio.sleep(BEAT_S)
            now, there = time.monotonic(), self._joins.items()
            was_frozen = now - looked > SILENT_S / 2
            for each, join in there:
                if was_frozen or self._left.get(each) == "" or join.role == "scheduler":  # whose process this is
                    each.heard = now
            if silent := join_names([self._name(each) for each in self._joins if now - each.heard > SILENT_S]):
                self._finish(f"no sign of life from {silent} for {SILENT_S:g} s: {SILENT}", EXIT_PEER_LOST)
            self._tell_all({"complete": all(each.rank is not None for each, join in there if join.role == WORKER)})

    # ------------------------------------------------------------------------------------------- plain MXNet programs

    async def serve_guest(self, connection: Connection, first: bytes) -> None:
        """Registers a plain MXNet program; in RUNNING, forwards its connection to MXNet's own scheduler."""
        if not GREETING.fullmatch(first):
            return
        if connection.address not in self._plain_addresses:  # warn once: it may reconnect often
            self._plain_addresses.add(connection.address)
            how = "it knows no ESYNC_TOKEN, which this job has" if self._token else "its set-up cannot be compared"
            log.warning("%s wants to take part: %s", _plain_name(connection), how)
        if self._token:
            return
        while not self._is_free or connection not in self._plain:
            await asyncio.sleep(LOOK_S)
            has_left = is_readable(connection.socket)  # or says more, which is not answered yet
            if has_left or len(self._plain - {connection}) >= self._most_strangers:
                return
            self._plain.add(connection)  # a scanner has left by now
        address = await _forwarded(first, connection.socket, self._address, self._scheduler_port)
        await connection.free()
        if address:
            await self._watch_plain(connection, *address)

    async def _watch_plain(self, connection: Connection, address: str, port: int) -> None:
        """Ends the job if a plain MXNet program, which sends no good-bye, stops listening in RUNNING.

        When the job ends normally, the programs and MXNet's scheduler, in this process, end together.
        """
        with contextlib.suppress(ConnectionError):
            while True:
                (await _connected(address, port, SILENT_S)).close()
                await asyncio.sleep(LOOK_EVERY_S)
        if self._state is State.RUNNING and "" not in self._left.values():
            self._finish(how_lost(_plain_name(connection), EOFError()), EXIT_PEER_LOST)


def _not_now(message: object) -> Refused:
    return Refused(
        f"this process sent what it may not send, or not now: {message!r:.200}; bring the same version of this program "
        "to every host"
    )


def _listens_at(sent: bytes) -> tuple[str, int] | None:
    """The host and port at which a plain program listens, from its registration: fields 3 and 4 of ps-lite's protobuf
    PBNode (meta.proto). None where the bytes hold none."""
    for found in re.finditer(rb"\x1a([\x01-\x7f])([\w.:-]+)\x20", sent):
        if len(found[2]) == found[1][0]:
            port = 0
            for shift, byte in enumerate(sent[found.end() : found.end() + 3]):
                port |= (byte & 0x7F) << 7 * shift
                if byte < 0x80:
                    return found[2].decode(), port
    return None


async def _forwarded(first: bytes, program: socket.socket, address: str, port: int) -> tuple[str, int] | None:
    """Copies both ways, after the program's `first` bytes, until one side closes, as the program does once it is
    registered over another connection. Returns host and port at which the program listens, if it sent them. Raises
    OSError where MXNet's scheduler does not listen."""
    loop, sent = asyncio.get_running_loop(), bytearray()  # by the program, at first

    async def copy(chunk: bytes, source: socket.socket, sink: socket.socket, noted: bytearray) -> None:
        with contextlib.suppress(OSError):
            while chunk:
                await loop.sock_sendall(sink, chunk)
                chunk = await loop.sock_recv(source, CHUNK)
                noted.extend(chunk if len(noted) < CHUNK else b"")
        for each in (source, sink):  # which ends the other direction
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    with await _connected(address, port, LISTEN_S) as scheduler:
        greeting = await loop.sock_recv(scheduler, CHUNK)
        await asyncio.gather(copy(first, program, scheduler, sent), copy(greeting, scheduler, program, bytearray()))
    return _listens_at(bytes(sent))


async def _connected(address: str, port: int, within_s: float) -> socket.socket:
    """A connection with the MXNet that listens there; raises ConnectionError where none does in time."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while True:
        found = socket.socket()
        found.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_connect(found, (address, port)), end - loop.time())
        except (OSError, asyncio.TimeoutError):  # the latter is no OSError before Python 3.11
            found.close()
        else:
            return found
        if loop.time() > end:
            raise ConnectionError(f"MXNet does not listen at {address}:{port}")
        await asyncio.sleep(0.05)
