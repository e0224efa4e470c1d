"""Leads the connection of a plain MXNet program, which came to the meeting's port, to MXNet's own scheduler."""

from __future__ import annotations

import asyncio
import contextlib
from typing import NamedTuple

LISTEN_S = 30.0  # for MXNet's own scheduler to listen
CHUNK = 1 << 16  # bytes
ZERO_MQ = b"\xff"  # how each side of a ZeroMQ connection begins


class Caller(NamedTuple):
    """The plain program's connection."""

    first: bytes  # what it said at once
    more: asyncio.Task[bytes]  # what it says next, by `words`
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def lead(caller: Caller, address: str, port: int) -> None:
    """Copies both ways until one side closes.

    Raises:
        OSError: MXNet's scheduler does not listen.
    """
    greeting, reader, writer = await _scheduler(address, port)
    caller.writer.write(greeting)
    writer.write(caller.first)

    async def forth() -> None:
        writer.write(await caller.more)
        await _copy(caller.reader, writer)

    tasks = [asyncio.create_task(forth()), asyncio.create_task(_copy(reader, caller.writer))]
    try:
        done, still_open = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in still_open:
            task.cancel()
        await asyncio.gather(*still_open, return_exceptions=True)
        for task in done:
            task.result()  # no network's error: those end a direction, and no more
    finally:
        writer.close()


async def words(reader: asyncio.StreamReader) -> bytes:
    """What comes next; nothing where the connection is closed or broken."""
    with contextlib.suppress(OSError):
        return await reader.read(CHUNK)
    return b""


async def _scheduler(address: str, port: int) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to MXNet's own scheduler once it listens, and what it says first."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LISTEN_S
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(address, port)
            greeting = await reader.read(CHUNK)
            if greeting.startswith(ZERO_MQ):
                return greeting, reader, writer
            writer.close()  # the doorbell, which is about to leave the port to it
        if loop.time() > end:
            raise ConnectionError(f"MXNet's scheduler does not listen at {address}:{port}")
        await asyncio.sleep(0.05)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await words(source):
            sink.write(chunk)
            await sink.drain()
