"""One process at the rendezvous, as the server sees it, and the lines that it sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, field
from typing import Any

from trainer.coordinator import state_server_path  # noqa: F401  (the imports below need it)
from utils import SetupError

# isort: split
from server.messages import Join

LINE_S = 30.0  # from the first byte of a line to its last


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
    """What is read.

    Raises:
        TimeoutError: it took longer than LINE_S, without an error number; or the connection broke.
    """
    try:
        return await asyncio.wait_for(reading, LINE_S)
    except asyncio.TimeoutError as error:  # not a TimeoutError before Python 3.11
        raise error if isinstance(error, TimeoutError) else TimeoutError from None


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """The JSON values that a process sends, of whatever shape, until it closes the connection.

    Raises:
        OSError: the connection broke.
        SetupError: a line is no JSON, too long, or not complete in time; or the first one did not begin in time.
    """
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
