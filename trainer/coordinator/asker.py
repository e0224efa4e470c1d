"""Sends one worker's messages to the state server: once, until answered, or beside the training. Every message may be
sent twice without harm."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from trainer.clock import Clock, Task
from trainer.coordinator.protocol import Link, Message, NoAnswer, Timeouts
from utils import JobError, PeerLost

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
# A page is looked at by people, and each message costs the training's process a millisecond.
NOTICE_REST_S = 0.1
WATCHED_REST_S = 1.0  # where no rule decides by what is told

# Codes of the state server. The message is of a round that this worker has left, as where later ones were faster, or
# another sender speaks for it.
NOT_HEARD = ("stale", "other-sender")
NO_ROOM = "too-many-jobs"  # until other jobs end
TRY_LATER = (408, 425, 429)  # HTTP's: the server, or a proxy before it, is busy

# In place of a missing answer, for a worker that leaves: stop the local steps, stay in step, release.
LEAVE = {"action": "SYNC"}


class Refused(JobError):
    """The server refuses the message."""


class Asker:
    """One worker's messages over a link."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        complete: Callable[[Message], Message],  # adds the fields that each message has at the moment when it is sent
        stop_requested: Callable[[], bool] = lambda: False,  # a signal came: unanswered messages are not sent again
        notice_rest_s: float = NOTICE_REST_S,  # seconds between two notices
    ) -> None:
        self._notice_rest_s = notice_rest_s
        self._link = link
        self._clock = clock
        self._complete = complete
        self._stop_requested = stop_requested
        self._leaves = clock.event()
        self._lock = clock.lock()
        self.is_heard = True  # no line has said since the last answer that none comes
        self._next_notice: Callable[[], None] | None = None
        self._notices: Task[None] | None = None

    def stop_waiting(self) -> None:
        """From now on unanswered messages are not sent again."""
        self._leaves.set()

    def ask(self, once: Callable[[], Mapping[str, Any]], patience_s: float) -> Mapping[str, Any]:
        """Tries `once` until that has an answer, for `patience_s` seconds; 0: one try. Raises PeerLost without an
        answer, JobError where the server refuses the message."""
        give_up, pause = self._clock.now() + patience_s, FIRST_PAUSE_S
        while True:
            try:
                return once()
            except NoAnswer as error:
                trouble = str(error)
            if patience_s and (self._leaves.is_set() or self._stop_requested()):
                return LEAVE
            if self._clock.now() + pause > give_up:
                tried = f"; tried for {patience_s:g} s" if patience_s else ""
                raise PeerLost(f"the state server at {self._link.address} {trouble}{tried}")
            if self.is_heard:
                self.is_heard = False
                logging.warning("the state server at %s %s; asking again", self._link.address, trouble)
            self._leaves.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def try_once(self, message: Message, timeouts: Timeouts) -> Mapping[str, Any]:
        """One try. Raises NoAnswer without an answer, or with one that has no meaning: a later try may succeed; Refused
        where the server refuses the message."""
        try:
            reply = self._link.send(self._complete(message), timeouts)
        except NoAnswer as error:
            raise NoAnswer(f"does not answer ({error})") from None
        said, code, kind = reply.said, reply.said.get("code"), message["msg_type"]
        if code in NOT_HEARD or (reply.status == 200 and said.get("msg_type") == "RESPONSE"):
            self.is_heard = True
            return {"action": "TRAIN", "not_heard": said.get("error")} if code in NOT_HEARD else said
        if code == NO_ROOM:
            raise NoAnswer(f"has no room: {said.get('error')}")
        trouble = f"answered {reply.status}: {reply.in_short}"
        if code is not None and reply.status == 409:
            trouble = f"refuses this {kind} ({code}): {said.get('error')}"
        if reply.status < 500 and reply.status not in TRY_LATER:
            raise Refused(f"the state server at {self._link.address} {trouble}")
        raise NoAnswer(trouble)

    # ------------------------------------------------------------------------------------- beside the training

    def notify(self, notice: Callable[[], None]) -> None:
        """Runs a notice, which must not raise, beside the caller: one at a time, of those that wait the newest."""
        with self._lock:
            self._next_notice = notice
            if self._notices is None:
                self._notices = self._clock.start(self._run_notices, "notices to the state server")

    def wait_until_idle(self, patience_s: float) -> None:
        """Waits for the end of the notices, `patience_s` seconds at most."""
        notices = self._notices
        if notices is not None:
            with contextlib.suppress(TimeoutError):
                notices.result(patience_s)

    def _run_notices(self) -> None:
        while True:
            with self._lock:
                notice, self._next_notice = self._next_notice, None
                if notice is None:
                    self._notices = None
                    return
            notice()
            self._leaves.wait(self._notice_rest_s)
