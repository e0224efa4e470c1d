"""One process at the meeting, as the host sees it, and the lines that it sends."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from trainer.rendezvous.config_check import ProcessInfo
from utils import SetupError


@dataclass(eq=False)
class Participant:
    """A process that is connected."""

    writer: asyncio.StreamWriter
    address: str  # from which it speaks
    card: ProcessInfo | None = None  # None: a plain MXNet program, or one that has not said yet what it is
    rank: int | None = None
    tried: bool = False
    problems: list[str] = field(default_factory=list)  # whom it cannot reach
    last_words: str = ""  # why it is about to end
    said_goodbye: bool = False

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.card.name(self.rank) if self.card else f"a plain MXNet program at {self.address}"

    @property
    def role(self) -> str:
        """What it does in the job; empty where it has not said so."""
        return self.card.role if self.card else ""

    def send(self, **message: Any) -> None:
        """Sends without waiting; a participant that is gone is noticed elsewhere."""
        with contextlib.suppress(OSError):
            self.writer.write(json.dumps(message).encode() + b"\n")


async def messages(reader: asyncio.StreamReader) -> AsyncIterator[Any]:
    """What a process sends, until it closes the connection: JSON, of whatever shape.

    Raises:
        OSError: the connection broke.
        SetupError: a line is no JSON, or too long.
    """
    try:
        while (line := await reader.readline()).endswith(b"\n"):  # else the process was killed within a line
            yield json.loads(line)
    except (ValueError, RecursionError) as error:
        raise SetupError(f"this process sent a line that cannot be read ({error})") from None
