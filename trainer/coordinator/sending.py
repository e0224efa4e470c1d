"""How a message gets its answer: it is sent again until there is one, and a server that was restarted is told of the
job first. Every message may be sent twice without harm."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from trainer.clock import Clock
from trainer.coordinator.protocol import Link, Message, NoAnswer, Timeouts
from utils import JobError, PeerLost

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0

# The server's words for a job that it does not know: not yet, or not any more because it was restarted.
UNKNOWN_JOB = ("no-job", "unknown-job")
# And for a message of a round that this worker has left meanwhile: a question that later ones have overtaken.
OVERTAKEN = "stale"
# And for a job for which it has no room now: others end.
NO_ROOM = "too-many-jobs"

# An answer to whoever leaves the job and got none: stop the local steps, stay in step, release.
LEAVE = {"action": "SYNC", "reason": "this worker is about to leave, and the state server does not answer"}

_LOST = "lost"  # in place of the name of a server process that has forgotten the job


class UnknownJob(Exception):
    """The server does not know the job."""


class Sender:
    """Sends one worker's messages over a link."""

    def __init__(
        self, link: Link, clock: Clock, stop_requested: Callable[[], bool], complete: Callable[[Message], Message]
    ) -> None:
        """
        Args:
            stop_requested: a signal came. Who is to stop waits no longer for a server that does not answer.
            complete: adds what each message says at the moment when it is sent.
        """
        self._link = link
        self._clock = clock
        self._stop_requested = stop_requested
        self._complete = complete
        self._leaves = clock.event()
        self._lock = clock.lock()
        self._server = ""  # the server's process, by its own word; a job that was unknown to it makes it another one

    def stop_waiting(self) -> None:
        """This worker is done: from now on nothing is tried again for which no answer comes."""
        self._leaves.set()

    def until_answered(
        self, message: Message, reset: Message, patience_s: float, timeouts: Timeouts
    ) -> Mapping[str, Any]:
        """Sends a message until it is answered.

        Args:
            reset: the message that tells a server of the job, where it does not know it.
            patience_s: how long to go on asking a server that does not answer; 0: one try.

        Raises:
            PeerLost: no answer.
            JobError: the server refuses the message.
        """
        give_up, pause = self._clock.now() + patience_s, FIRST_PAUSE_S
        while True:  # of one try the caller hears that it was in vain, also if it leaves
            try:
                return self.post(message, timeouts)
            except UnknownJob:
                logging.warning("the state server at %s was restarted; telling it about the job", self._link.address)
                self._server = self._server and _LOST
                self.until_answered(reset, reset, patience_s, timeouts)
                trouble = "forgets the job again and again"
                if pause == FIRST_PAUSE_S:  # once at once: a server that was restarted knows it now
                    pause *= 2
                    continue
            except JobError:
                if not (patience_s and self._is_leaving()):
                    raise
                return LEAVE  # while the server was away a leaver has gone on without it, perhaps too far for it
            except NoAnswer as error:
                trouble = str(error)
            if patience_s and self._is_leaving():
                return LEAVE
            if self._clock.now() + pause > give_up:
                tried = f"; tried for {patience_s:g} s" if patience_s else ""
                raise PeerLost(f"the state server at {self._link.address} {trouble}{tried}")
            if pause == FIRST_PAUSE_S:
                logging.warning("the state server at %s %s; asking again", self._link.address, trouble)
            self._leaves.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def forget_server(self) -> None:
        """Whatever answers next counts as another process than the one before."""
        self._server = _LOST

    def is_another_server(self, said: Mapping[str, Any]) -> bool:
        """Whether this answer is from another process than the one before; an older server does not say."""
        server = said.get("server")
        if not isinstance(server, str):
            return False
        with self._lock:
            before, self._server = self._server, server
        return before not in ("", server)

    def post(self, message: Message, timeouts: Timeouts) -> Mapping[str, Any]:
        """One try.

        Raises:
            NoAnswer: none, or none that means anything; there may be one later.
            UnknownJob: the server does not know the job.
            JobError: the server refuses the message.
        """
        try:
            reply = self._link.send(self._complete(message), timeouts)
        except NoAnswer as error:
            raise NoAnswer(f"does not answer ({error})") from None
        said, code = reply.said, reply.said.get("code")
        if reply.status == 200 and said.get("msg_type") == "RESPONSE":
            return said
        if code == OVERTAKEN:
            return {"action": "TRAIN"}
        if code in UNKNOWN_JOB and message["msg_type"] != "RESET":
            raise UnknownJob
        if code == NO_ROOM:
            raise NoAnswer(f"has no room: {said.get('error')}")
        if code is not None and reply.status == 409:
            kind = message["msg_type"]
            raise JobError(
                f"the state server at {self._link.address} refuses this {kind} ({code}): {said.get('error')}"
            )
        trouble = f"answered {reply.status}: {reply.in_short}"
        if reply.status < 500:
            raise JobError(f"the state server at {self._link.address} {trouble}")
        raise NoAnswer(trouble)

    def _is_leaving(self) -> bool:
        return self._leaves.is_set() or self._stop_requested()
