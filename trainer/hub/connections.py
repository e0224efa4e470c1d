"""The hub's connections, on one asyncio loop: who may take part, and frames in and out.

A worker and the hub show each other that they know the job's token before either believes a length:

    worker: HELLO                      hub: {"welcome": its id, "challenge": bytes; empty without a token}
    worker: {"nonce", "proof"}         hub: {"proof"}

A process of a job with MXNet's kvstore, which takes the hub for its scheduler, is told so.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import secrets
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainer.hub.frames import (
    LENGTH,
    LONGEST,
    LONGEST_OF_STRANGER,
    PIECE,
    NotAFrame,
    bytes_of,
    length_in,
    num_numbers,
    outgoing,
    read,
)
from trainer.hub.server_part import Arrays, Message
from trainer.rendezvous.scheduler_link import HELLO as HELLO_OF_KVSTORE
from trainer.rendezvous.scheduler_link import HELLO_AT_HUB, SAME_TOKEN, keep_alive, own_token, proof
from utils import EXIT_SETUP, die_on_error

BEAT_S = 1.0  # between two signs of life
SILENT_S = 8.0  # without a byte of a worker, or of the hub, which sends one each second
GREETING_S = 10.0  # for a stranger to show that it takes part
MOST_STRANGERS = 64  # beside the processes of the job
_NONCE = 16  # bytes


def local_name(address: str, port: int) -> str:
    """Of the hub's Unix socket, which workers of its own host use; no file stands for it."""
    return f"\0esync-hub-{address}-{port}"


def set_up(connection: socket.socket) -> None:
    """Sends small messages at once, and ends a connection whose bytes are not acknowledged."""
    if connection.family != socket.AF_UNIX:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # of Linux
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(SILENT_S * 1000))
        keep_alive(connection)


class Refused(Exception):
    """This process cannot take part, for a reason in words."""


class Connection:
    """With one process."""

    def __init__(self, connection: socket.socket, address: str, port: int) -> None:
        self.socket, self.address, self.port = connection, address, port
        self.rank: int | None = None  # of the worker, once it has one
        self.heard = time.monotonic()  # when the last piece came
        self.is_receiving = False  # arrays
        self.number = 0  # of its return, as context.Peers has them
        self.is_asking = False  # the worker waits for an answer
        self.since = 0.0  # when its question had come
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._is_closed = False
        connection.setblocking(False)
        set_up(connection)

    @property
    def is_sending(self) -> bool:
        return self._sending.locked()

    async def send(self, message: Message, arrays: Arrays = ()) -> None:
        """Sends a frame behind those before it. Raises OSError where the connection is lost."""
        async with self._sending:
            if self._is_closed:
                raise BrokenPipeError
            for piece in outgoing(message, arrays):
                await self._loop.sock_sendall(self.socket, piece)

    async def receive(
        self, longest: int, allowed: Callable[[], Sequence[tuple[int, ...]] | None]
    ) -> tuple[Message, Arrays]:
        """The next frame, with arrays of the allowed shapes or none; None: of any shapes. Raises EOFError or OSError
        where the connection is lost, NotAFrame where something else comes."""
        head = bytearray(LENGTH.size)
        await self._fill(memoryview(head))
        text = bytearray(length_in(head, longest))
        await self._fill(memoryview(text))
        message, found = read(text)
        shapes = allowed()
        if found and shapes is not None and found != list(shapes):
            raise NotAFrame(f"it sends {num_numbers(found)} numbers, and the model has {num_numbers(list(shapes))}")
        try:
            arrays = [np.empty(shape, np.float32) for shape in found]
        except (MemoryError, ValueError):
            raise NotAFrame("it sends arrays for which there is no room") from None
        self.is_receiving = bool(arrays)
        for array in arrays:
            await self._fill(bytes_of(array))
        self.is_receiving = False
        return message, arrays

    async def _fill(self, view: memoryview) -> None:
        while view:
            count = await self._loop.sock_recv_into(self.socket, view[:PIECE])
            if not count:
                raise EOFError
            self.heard = time.monotonic()
            view = view[count:]

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
        async with self._sending:
            self._is_closed = True
            self.socket.close()


