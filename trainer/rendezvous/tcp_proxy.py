"""Forwards a plain MXNet program's connection from the rendezvous server's port to MXNet's own scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket

from trainer.hub.wire import ZERO_MQ

LISTEN_S = 30.0  # for MXNet's own scheduler to listen
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

    with await connected(address, port, LISTEN_S) as scheduler:
        greeting = await loop.sock_recv(scheduler, CHUNK)
        await asyncio.gather(copy(first, program, scheduler, sent), copy(greeting, scheduler, program, bytearray()))
    return listens_at(bytes(sent))


async def connected(address: str, port: int, within_s: float) -> socket.socket:
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
