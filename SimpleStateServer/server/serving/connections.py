"""The open connections, and each one: bytes -> requests, one at a time -> answers. HTTP itself is read by httptools
(Node's parser)."""

from __future__ import annotations

import asyncio
import http
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, cast

import httptools

from server.answers import MAX_BODY_BYTES, Answer, Request, error
from server.log_limit import note_refusal
from server.metrics import Traffic
from server.serving import ConnectionLimits

HEAD_BYTES = 16 * 1024  # of a request's line and headers
HEADERS = 100  # number of them
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in http.HTTPStatus}
LINGER_BYTES = 1 << 20  # discarded, so that a sender of too much can still read the refusal


class Connections:
    """Closes the longest silent connections where new ones exceed the limits, so an active worker keeps its own.

    Args:
        limits: bounds of requests and connections.
        traffic: counts them.
        answer: answers a request.
    """

    def __init__(self, limits: ConnectionLimits, traffic: Traffic, answer: Callable[[Request], Answer]) -> None:
        self.limits, self.answer, self.traffic = limits, answer, traffic
        self.date = ""  # of now, for the answers' heads
        self.accepting: set[asyncio.Task[Any]] = set()  # connections that are being set up; a loop keeps none itself
        self._by_address: dict[str, dict[Connection, None]] = {}  # in the order in which they last spoke
        self.number = 0  # of open ones
        traffic.connections.set_function(lambda: self.number)

    def __iter__(self) -> Iterator[Connection]:
        return (connection for of_address in list(self._by_address.values()) for connection in list(of_address))

    def add(self, connection: Connection) -> None:
        """Adds a connection; where there are too many, another one is closed."""
        of_address = self._by_address.setdefault(connection.address, {})
        of_address[connection] = None
        self.number += 1
        if len(of_address) > self.limits.connections_per_address:
            self.close(next(iter(of_address)), "too many from its address")
        elif self.number > self.limits.connections:
            self.close_one("too many")

    def spoke(self, connection: Connection) -> None:
        of_address = self._by_address[connection.address]
        del of_address[connection]
        of_address[connection] = None

    def close_one(self, why: str) -> None:
        """Closes the longest silent connection of the address with the most connections."""
        if self._by_address:
            most = max(self._by_address.values(), key=lambda of_address: len(of_address))
            self.close(next(iter(most)), why)

    def close(self, connection: Connection, why: str) -> None:
        self.traffic.connections_closed.labels(why).inc()
        self.remove(connection)
        connection.close()

    def remove(self, connection: Connection) -> None:
        """Idempotent."""
        of_address = self._by_address.get(connection.address, {})
        if connection in of_address:
            del of_address[connection]
            if not of_address:
                del self._by_address[connection.address]
            self.number -= 1