class Connections(ABC):
    """Accepts processes, and handles their messages one at a time."""

    def __init__(self, listeners: Sequence[socket.socket], address: str, kind: str, num_processes: int) -> None:
        """`address` is the hub's own; `kind` names the job, for the processes of others."""
        self._most_strangers = MOST_STRANGERS + num_processes
        self._listeners, self._address, self._kind = listeners, address, kind
        self._token = own_token()
        self.instance = secrets.token_hex(8)  # of this process
        self._strangers: dict[Connection, None] = {}  # the oldest first
        self._num_local = 0  # connections over the Unix socket so far
        self._tasks: set[asyncio.Task[Any]] = set()

    @abstractmethod
    async def handle(self, connection: Connection, message: Message, arrays: Arrays) -> None:
        """Acts on a message. Raises Refused where this process cannot take part."""

    @abstractmethod
    def on_closed(self, connection: Connection, why: str) -> None:
        """The connection has ended, for this reason; empty: the other side has closed it."""

    @abstractmethod
    def shapes(self) -> Sequence[tuple[int, ...]] | None:
        """Of the arrays in a message; None: not known yet."""

    def start(self, work: Any) -> None:
        """Runs a coroutine beside; an error in it ends the process."""

        async def guarded() -> None:
            try:
                await work
            except Exception:
                with die_on_error("the hub failed"):
                    raise

        task = asyncio.get_running_loop().create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def accept(self) -> None:
        """Accepts connections for ever."""
        for listener in self._listeners:
            listener.setblocking(False)
            self.start(self._accept(listener))

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, place = await loop.sock_accept(listener)
                self._num_local += listener.family == socket.AF_UNIX
                host, port = (place[0], place[1]) if isinstance(place, tuple) else (self._address, self._num_local)
                self.start(self._serve(Connection(accepted, host, port)))
            except OSError as error:  # no more files, or it has gone already
                logging.warning("warning: a connection was not accepted: %s", error.strerror or error)
                await asyncio.sleep(0.1)

    async def _serve(self, connection: Connection) -> None:
        why = ""
        try:
            self._strangers[connection] = None
            if len(self._strangers) > self._most_strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.close()
            try:
                await asyncio.wait_for(self._greet(connection), GREETING_S)
            except asyncio.TimeoutError:
                raise EOFError from None
            finally:
                self._strangers.pop(connection, None)
            while True:
                message, arrays = await connection.receive(LONGEST, self.shapes)
                await self.handle(connection, message, arrays)
                del message, arrays  # the next ones need room
        except (EOFError, ConnectionResetError, BrokenPipeError):
            pass
        except OSError as error:
            why = f"the network has lost the connection ({error.strerror or error})"
        except (NotAFrame, Refused) as error:
            why = str(error)
            logging.warning("warning: a connection from %s was ended: %s", connection.address, why)
            with contextlib.suppress(OSError):
                await connection.send({"end": why, "code": EXIT_SETUP})
        finally:
            await connection.free()
            self.on_closed(connection, why)

    async def _greet(self, connection: Connection) -> None:
        hello = await connection.exactly(len(HELLO_AT_HUB))
        if hello == HELLO_OF_KVSTORE:
            why = (
                f"here is the hub of {self._kind}, and no scheduler of MXNet's kvstore: give every process the same -m"
            )
            told = json.dumps({"end": why, "code": EXIT_SETUP}) + "\n"
            await asyncio.get_running_loop().sock_sendall(connection.socket, told.encode())
        if hello != HELLO_AT_HUB:
            raise EOFError
        challenge = secrets.token_hex(_NONCE) if self._token else ""
        await connection.send({"welcome": self.instance, "challenge": challenge})
        shown, _ = await connection.receive(LONGEST_OF_STRANGER, lambda: ())
        nonce, given = (str(shown.get(name, "")).encode(errors="replace") for name in ("nonce", "proof"))
        expected = proof(self._token, b"worker", challenge.encode(), nonce).hex().encode()
        if self._token and not hmac.compare_digest(given, expected):
            raise Refused(f"this process has another ESYNC_TOKEN than the hub, or none: {SAME_TOKEN}")
        await connection.send(
            {"proof": proof(self._token, b"hub", challenge.encode(), nonce).hex() if challenge else ""}
        )
