"""Rendezvous of the workers of jobs without a parameter server: one group of members a job (membership.py).

Waiting workers ask repeatedly, so no answer is delayed. What a restarted server has to know is in the journal.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter

from server.errors import Conflict, check_token
from server.journal import Journal
from server.membership import GONE_S, WAITING_S, Group, decide, names
from server.messages import Beat, Call, Join, Left, Response

MAX_JOBS = 64  # beyond it, the job that was silent for longest is forgotten

log = logging.getLogger(__name__)


class Rendezvous:
    """Owns the groups of members. Time is an argument, as in the handlers; `counts` are of handled messages by type."""

    journal: Journal | None = None  # of the generations; None: this server keeps none

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._groups: dict[str, Group] = {}
        # Time of a job's last message, the oldest first, and the token with which it was begun.
        self._heard: dict[str, tuple[float, str]] = {}

    def handle(self, message: Join | Beat | Left, now: float) -> Response:
        """A worker is ready and waits for the others, asks whether others wait, or has left. Raises Conflict if it does
        not fit the waiting workers, has another token, or there is no room for its job."""
        self._counts[type(message).__name__.upper()] += 1
        self._check_token(message, now)
        if message.job not in self._groups:
            self._make_room(now)
            self._groups[message.job] = self.journal.read(message.job, now) if self.journal is not None else Group()
        before = self._groups[message.job]
        group, answer, reason = decide(before, message, now, drawn=secrets.token_hex(8))
        self._keep(message.job, before, group)
        self._groups[message.job] = group
        _, token = self._heard.pop(message.job, (now, message.token))
        self._heard[message.job] = (now, token)
        if group.generation != before.generation:
            self._note_start(message.job, group)
        elif group.cause != before.cause:
            log.warning("job %s | %s", message.job, group.cause)
        elif len(group.left) == len(group.members) != len(before.left):
            log.info("job %s | all %d worker(s) have left", message.job, len(group.members))
        elif answer.call is Call.REFUSED or (isinstance(message, Join) and len(group.waiting) != len(before.waiting)):
            log.info("job %s | %s", message.job, reason)
        return Response(message.sender, message.job, reason, answer.call, None, *answer[1:])

    def _keep(self, job: str, before: Group, group: Group) -> None:
        """Keeps what a restarted server has to know, before an answer tells a worker of it."""
        if self.journal is None or not group.survives or (group.id, group.left) == (before.id, before.left):
            return
        if group.is_over:
            self.journal.remove(job)
        else:
            self.journal.write(job, group)

    def _note_start(self, job: str, group: Group) -> None:
        if group.waiting:
            left_out = names([one.member for one in group.waiting])
            log.warning("job %s | left out, since they cannot exchange with all: %s", job, left_out)
        if group.members:
            log.info(
                "job %s | generation %d starts: %s", job, group.generation,
                names(group.members, range(len(group.members))),
            )  # fmt: skip

    def _check_token(self, message: Join | Beat | Left, now: float) -> None:
        """Raises Conflict where the message has another token than its job, unless that was silent for long, and has no
        members that may be alive."""
        heard, token = self._heard.get(message.job, (now, message.token))
        if now - heard <= GONE_S or self._groups[message.job].is_at_work:
            check_token(token, message.token, message.job)
        elif message.job in self._heard:
            self._heard[message.job] = (heard, message.token)

    def _make_room(self, now: float) -> None:
        if len(self._groups) < MAX_JOBS:
            return
        oldest, (heard, _) = next(iter(self._heard.items()))
        if now - heard <= WAITING_S:  # its workers may wait
            raise Conflict(
                "too-many-jobs",
                f"workers of {len(self._groups)} jobs find each other here now, and there is no room for more: send "
                "this again in a while, or start another server",
            )
        del self._groups[oldest], self._heard[oldest]
