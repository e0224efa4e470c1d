"""The connections of the hub, and of the rendezvous, on one asyncio loop: who may take part, and frames in and out.

wire.py has the other side, and the greeting.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from server.errors import BadMessage, Conflict
from server.messages import Join
from server.rendezvous.membership import Group
from trainer.hub import frames
from trainer.hub.server_part import Arrays, Message, Sink
from trainer.hub.wire import HELLO, SAME_TOKEN, log, own_token, proof, proves, set_up
from trainer.membership import Change
from utils import EXIT_SETUP, die_on_error, printable

FAREWELL_S = 2.0  # for the other processes to get the last message, and end
LATE_S = 15.0  # for late processes to come, and hear why the job has ended
GREETING_S = 10.0  # for a stranger to show that it takes part
LARGE, TURN_S = 1 << 22, 0.25  # bytes of an upload that has a turn, and how long
MOST_STRANGERS = 64  # beside the processes of the job


class Refused(Exception):
    """This process cannot take part, for a reason in words."""


class State(enum.Enum):
    """The phase of a job."""

    WAITING = enum.auto()  # for its processes
    RUNNING = enum.auto()
    OVER = enum.auto()


class Turns:
    """Of uploads that are held as a whole, with their answers: one after the other, so that the memory need not hold
    all. A slow one does not keep the next one waiting."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def next(self) -> Callable[..., None]:
        """Waits for a turn; returns what ends it."""
        await self._lock.acquire()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(TURN_S, self._lock.release)

        def end(_: object = None) -> None:
            if not timer.cancelled() and timer.when() > loop.time():  # else it has ended
                timer.cancel()
                self._lock.release()

        return end


