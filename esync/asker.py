"""How one message reaches the state server, and how messages are sent beside the training. Every message may be sent
twice without harm."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from esync.base import JobError
from esync.clock import Clock, Event, Task
from esync.protocol import Link, Message, NoAnswer, Timeouts

# A page is looked at by people, and each message costs the training's process a millisecond.
NOTICE_REST_S = 0.1
PAGE_REST_S = 1.0  # in modes in which no rule of the server decides

# Codes of the state server. The message is of a round that this worker has left, as where later ones were faster, or
# another sender speaks for it.
NOT_HEARD = ("stale", "other-sender")
NO_ROOM = "too-many-jobs"  # until other jobs end
TRY_LATER = (408, 425, 429)  # HTTP's: the server, or a proxy before it, is busy


class Refused(JobError):
    """The server refuses the message."""


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


class Notices:
    """Runs one notice at a time beside the caller, and of those that wait only the newest."""

    def __init__(self, clock: Clock, rest_s: float, leaves: Event) -> None:
        """`rest_s`: seconds between two notices, which end once this worker `leaves`."""
        self._clock, self._rest_s, self._leaves = clock, rest_s, leaves
        self._lock = clock.lock()
        self._next: Callable[[], None] | None = None
        self._task: Task[None] | None = None

    def begin(self, notice: Callable[[], None]) -> None:
        """The notice must not raise."""
        with self._lock:
            self._next = notice
            if self._task is None:
                self._task = self._clock.start(self._run, "notices to the state server")

    def wait_until_idle(self, patience_s: float) -> None:
        """Waits for the end of the notices, `patience_s` seconds at most."""
        if (task := self._task) is not None:
            with contextlib.suppress(TimeoutError):
                task.result(patience_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                notice, self._next = self._next, None
                if notice is None:
                    self._task = None
                    return
            notice()
            self._leaves.wait(self._rest_s)
