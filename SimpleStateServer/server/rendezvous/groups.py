"""Rendezvous of the workers of jobs without a parameter server: one group of members a job (membership.py).

Waiting workers ask repeatedly, so no answer is delayed. What a restarted server has to know is in the journal.
"""

from __future__ import annotations

import logging
import secrets
from typing import NamedTuple

from server.errors import Conflict, check_token
from server.messages import Beat, Call, Join, Left, Response
from server.rendezvous.journal import Journal
from server.rendezvous.membership import GONE_S, WAITING_S, Group, names
from server.rendezvous.record import recorded

MAX_JOBS = 64  # beyond it, the job that was silent for longest is forgotten

log = logging.getLogger(__name__)


class _Job(NamedTuple):
    group: Group
    heard: float  # time of the last message
    token: str  # with which the job was begun


class Rendezvous:
    """Owns the groups of members. Time is an argument, as in the handlers."""

    journal: Journal | None = None  # of the generations; None: this server keeps none

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}  # the one that was silent for longest first

    def handle(self, message: Join | Beat | Left, now: float) -> Response:
        """A worker is ready and waits for the others, asks whether others wait, or has left. Raises Conflict if it does
        not fit the waiting workers, has another token, or there is no room for its job."""
        before, token = self._found(message, now)
        group, answer, reason = recorded(before, message, now, secrets.token_hex(8))
        self._keep(message.job, before, group)
        self._jobs.pop(message.job, None)
        self._jobs[message.job] = _Job(group, now, token)
        if group.generation != before.generation:
            if group.waiting:
                left_out = names([one.member for one in group.waiting])
                log.warning("job %s | left out, since they cannot exchange with all: %s", message.job, left_out)
            if group.members:
                there = names(dict(enumerate(group.members)))
                log.info("job %s | generation %d starts: %s", message.job, group.generation, there)
        elif group.cause != before.cause:
            log.warning("job %s | %s", message.job, group.cause)
        elif len(group.left) == len(group.members) != len(before.left):
            log.info("job %s | all %d worker(s) have left", message.job, len(group.members))
        elif answer.call is Call.REFUSED or (isinstance(message, Join) and len(group.waiting) != len(before.waiting)):
            log.info("job %s | %s", message.job, reason)
        return Response(message.sender, message.job, reason, answer.call, None, *answer[1:])

    def _found(self, message: Join | Beat | Left, now: float) -> tuple[Group, str]:
        """The group of the message's job, and the job's token. A job that was silent for long, and has no members that
        may be alive, may go on with another token."""
        if (known := self._jobs.get(message.job)) is None:
            self._make_room(now)
            return self.journal.read(message.job, now) if self.journal is not None else Group(), message.token
        if now - known.heard > GONE_S and not known.group.is_at_work:
            return known.group, message.token
        check_token(known.token, message.token, message.job)
        return known.group, known.token

    def _keep(self, job: str, before: Group, group: Group) -> None:
        """Keeps what a restarted server has to know, before an answer tells a worker of it."""
        if self.journal is None or not group.survives or (group.id, group.left) == (before.id, before.left):
            return
        if group.is_over:
            self.journal.remove(job)
        else:
            self.journal.write(job, group)

    def _make_room(self, now: float) -> None:
        if len(self._jobs) < MAX_JOBS:
            return
        oldest, known = next(iter(self._jobs.items()))
        if now - known.heard <= WAITING_S:  # its workers may wait
            raise Conflict(
                "too-many-jobs",
                f"workers of {len(self._jobs)} jobs find each other here now, and there is no room for more: send "
                "this again in a while, or start another server",
            )
        del self._jobs[oldest]
