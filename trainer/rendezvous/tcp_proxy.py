"""Leads the connection of a plain MXNet program, which came to the meeting's port, to MXNet's own scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import NamedTuple

LISTEN_S = 30.0  # for MXNet's own scheduler to listen
CONNECT_S = 5.0
CHUNK = 1 << 16  # bytes
ZERO_MQ = b"\xff"  # how each side of a ZeroMQ connection begins


def is_zero_mq(signature: bytes) -> bool:
    """Whether a connection's first ten bytes are a ZeroMQ greeting's: 0xff, a length of 8 bytes, and 0x7f."""
    return signature[:1] == ZERO_MQ and signature[1:8] == bytes(7) and signature[9:] == b"\x7f"


def listens_at(sent: bytes) -> tuple[str, int] | None:
    """The address at which a plain program listens, from the bytes with which it registers: in ps-lite's protobuf
    (meta.proto, PBNode) field 3 is the host's name and field 4 the port. None where the bytes have none."""
    for found in re.finditer(rb"\x1a([\x01-\x7f])([\w.:-]+)\x20", sent):
        if len(found[2]) == found[1][0]:
            port = 0
            for shift, byte in enumerate(sent[found.end() : found.end() + 3]):
                port |= (byte & 0x7F) << 7 * shift
                if byte < 0x80:
                    return found[2].decode(), port
    return None


class Caller(NamedTuple):
    """The plain program's connection."""

    first: bytes  # what it said at once
    more: asyncio.Task[bytes]  # what it says next, by `words`
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


async def lead(caller: Caller, address: str, port: int) -> tuple[str, int] | None:
    """Copies both ways until one side closes, as the program does once it is registered and has another connection.

    Returns:
        Where the program listens, if it said so.

    Raises:
        OSError: MXNet's scheduler does not listen.
    """
    greeting, reader, writer = await _scheduler(address, port)
    caller.writer.write(greeting)
    writer.write(caller.first)

    sent = bytearray()

    async def forth() -> None:
        sent.extend(more := await caller.more)
        writer.write(more)
        await _copy(caller.reader, writer, sent)

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
    return listens_at(bytes(sent))


async def is_listening(address: str, port: int) -> bool:
    """Whether a connection is taken there."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
    except OSError:
        return False
    writer.close()
    return True


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


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, noted: bytearray | None = None) -> None:
    """Copies until one side closes; the first bytes are also noted."""
    with contextlib.suppress(OSError):
        while chunk := await words(source):
            if noted is not None and len(noted) < CHUNK:
                noted.extend(chunk)
            sink.write(chunk)
            await sink.drain()
