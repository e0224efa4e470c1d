"""Forwards a plain MXNet program's connection from the rendezvous server's port to MXNet's own scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import re

from trainer.hub.wire import ZERO_MQ

LISTEN_S = 30.0  # for MXNet's own scheduler to listen
CONNECT_S = 5.0
CHUNK = 1 << 16  # bytes


def is_zero_mq(signature: bytes) -> bool:
    """Whether a connection's first ten bytes are a ZeroMQ greeting: 0xff, a length of 8 bytes, and 0x7f."""
    return signature[:1] == ZERO_MQ and signature[1:8] == bytes(7) and signature[9:] == b"\x7f"


def listens_at(sent: bytes) -> tuple[str, int] | None:
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


async def forward(
    first: bytes,  # of the program
    more: asyncio.Task[bytes],  # `read_chunk` of the next ones
    program: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    address: str,
    port: int,
) -> tuple[str, int] | None:
    """Copies both ways until one side closes, as the program does once it is registered over another connection.
    Returns host and port at which the program listens, if it sent them. Raises OSError where MXNet's scheduler does not
    listen."""
    greeting, reader, writer = await _scheduler(address, port)
    program[1].write(greeting)
    writer.write(first)
    sent = bytearray()

    async def forth() -> None:
        sent.extend(await more)
        writer.write(sent)
        await _copy(program[0], writer, sent)

    tasks = [asyncio.create_task(forth()), asyncio.create_task(_copy(reader, program[1]))]
    try:
        done, still_open = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in still_open:
            task.cancel()
        await asyncio.gather(*still_open, return_exceptions=True)
        for task in done:
            task.result()  # raises bugs alone: an error of the network just ends a direction
    finally:
        writer.close()
    return listens_at(bytes(sent))


async def is_listening(address: str, port: int) -> bool:
    """Whether the port accepts connections."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
    except OSError:
        return False
    writer.close()
    return True


async def read_chunk(reader: asyncio.StreamReader) -> bytes:
    """The next bytes; none where the connection is closed or broken."""
    with contextlib.suppress(OSError):
        return await reader.read(CHUNK)
    return b""


async def _scheduler(address: str, port: int) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """Connects with MXNet's own scheduler once it listens; returns its first bytes too."""
    loop = asyncio.get_running_loop()
    end = loop.time() + LISTEN_S
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(address, port)
            greeting = await reader.read(CHUNK)
            if greeting.startswith(ZERO_MQ):
                return greeting, reader, writer
            writer.close()  # the Acceptor, which is about to free the port
        if loop.time() > end:
            raise ConnectionError(f"MXNet's scheduler does not listen at {address}:{port}")
        await asyncio.sleep(0.05)


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, noted: bytearray | None = None) -> None:
    """Copies until one side closes; appends the first bytes to `noted`."""
    with contextlib.suppress(OSError):
        while chunk := await read_chunk(source):
            if noted is not None and len(noted) < CHUNK:
                noted.extend(chunk)
            sink.write(chunk)
            await sink.drain()