class Connection(asyncio.Protocol):
    """Reads requests, answers them in order, one a turn, and enforces the bounds."""

    def __init__(self, connections: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._connections, self._limits, self._loop = connections, connections.limits, loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self.address = ""
        self._request = Request("")
        self._waiting: deque[Request] = deque()  # complete requests of a sender that does not wait for answers
        self._headers = 0
        self._received_in_head = 0  # of a head that is not complete
        self._in_head = True
        self._refusal: Answer | None = None
        self._lingering = 0
        self._due_since: float | None = None  # since when a request is on its way; None while none is
        self._untaken_since: float | None = None  # likewise, answers that the client does not take
        self._silent_since = 0.0

    # ----------------------------------------------------------------------------------- of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but its class
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "?"
        self._silent_since = self._loop.time()
        self._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Drops what was not received completely."""
        self._connections.remove(self)
        self._transport = None
        self._waiting.clear()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            self._lingering += len(data)
            if self._lingering > LINGER_BYTES:
                self.close()
            return
        if self._in_head:
            self._received_in_head += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # A request to upgrade the protocol is answered in this one, as HTTP says.
            if self._waiting and self._waiting[-1].method != "CONNECT":
                self._waiting[-1].keeps_alive = False
            else:
                self._refuse(error("this server speaks HTTP/1.1 and nothing else", 400))
        except httptools.HttpParserError as problem:
            # An exception of a callback of ours comes as one of the parser's.
            self._refuse(self._refusal or error(f"this is no HTTP request: {problem}", 400))
        if self._in_head and self._received_in_head > HEAD_BYTES:
            self._head_too_large()
        if self._waiting:
            self._next()

    def pause_writing(self) -> None:
        """The client does not read its answers: until it does, no request is read or answered, so that none pile up."""
        self._untaken_since = self._loop.time()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._untaken_since = None
        if self._waiting:
            self._next()
        elif self._transport is not None:
            self._transport.resume_reading()

    # -------------------------------------------------------------------------------------- of the parser

    def on_message_begin(self) -> None:
        self._request = Request(self.address, body=bytearray())
        self._headers = 0
        self._due_since = self._loop.time()

    def on_url(self, url: bytes) -> None:
        self._request.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers += 1
        if self._headers > HEADERS:
            self._refuse(error(f"there are more than {HEADERS} headers", 431))
            raise ValueError("too many headers")
        key, text, headers = name.decode("latin-1").lower(), value.decode("latin-1"), self._request.headers
        headers[key] = f"{headers[key]},{text}" if key in headers else text

    def on_headers_complete(self) -> None:
        """Refuses what the head alone forbids."""
        self._in_head, self._received_in_head = False, 0
        self._request.method, headers = self._parser.get_method().decode("latin-1"), self._request.headers
        if len(self._request.target) + sum(map(len, (*headers, *headers.values()))) > HEAD_BYTES:
            self._head_too_large()
            raise ValueError("head too large")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > MAX_BODY_BYTES:
            self._too_large()
        if headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._request.body += body
        if len(self._request.body) > MAX_BODY_BYTES:  # of a chunked body, which has no length
            self._too_large()

    def on_message_complete(self) -> None:
        self._request.keeps_alive = self._parser.should_keep_alive()
        self._waiting.append(self._request)
        self._in_head = True
        self._due_since = None

    # ------------------------------------------------------------------------------------------- answers

    def _next(self) -> None:
        """Answers one request; the next one of this connection waits until others had their turn."""
        if self._transport is None or not self._waiting or self._untaken_since is not None:
            return
        request = self._waiting.popleft()
        self._silent_since = self._loop.time()
        self._connections.spoke(self)
        answer = self._connections.answer(request)
        self._transport.write(
            answer_bytes(answer, self._connections.date, request.keeps_alive, request.method != "HEAD")
        )
        if not request.keeps_alive:
            self._waiting.clear()
            self._transport.close()
        elif self._waiting:
            self._transport.pause_reading()
            self._loop.call_soon(self._next)
        elif self._untaken_since is None:
            self._transport.resume_reading()

    def _head_too_large(self) -> None:
        self._refuse(error(f"the head is larger than {HEAD_BYTES} bytes", 431))

    def _too_large(self) -> None:
        self._refuse(error(f"the body is larger than {MAX_BODY_BYTES} bytes", 413))
        raise ValueError("too large")

    def _refuse(self, answer: Answer) -> None:
        """Sends the reason, and closes the connection once the sender can have read it."""
        if self._refusal is not None or self._transport is None:
            return
        self._refusal = answer
        self._due_since = self._loop.time()
        self._connections.traffic.answered("", answer.status, 0.0)
        note_refusal(self.address, "a request", answer)
        self._waiting.clear()
        self._transport.write(answer_bytes(answer, self._connections.date, keeps_alive=False))
        # Closing with unread bytes would reset the connection and lose the answer.
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def close(self) -> None:
        """Ends the connection at once."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def overdue(self, now: float) -> str:
        """Reason to close this connection; empty if it may stay."""
        limits = self._limits
        if self._refusal is not None:
            return "refused" if now - (self._due_since or 0.0) > 1.0 else ""
        if self._untaken_since is not None and now - self._untaken_since > limits.request_s:
            return "answer not taken in time"
        if self._due_since is not None:
            return "request not complete in time" if now - self._due_since > limits.request_s else ""
        return "idle" if now - self._silent_since > limits.idle_s else ""


def answer_bytes(answer: Answer, date: str, keeps_alive: bool, with_body: bool = True) -> bytes:
    """Head and body in one piece: two writes would make a client wait for its own delayed ACK. `date` is the Date
    header's value; the answer to a HEAD has no body."""
    headers = {"Content-Type": answer.content_type, "Content-Length": str(len(answer.body)), "Date": date}
    headers |= answer.headers if keeps_alive else {**answer.headers, "Connection": "close"}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{_LINES[answer.status]}{head}\r\n".encode("latin-1") + (answer.body if with_body else b"")
