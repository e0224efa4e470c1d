"""The processes at the rendezvous, as the server sees them: their connections, and the lines that they send."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import secrets
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any

from trainer.coordinator import state_server_path  # noqa: F401  (the imports below need it)
from trainer.rendezvous import tcp_proxy
from trainer.rendezvous.rendezvous_client import RENDEZVOUS_FAILED
from trainer.rendezvous.scheduler_link import (
    HELLO,
    HELLO_AT_HUB,
    NONCE,
    PROOF,
    SAME_TOKEN,
    keep_alive,
    log,
    own_token,
    proof,
)
from utils import EXIT_SETUP, SetupError, die_on_error, printable

# isort: split
from server import wire
from server.errors import BadMessage, Conflict
from server.messages import Join

LINE_S = 30.0  # from the first byte of a line to its last
LONGEST_LINE = 1 << 18  # bytes; a connection can take the memory of two
MOST_STRANGERS = 64  # connections beside those of the job's processes


@dataclass(eq=False)
class Participant:
    """A connected process."""

    writer: asyncio.StreamWriter
    address: str  # from which it connects
    process: Join | None = None  # None: a plain MXNet program, or one that has not described itself yet
    rank: int | None = None
    unreached: list[str] = field(default_factory=list)  # places that acknowledge nothing that it sends
    error: str = ""  # for which it is about to end
    said_goodbye: bool = False
    comes_back: bool = False  # a worker that takes the place of a lost one, and does not train yet
    number: int = 0  # of this change
    no_alarm_before: float = 0.0  # is about this process: MXNet may not have heard of it

    @property
    def name(self) -> str:
        """For messages."""
        return self.process.member.called(self.rank) if self.process else f"a plain MXNet program at {self.address}"

    @property
    def role(self) -> str:
        """Empty where it is unknown."""
        return self.process.role if self.process else ""

    @property
    def place(self) -> str:
        """Where MXNet listens, as "10.0.0.1:4711"."""
        return self.process.member.place if self.process else ""

    @property
    def worker_rank(self) -> int | None:
        """None for another role, and before the rank is known."""
        return self.rank if self.role == "worker" else None

    def send(self, **message: Any) -> None:
        """Sends without waiting; a lost connection is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.writer.write(json.dumps(message).encode() + b"\n")


async def within_line_s(reading: Awaitable[bytes]) -> bytes:
    """What is read. Raises TimeoutError, without an error number where it took longer than LINE_S, with one where the
    connection broke."""
    try:
        return await asyncio.wait_for(reading, LINE_S)
    except asyncio.TimeoutError as error:  # not a TimeoutError before Python 3.11
        raise error if isinstance(error, TimeoutError) else TimeoutError from None


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """The JSON values that a process sends, of whatever shape, until it closes the connection. Raises OSError where the
    connection broke; SetupError where a line is no JSON, too long or not complete in time, or the first one did not
    begin in time."""
    begin = b""
    try:
        while True:
            line = begin + await within_line_s(reader.readline())
            if not line.endswith(b"\n"):  # the process was killed within a line
                return
            yield json.loads(line)
            begin = await reader.read(1)  # the next line may come hours later
    except TimeoutError as error:
        if error.errno is not None:  # the network's
            raise
        raise SetupError(f"this process did not complete a line within {LINE_S:g} s") from None
    except (ValueError, RecursionError) as error:
        raise SetupError(f"this process sent a line that cannot be read ({error})") from None


