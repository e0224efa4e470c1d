"""The link between a client and its state server: messages and answers are JSON objects."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

Message = dict[str, Any]


class Timeouts(NamedTuple):
    """Seconds that one try may take."""

    connect_s: float
    answer_s: float


PATIENT = Timeouts(3.0, 10.0)
BRIEF = Timeouts(1.0, 1.0)  # for messages that are not worth a wait
QUICK = Timeouts(0.3, 0.3)  # likewise, to a server that was away before: a worker that ends waits for the last try


class NoAnswer(Exception):
    """One try failed. The text is the cause, such as "Connection refused"."""


@dataclass(frozen=True)
class Reply:
    """An answer."""

    status: int  # HTTP's
    said: Mapping[str, Any]  # the JSON object; empty where the body is something else
    text: str = ""  # the whole body

    @property
    def in_short(self) -> str:
        """One line: the title of a page, else the beginning of the text."""
        title = re.search("<title>(.*?)</title>", self.text, re.IGNORECASE | re.DOTALL)
        words = html.unescape(title[1]) if title else self.text
        return " ".join("".join(letter if letter.isprintable() else " " for letter in words[:300]).split())


class NoLink:
    """In place of a link to no state server: whatever a worker tells is heard, and by none."""

    address, round_trip_s = "nowhere", 0.0

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        return Reply(200, {"msg_type": "RESPONSE"})


class Link(Protocol):
    """A way to a state server. Threads may share it."""

    @property
    def address(self) -> str:
        """For messages to the user."""

    @property
    def round_trip_s(self) -> float:
        """Usual round trip; 0 before the first."""

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """One try; raises NoAnswer."""
