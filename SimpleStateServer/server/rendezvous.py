"""Where the workers of jobs without a parameter server find each other: one table of members a job (membership.py).

A worker that waits asks again and again, so nothing here keeps an answer back. A server that was restarted meanwhile
hears of all again.
"""

from __future__ import annotations

import logging
from collections import Counter

from server.errors import Conflict
from server.membership import WAITING_S, Table, decide, names
from server.messages import Beat, Call, Join, Left, Response

MAX_JOBS = 64

log = logging.getLogger(__name__)


class Gatherings:
    """Own the tables of members. Time is an argument, as in the handlers.

    Args:
        max_jobs: when one more comes, the one that was silent for longest is forgotten.
        counts: of handled messages, by type.
    """

    def __init__(self, counts: Counter[str], max_jobs: int = MAX_JOBS) -> None:
        self._counts = counts
        self._max_jobs = max_jobs
        self._tables: dict[str, Table] = {}
        self._heard: dict[str, float] = {}  # when a job was spoken of, the longest ago first

    def join(self, message: Join, now: float) -> Response:
        """A worker is there and waits for the others.

        Raises:
            Conflict: it does not fit to those that wait, or there is no room for its job.
        """
        self._counts["JOIN"] += 1
        before = self._tables.get(message.job)
        if before is None:
            self._make_room(now)
        table, answer, reason = decide(before or Table(), message, now)
        self._keep(message.job, table, now)
        if before is None or table.generation != before.generation:
            self._note_start(message.job, table)
        elif answer.call is Call.WAIT and len(table.waiting) != len(before.waiting):
            log.info("job %s | %s", message.job, reason)
        return Response(message.sender, message.job, reason, answer.call, place=answer.place)

    def beat(self, message: Beat, now: float) -> Response:
        """A job is at work; its rank 0 is told whether somebody waits to take part."""
        self._counts["BEAT"] += 1
        if message.job not in self._tables:
            self._make_room(now)
        table, answer, reason = decide(self._tables.get(message.job, Table()), message, now)
        self._keep(message.job, table, now)
        return Response(message.sender, message.job, reason, answer.call)

    def left(self, message: Left, now: float) -> Response:
        """A worker has left, or does not wait any more; it is told why the job broke, where it did."""
        self._counts["LEFT"] += 1
        before = self._tables.get(message.job)
        if before is None:
            return Response(message.sender, message.job, "this server has forgotten the workers of this job")
        table, _, reason = decide(before, message, now)
        self._keep(message.job, table, now)
        if table.cause != before.cause:
            log.warning("job %s | %s", message.job, table.cause)
        elif len(table.left) == len(table.members) != len(before.left):
            log.info("job %s | all %d worker(s) have left", message.job, len(table.members))
        return Response(message.sender, message.job, reason)

    def _note_start(self, job: str, table: Table) -> None:
        if table.members:
            log.info(
                "job %s | generation %d starts: %s", job, table.generation,
                names(table.members, range(len(table.members))),
            )  # fmt: skip

    def _keep(self, job: str, table: Table, now: float) -> None:
        self._tables[job] = table
        self._heard.pop(job, None)
        self._heard[job] = now

    def _make_room(self, now: float) -> None:
        if len(self._tables) < self._max_jobs:
            return
        oldest, heard = next(iter(self._heard.items()))
        if now - heard <= WAITING_S:  # its workers may wait
            raise Conflict(
                "too-many-jobs",
                f"workers of {len(self._tables)} jobs find each other here now, and there is no room for more: send "
                "this again in a while, or start another server",
            )
        del self._tables[oldest], self._heard[oldest]
