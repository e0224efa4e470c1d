"""Forwards a plain MXNet program's connection from the rendezvous server's port to MXNet's own scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket

from trainer.hub.wire import ZERO_MQ

LISTEN_S = 30.0  # for MXNet's own scheduler to listen
CONNECT_S = 5.0
CHUNK = 1 << 16  # bytes
# The first ten bytes of a ZeroMQ connection: 0xff, a length of 8 bytes, and 0x7f
GREETING = re.compile(ZERO_MQ + rb"\0{7}.\x7f", re.DOTALL)


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


async def forward(first: bytes, program: socket.socket, address: str, port: int) -> tuple[str, int] | None:
    """Copies both ways, after the program's `first` bytes, until one side closes, as the program does once it is
    registered over another connection. Returns host and port at which the program listens, if it sent them. Raises
    OSError where MXNet's scheduler does not listen."""
    loop = asyncio.get_running_loop()
    greeting, scheduler = await _scheduler(loop, address, port)

    async def copy(chunk: bytes, source: socket.socket, sink: socket.socket, noted: bytearray) -> None:
        with contextlib.suppress(OSError):
            while chunk:
                await loop.sock_sendall(sink, chunk)
                chunk = await loop.sock_recv(source, CHUNK)
                noted.extend(chunk if len(noted) < CHUNK else b"")
        for each in (source, sink):  # which ends the other direction
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    sent = bytearray()  # by the program, at first
    try:
        await asyncio.gather(copy(first, program, scheduler, sent), copy(greeting, scheduler, program, bytearray()))
    finally:
        scheduler.close()
    return listens_at(bytes(sent))


async def _scheduler(loop: asyncio.AbstractEventLoop, address: str, port: int) -> tuple[bytes, socket.socket]:
    """Connects with MXNet's own scheduler once it listens; returns its first bytes too."""
    end = loop.time() + LISTEN_S
    while True:
        scheduler = socket.socket()
        scheduler.setblocking(False)
        with contextlib.suppress(OSError):
            await loop.sock_connect(scheduler, (address, port))
            greeting = await loop.sock_recv(scheduler, CHUNK)
            if greeting.startswith(ZERO_MQ):
                return greeting, scheduler
        scheduler.close()  # or of the Acceptor, which is about to free the port
        if loop.time() > end:
            raise ConnectionError(f"MXNet's scheduler does not listen at {address}:{port}")
        await asyncio.sleep(0.05)


async def is_listening(address: str, port: int) -> bool:
    """Whether the port accepts connections."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_S)
    except (OSError, asyncio.TimeoutError):  # the latter is no OSError before Python 3.11
        return False
    writer.close()
    return True
