"""The link between a client and its state server: messages and answers are JSON objects.

Every message may be sent twice without harm.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from esync.base import JobError

Message = dict[str, Any]


class Timeouts(NamedTuple):
    """Seconds that one try may take."""

    connect_s: float
    answer_s: float


PATIENT = Timeouts(3.0, 10.0)
BRIEF = Timeouts(1.0, 1.0)  # for messages that are not worth a wait
QUICK = Timeouts(0.3, 0.3)  # likewise, to a server that was away before: a worker that ends waits for the last try

# Codes of the state server. The message is of a round that this worker has left, as where later ones were faster, or
# another sender speaks for it.
NOT_HEARD = ("stale", "other-sender")
NO_ROOM = "too-many-jobs"  # until other jobs end
TRY_LATER = (408, 425, 429)  # HTTP's: the server, or a proxy before it, is busy


class Refused(JobError):
    """The server refuses the message."""


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


def try_once(link: Link, message: Message, timeouts: Timeouts) -> Mapping[str, Any]:
    """The answer to one try. Raises NoAnswer where none comes, or one without a meaning: a later try may succeed;
    Refused where the server refuses the message."""
    try:
        reply = link.send(message, timeouts)
    except NoAnswer as error:
        raise NoAnswer(f"does not answer ({error})") from None
    said, code = reply.said, reply.said.get("code")
    if reply.status == 200 and said.get("msg_type") == "RESPONSE":
        return said
    if code in NOT_HEARD:
        return {"action": "TRAIN", "not_heard": said.get("error")}
    if code == NO_ROOM:
        raise NoAnswer(f"has no room: {said.get('error')}")
    trouble = f"answered {reply.status}: {reply.in_short}"
    if code is not None and reply.status == 409:
        trouble = f"refuses this {message['msg_type']} ({code}): {said.get('error')}"
    if reply.status < 500 and reply.status not in TRY_LATER:
        raise Refused(f"the state server at {link.address} {trouble}")
    raise NoAnswer(trouble)