class Connection:
    """With one process."""

    def __init__(self, connection: socket.socket, address: str, port: int, server: Connections) -> None:
        self.socket, self.address, self.port, self._server = connection, address, port, server
        self.rank: int | None = None  # of the worker, once it has one
        self.heard = time.monotonic()  # when the last piece came
        self._gap_s = 0.0  # the longest time between two pieces since the last look
        self.is_receiving = False  # arrays
        self.is_streaming = False  # them, into a sink
        self._scratch: np.ndarray | None = None  # made where it is needed
        self.came_back = Change()  # in the place of a lost one
        self.asked: float | None = None  # when the worker's question had come; None: it waits for no answer
        self.shares = False  # memory with the hub
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()  # pieces that the kernel does not take yet
        self._flushing: asyncio.Task[None] | None = None
        self._end_turn: Callable[..., None] = lambda *_: None
        connection.setblocking(False)
        set_up(connection)

    @property
    def is_sending(self) -> bool:
        return bool(self._unsent)

    def send(self, message: Message, arrays: Arrays = ()) -> None:
        """Sends a frame behind those before it, what the kernel takes of it at once. The arrays must not change until
        it has arrived. The reader of this connection hears of its loss."""
        self._unsent.extend(map(memoryview, frames.outgoing(message, arrays)))
        if self._flushing is None or self._flushing.done():
            try:
                while self._unsent:
                    count = self.socket.send(self._unsent[0])
                    self._take(count)
            except BlockingIOError:
                self._flushing = self._loop.create_task(self._flush())
            except OSError:
                self._give_up()

    async def _flush(self) -> None:
        try:
            while self._unsent:
                piece = self._unsent[0]
                await self._loop.sock_sendall(self.socket, piece)
                self._take(len(piece))
        except OSError:
            self._give_up()

    def _take(self, count: int) -> None:
        """The kernel has taken so many bytes."""
        if rest := self._unsent.popleft()[count:]:
            self._unsent.appendleft(rest)

    def _give_up(self) -> None:
        self._unsent.clear()
        self.close()

    async def receive(self, is_stranger: bool = False) -> tuple[Message, Arrays]:
        """The next frame; its arrays go into what takes them, if there is any. A stranger's is short, and has none.
        Raises EOFError or OSError where the connection is lost, frames.NotAFrame where something else comes."""
        longest = frames.LONGEST_OF_STRANGER if is_stranger else frames.LONGEST
        length = frames.length_in(await self.exactly(frames.LENGTH.size), longest)
        message, found = frames.read(await self.exactly(length))
        if found and (is_stranger or not self._server.may_come(message, found)):
            raise frames.NotAFrame(f"it sends {frames.num_numbers(found)} numbers, and the model has others")
        try:
            sink = self._server.into(self, message, found) if found else None
            if sink is None and 4 * frames.num_numbers(found) >= LARGE:
                self.heard = math.inf  # it is not read, so it is not silent
                self._end_turn = await self._server.turns.next()
                self.heard = time.monotonic()
            arrays = [] if sink is not None else [np.empty(shape, np.float32) for shape in found]
        except (MemoryError, ValueError):
            raise frames.NotAFrame("it sends arrays for which there is no room") from None
        self.is_receiving, self.is_streaming = bool(found), sink is not None
        if sink is not None:
            await self._stream(sink, frames.num_numbers(found))
        for array in arrays:
            await self._fill(frames.bytes_of(array))
        self.is_receiving = self.is_streaming = False
        return message, arrays

    def end_turn(self) -> None:
        """Once nothing is being sent."""
        if self._flushing is not None and not self._flushing.done():
            self._flushing.add_done_callback(self._end_turn)
        else:
            self._end_turn()

    async def _stream(self, sink: Sink, left: int) -> None:
        """Gives so many numbers to the sink, while the processor has them at hand."""
        if self._scratch is None:
            self._scratch = np.empty(frames.PIECE // 4, np.float32)
        scratch, position, held = frames.bytes_of(self._scratch), 0, 0  # bytes of a number that has not come whole
        while left:
            held += await self._some(scratch[held : 4 * left])
            count = held // 4
            sink(position, self._scratch[:count])
            scratch[: held - 4 * count] = scratch[4 * count : held]
            position, left, held = position + count, left - count, held - 4 * count

    async def _fill(self, view: memoryview) -> None:
        while view:
            view = view[await self._some(view[: frames.PIECE]) :]

    async def _some(self, view: memoryview) -> int:
        """Reads what has come, at least a byte; returns how many."""
        count = await self._loop.sock_recv_into(self.socket, view)
        if not count:
            raise EOFError
        now = time.monotonic()
        self._gap_s, self.heard = max(self._gap_s, now - self.heard), now
        return count

    def take_gap(self) -> float:
        """Seconds of the longest silence since the last call."""
        gap_s, self._gap_s = self._gap_s, 0.0
        return gap_s

    async def exactly(self, count: int) -> bytes:
        content = bytearray(count)
        await self._fill(memoryview(content))
        return bytes(content)

    def close(self) -> None:
        """Ends also what other tasks wait for here."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    async def free(self) -> None:
        """Called by the last reader. asyncio must not wait for a socket that is freed, whose number the next one
        gets."""
        self.close()
        if self._flushing is not None:
            await self._flushing
        self._end_turn()
        self._unsent.clear()
        self.socket.close()


class Connections(ABC):
    """Accepts processes, and handles their messages one at a time."""

    _num_workers: int  # of the job

    def __init__(
        self, listeners: Sequence[socket.socket], address: str, kind: str, whole: str, num_processes: int
    ) -> None:
        """`address` is the server's own; its `kind` is HUB or SCHEDULER; `whole` names it, for the processes of other
        jobs."""
        self._most_strangers = MOST_STRANGERS + num_processes
        self._listeners, self._address, self._kind, self._whole = listeners, address, kind, whole
        self._token = own_token()
        self.instance = secrets.token_hex(8)  # of this process
        self._state = State.WAITING
        self._group = Group()  # of the processes of the job, until RUNNING
        self._joins: dict[Connection, Join] = {}  # the newest of each of them that is connected
        self._gathered: dict[str, dict[int, Any]] = {}  # values by label and rank
        self._end: Message = {}  # the last message to all
        self._num_processes, self._late = num_processes, 0  # of the job; of these, still to be told of the end
        self._strangers: dict[Connection, None] = {}  # the oldest first
        self._num_local = 0  # connections over the Unix socket so far
        self._tasks: set[asyncio.Task[Any]] = set()

    @abstractmethod
    async def handle(self, connection: Connection, message: Message, arrays: Arrays) -> None:
        """Acts on a message. Raises Refused or BadMessage where this process cannot take part; EOFError ends it."""

    @abstractmethod
    def on_closed(self, connection: Connection, error: Exception) -> None:
        """The connection has ended, as `how_lost` tells."""

    def may_come(self, message: Message, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether arrays of these shapes may come with a message."""
        return False

    def into(self, connection: Connection, message: Message, shapes: Sequence[tuple[int, ...]]) -> Sink | None:
        """What takes arrays of these shapes as they come; None: they are handled with the message."""
        return None

    async def serve_guest(self, connection: Connection, first: bytes) -> None:
        """Serves a process whose first bytes are these, and no HELLO; here none."""
        raise EOFError

    def _tell_all(self, message: Message) -> None:
        for connection in self._joins:
            connection.send(message)

    def _fail(self, why: str) -> NoReturn:
        """A process has ended before it joined the others, which would wait for it, also those that come later."""
        if self._state is State.WAITING:
            self._finish(printable(why), EXIT_SETUP, late=self._num_processes - len(self._joins) - 1)
        else:  # it ends by itself
            self._late -= 1
        raise EOFError

    def _finish(self, text: str, code: int, late: int = 0) -> None:
        """Tells all processes why the job is over. As many as `late` are still to connect and must be told too."""
        if self._state is not State.OVER:
            self._state, self._end, self._late = State.OVER, {"end": text, "code": code}, late
            self._tell_all(self._end)

    def _tell_end(self, connection: Connection, join: Join) -> None:
        """Tells a process that comes late why the job is over."""
        self._late -= 1
        self._joins[connection] = join
        connection.send(self._end)

    async def until_alone(self) -> None:
        """Waits until the processes of the job have heard its end, and are gone; where some are late, LATE_S at most.
        The scheduler's own connection does not count: it waits here."""
        begin = time.monotonic()
        while time.monotonic() < begin + (LATE_S if self._late > 0 else FAREWELL_S):
            if self._late <= 0 and all(join.role == "scheduler" for join in self._joins.values()):
                break
            await asyncio.sleep(0.02)

    def _gather(self, label: str, rank: int, value: Any) -> None:
        """Notes a worker's value; sends those of all by rank to all, once all are there."""
        values = self._gathered.setdefault(label, {})
        values[rank] = value
        if len(values) == self._num_workers:
            del self._gathered[label]
            self._all_gathered(label, [values[rank] for rank in range(self._num_workers)])

    def _all_gathered(self, label: str, values: list[Any]) -> None:
        for connection in self._joins:
            if connection.rank is not None:
                connection.send({"gathered": values})

    def start(self, work: Any) -> asyncio.Task[Any]:
        """Runs a coroutine beside; an error in it ends the process."""

        def on_done(task: asyncio.Task[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.result()  # which raises the error, for `_die`

        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(on_done)
        return task

    def accept(self) -> None:
        """Accepts connections for ever."""
        asyncio.get_running_loop().set_exception_handler(self._die)
        self.turns = Turns()
        for listener in self._listeners:
            listener.setblocking(False)
            self.start(self._accept(listener))

    def _die(self, _: asyncio.AbstractEventLoop, context: Message) -> None:
        """asyncio would only print an error in what it calls."""
        if error := context.get("exception"):
            with die_on_error(f"the {self._kind} failed"):
                raise error

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, place = await loop.sock_accept(listener)
                self._num_local += listener.family == socket.AF_UNIX
                host, port = (place[0], place[1]) if isinstance(place, tuple) else (self._address, self._num_local)
                self.start(self._serve(Connection(accepted, host, port, self)))
            except OSError as error:  # no more files, or it has gone already
                log.warning("warning: a connection was not accepted: %s", error.strerror or error)
                await asyncio.sleep(0.1)

    async def _serve(self, connection: Connection) -> None:
        how: Exception = EOFError()
        try:
            self._strangers[connection] = None
            if len(self._strangers) > self._most_strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.close()
            try:
                first, said = await asyncio.wait_for(self._greet(connection), GREETING_S)
            finally:
                self._strangers.pop(connection, None)
            if first != HELLO:
                await self.serve_guest(connection, first)
            while first == HELLO:
                message, arrays = said or await connection.receive()
                await self.handle(connection, message, arrays)
                del said, message, arrays  # the next ones need room
                connection.end_turn()
                said = None
        except (EOFError, OSError, asyncio.TimeoutError) as error:  # the last is no OSError before Python 3.11
            how = error
        except (frames.NotAFrame, Refused, BadMessage, Conflict) as error:
            sent = "this process sent a wrong message: " * isinstance(error, (BadMessage, Conflict))
            how = Refused(printable(f"{sent}{error}"))
            log.warning("warning: a connection from %s was ended: %s", connection.address, how)
            connection.send({"end": str(how), "code": EXIT_SETUP})
        finally:
            await connection.free()
            self.on_closed(connection, how)

    async def _greet(self, connection: Connection) -> tuple[bytes, tuple[Message, Arrays] | None]:
        """The first bytes of a process, and the first message after the greeting."""
        if (hello := await connection.exactly(len(HELLO))) != HELLO:
            return hello, None
        challenge = secrets.token_hex(16) if self._token else ""
        connection.send({"welcome": self.instance, "challenge": challenge})
        shown, _ = await connection.receive(is_stranger=True)
        nonce, to = str(shown.get("nonce", "")), str(shown.get("to", ""))
        if to != self._kind:
            raise Refused(f"here is {self._whole}, and no {to}: give every process the same -m and --exchange")
        if self._token and not proves(shown, self._token, b"process", challenge, nonce):
            raise Refused(f"this process has another ESYNC_TOKEN than the {self._kind}, or none: {SAME_TOKEN}")
        connection.send({"proof": proof(self._token, b"server", challenge, nonce) if challenge else ""})
        return hello, await connection.receive()