class ProcessConnections(ABC):
    """Those of all processes, in one thread with one asyncio loop.

    A process of this program begins with HELLO, and sends lines; a plain MXNet program takes part without them. What
    else connects is a stranger, of which few stay.
    """

    def __init__(self, listener: socket.socket, num_processes: int) -> None:
        self._listener = listener
        self._token = own_token()
        self._most_strangers = MOST_STRANGERS + num_processes
        self._strangers: dict[Participant, None] = {}  # connections of unknown processes, the oldest first
        self._participants: list[Participant] = []
        self._plain_addresses: set[str] = set()  # of plain MXNet programs: they lack this rendezvous
        self._scheduler_port = 0  # MXNet's own
        self._loop = asyncio.new_event_loop()
        self._running = asyncio.Event()  # MXNet's scheduler listens

    def _start(self) -> None:
        threading.Thread(target=self._run, name="rendezvous server", daemon=True).start()

    @abstractmethod
    def _handle(self, participant: Participant, message: Any) -> None:
        """Acts on a message; raises SetupError, and does nothing, where this participant may not send it now."""

    @abstractmethod
    def _on_closed(self, participant: Participant) -> None:
        """The other side has closed the connection, or is to count as gone; may come twice."""

    @abstractmethod
    def _on_broken(self, participant: Participant, error: OSError) -> None:
        """The network has lost the connection."""

    @abstractmethod
    async def _watch_plain(self, participant: Participant, address: str, port: int) -> None:
        """A plain MXNet program listens there from now on."""

    def _run(self) -> None:
        with die_on_error(RENDEZVOUS_FAILED):
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._loop.set_exception_handler(_die)
        server = await asyncio.start_server(self._on_connection, sock=self._listener, limit=LONGEST_LINE)
        async with server:
            await server.serve_forever()

    async def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with die_on_error(RENDEZVOUS_FAILED):
            participant = Participant(writer, writer.get_extra_info("peername")[0])
            self._strangers[participant] = None
            if len(self._strangers) > self._most_strangers:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.writer.transport.abort()
            try:
                keep_alive(writer.get_extra_info("socket"))
                first = await within_line_s(reader.readexactly(len(HELLO)))
                if first == HELLO:
                    await self._converse(participant, reader)
                elif first == HELLO_AT_HUB:
                    raise SetupError(
                        "here is a scheduler of MXNet's kvstore, and no hub: give every process the same -m"
                    )
                elif tcp_proxy.is_zero_mq(first):
                    await self._serve_plain(participant, first, reader)
            except asyncio.IncompleteReadError:
                pass  # a port scanner, or a process that ended at once
            except ConnectionResetError:
                self._on_closed(participant)
            except OSError as error:
                self._on_broken(participant, error)
            except SetupError as error:
                participant.error = printable(str(error))
                log.warning("a connection from %s was ended: %s", participant.address, participant.error)
                participant.send(end=participant.error, code=EXIT_SETUP)
                self._on_closed(participant)
            else:
                self._on_closed(participant)
            finally:
                self._strangers.pop(participant, None)
                with contextlib.suppress(ValueError):
                    self._participants.remove(participant)
                writer.close()

    async def _converse(self, participant: Participant, reader: asyncio.StreamReader) -> None:
        await self._welcome(participant, reader)
        async for message in messages(reader):
            try:
                is_read = isinstance(message, dict) and "msg_type" in message
                self._handle(participant, wire.understand(message, ()) if is_read else message)
            except (BadMessage, Conflict) as error:
                raise SetupError(f"this process sent a wrong message: {error}") from None

    async def _welcome(self, participant: Participant, reader: asyncio.StreamReader) -> None:
        """Raises SetupError where the process does not know the token."""
        if not self._token:
            participant.send(welcome=True)
            return
        challenge = secrets.token_hex(NONCE)
        participant.send(welcome=True, challenge=challenge)
        nonce = await within_line_s(reader.readexactly(NONCE))
        given = await within_line_s(reader.readexactly(PROOF))
        if not hmac.compare_digest(given, proof(self._token, b"process", challenge.encode(), nonce)):
            raise SetupError(f"this process has another ESYNC_TOKEN than the scheduler, or none: {SAME_TOKEN}")
        participant.send(proof=proof(self._token, b"scheduler", challenge.encode(), nonce).hex())

    # ------------------------------------------------------------------------------------------ connected processes

    def _known(self) -> list[Participant]:
        return [participant for participant in self._participants if participant.process]

    def _joins(self) -> list[Join]:
        return [participant.process for participant in self._participants if participant.process]

    def _plain(self) -> list[Participant]:
        return [participant for participant in self._participants if not participant.process]

    def _find(self, role: str, rank: int) -> Participant | None:
        there = tuple(self._participants)  # a copy: called by other threads too
        return next((each for each in there if (each.role, each.rank) == (role, rank)), None)

    def _name_of(self, role: str, rank: int) -> str:
        participant = self._find(role, rank)
        return participant.name if participant else f"{role} {rank}"

    def _tell_all(self, **message: Any) -> None:
        for participant in self._known():
            participant.send(**message)

    # ------------------------------------------------------------------------------------------ plain MXNet programs

    async def _serve_plain(self, participant: Participant, first: bytes, reader: asyncio.StreamReader) -> None:
        """Registers a plain MXNet program; in RUNNING, forwards its connection to MXNet's own scheduler."""
        if len(self._plain()) >= self._most_strangers:
            return
        if participant.address not in self._plain_addresses:  # warn once: it may reconnect often
            self._plain_addresses.add(participant.address)
            how = "it knows no ESYNC_TOKEN, which this job has" if self._token else "its set-up cannot be compared"
            log.warning("%s wants to take part: %s", participant.name, how)
        if self._token:
            return
        self._strangers.pop(participant, None)
        self._participants.append(participant)
        running = self._loop.create_task(self._running.wait())
        more = self._loop.create_task(tcp_proxy.read_chunk(reader))  # without an answer, completes only at EOF
        await asyncio.wait({more, running}, return_when=asyncio.FIRST_COMPLETED)
        if not self._running.is_set():
            running.cancel()
            return
        address = await tcp_proxy.forward(
            tcp_proxy.PlainConnection(first, more, reader, participant.writer),
            self._listener.getsockname()[0],
            self._scheduler_port,
        )
        if address:
            await self._watch_plain(participant, *address)


def _die(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    with die_on_error(RENDEZVOUS_FAILED):
        raise context.get("exception") or RuntimeError(context["message"])
