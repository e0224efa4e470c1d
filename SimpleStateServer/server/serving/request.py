"""A request that has arrived, and an answer as bytes."""

import http
from collections.abc import Mapping
from dataclasses import dataclass, field

from server.answers import Answer

_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in http.HTTPStatus}


@dataclass(slots=True)
class Request:
    """One request."""

    address: str  # of the sender
    method: str = ""  # in upper case
    target: bytes = b""  # path and query as sent
    # By lower-case name; one that comes twice has its values joined by commas
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""  # all of it
    keeps_alive: bool = True  # the connection stays open after the answer

    @property
    def path(self) -> bytes:
        """The target without its query, as sent."""
        return self.target.partition(b"?")[0]


def answer_bytes(answer: Answer, date: str, keeps_alive: bool, with_body: bool = True) -> bytes:
    """Head and body in one piece: two writes would make a client wait for its own delayed ACK. `date` is the Date
    header's value; the answer to a HEAD has no body."""
    connection = "" if keeps_alive else "Connection: close\r\n"
    head = (
        f"{_LINES[answer.status]}Content-Type: {answer.content_type}\r\nContent-Length: {len(answer.body)}\r\n"
        f"Date: {date}\r\n{connection}{_more(answer.headers)}\r\n"
    )
    return head.encode("latin-1") + (answer.body if with_body else b"")


def _more(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items() if name.lower() not in _OURS)


_OURS = ("content-type", "content-length", "date", "connection")
