"""What each message does to the state table. Called by one thread only, the router's; time is an argument.

Messages may come twice (a client resends after a lost connection) or late, so every handler is idempotent: a repeated
message changes nothing and gets the same answer, a stale one is refused and moves nothing back.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter, deque
from dataclasses import dataclass, field

from server.messages import Action, BadMessage, Query, Report, Reset, Response, WorkerMessage
from server.policies import POLICIES, Policy
from server.state import Row, Table

MAX_ACCURACIES = 400
ENDED_JOBS = 1000  # ids that are remembered, so that a late RESET of an old job does not end a new one

log = logging.getLogger(__name__)


class Conflict(Exception):
    """A sound message that does not fit the running job. `code` is for programs.

    no-job        nothing was started: send a RESET, or wait until somebody has
    unknown-job   another job is running
    ended-job     a RESET of a job that another one has replaced
    job-settings  a RESET of the running job with other settings
    stale         the worker is already known to be in a later round
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Job:
    """The running job.

    Attributes:
        settings: the RESET that started it.
        policy: its rule.
        table: its workers.
        accuracies: round -> (seconds since the job began, test accuracy), as reported by the worker that evaluates.
    """

    settings: Reset
    policy: Policy
    table: Table
    accuracies: dict[int, tuple[float, float]] = field(default_factory=dict)

    def keep_accuracy(self, round: int, elapsed: float, accuracy: float) -> None:
        """Adds a test accuracy; of a long job every second one is dropped now and then."""
        self.accuracies.setdefault(round, (elapsed, accuracy))
        if len(self.accuracies) > MAX_ACCURACIES:
            self.accuracies = dict(list(self.accuracies.items())[::2])


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one moment, for readers in other threads.

    Attributes:
        settings: the RESET that started the running job; None before the first.
        now: when the snapshot was taken, on the clock of the rows' times (s).
        started: when the job began.
        round: the latest that any worker has entered.
        straggler: rank of the slowest worker by the job's policy.
        rows: one a worker.
        accuracies: (round, seconds since the job began, test accuracy).
        counts: how many messages of each type were handled, and how many answers of each action given, since the start.
    """

    settings: Reset | None
    now: float
    started: float = 0.0
    round: int = 0
    straggler: int = 0
    rows: tuple[Row, ...] = ()
    accuracies: tuple[tuple[int, float, float], ...] = ()
    counts: tuple[tuple[str, int], ...] = ()


class Handlers:
    """Owns the state table of the running job. A second job replaces the first."""

    def __init__(self) -> None:
        self.job: Job | None = None
        self._ended: deque[str] = deque(maxlen=ENDED_JOBS)
        self._counts: Counter[str] = Counter()

    def reset(self, message: Reset, now: float) -> Response:
        """Starts a job: round 1 and an empty record for each rank.

        Raises:
            Conflict: the job runs with other settings, or has ended.
        """
        self._counts["RESET"] += 1
        running = self.job.settings if self.job else None
        if running and running.job == message.job:
            if dataclasses.replace(running, sender=message.sender, resumed=message.resumed) != message:
                raise Conflict(
                    "job-settings",
                    f"job {message.job!r} is running with num_workers={running.num_workers}, "
                    f"policy={running.policy}, epsilon={running.epsilon:g}; give another job id or the same settings",
                )
            return Response(message.sender, message.job, "this job is already running; nothing was changed")
        if message.job in self._ended:
            raise Conflict("ended-job", f"job {message.job!r} has ended, another one is running; give a new job id")
        if running:
            self._ended.append(running.job)
        policy = POLICIES[message.policy]
        table = Table(message.num_workers, policy.delay, message.epsilon, started=now, counted=not message.resumed)
        self.job = Job(message, policy, table)
        log.info(
            "job %s %s | %d workers | policy %s | epsilon %g s",
            message.job,
            "goes on" if message.resumed else "begins",
            message.num_workers,
            message.policy,
            message.epsilon,
        )
        return Response(message.sender, message.job, "the job begins in round 1")

    def report(self, message: Report, now: float) -> Response:
        """A worker has pulled and enters a round, or registers again with what it knows.

        Raises:
            Conflict: there is no such job, or the worker is known to be in a later round.
            BadMessage: the job has no such rank.
        """
        self._counts["REPORT"] += 1
        job = self._job_of(message)
        row = self._heard(job, message, now)
        told = message.status
        if not row.step_times and told.computation_time:
            # A test step before the first round. 0 means: none was measured. Later reports repeat a known step.
            row = dataclasses.replace(row, step_times=(told.computation_time,))
        if told.local_iteration > row.local_iteration:
            row = row.stepping(told.local_iteration, None, message.samples or 0, now)
        job.table.put(row)
        return Response(message.sender, job.settings.job, f"worker {row.rank} is in round {row.round}")

    def query(self, message: Query, now: float) -> Response:
        """A worker asks what to do next.

        Raises:
            Conflict: there is no such job, or the worker is known to be in a later round.
            BadMessage: the job has no such rank.
        """
        self._counts["QUERY"] += 1
        job = self._job_of(message)
        row = self._heard(job, message, now)
        told = message.status
        answered = row.action is not None
        if told.local_iteration > row.local_iteration:
            row = row.stepping(told.local_iteration, told.computation_time, message.samples or 0, now)
            answered = row.action is Action.SYNC  # it stands for the rest of the round
        if not answered:
            row = self._decided(job, row, now)
        # Otherwise the query was repeated, or overtaken by a later one, and gets the answer that was given already.
        job.table.put(row)
        assert row.action is not None
        self._counts[row.action.value] += 1
        return Response(message.sender, job.settings.job, row.reason, row.action)

    def snapshot(self, now: float) -> Snapshot:
        """The state at this moment. Copies references only, so it delays the next message by microseconds."""
        counts = tuple(self._counts.items())
        if self.job is None:
            return Snapshot(settings=None, now=now, counts=counts)
        job, table = self.job, self.job.table
        return Snapshot(
            settings=job.settings,
            now=now,
            started=table.started,
            round=table.round,
            straggler=table.slowest.rank,
            rows=tuple(table.rows),
            accuracies=tuple((round, *point) for round, point in job.accuracies.items()),
            counts=counts,
        )

    def _job_of(self, message: WorkerMessage) -> Job:
        if self.job is None:
            raise Conflict("no-job", "no job has begun; send a RESET (or POST /init/), or wait until somebody has")
        if message.job not in (None, self.job.settings.job):
            raise Conflict("unknown-job", f"job {message.job!r} is not the running one")
        return self.job

    def _heard(self, job: Job, message: WorkerMessage, now: float) -> Row:
        """The worker's row in the message's round, with what does not depend on the kind of message."""
        told, rows = message.status, job.table.rows
        if told.rank >= len(rows):
            raise BadMessage(f"rank {told.rank} is not in this job; give 0 to {len(rows) - 1}", "rank")
        row = rows[told.rank]
        round = row.round if told.round is None else told.round
        if round < row.round:
            raise Conflict("stale", f"worker {row.rank} is in round {row.round} already, this is of round {round}")
        if round > row.round or row.entered is None:
            row = row.entering(round, now)
        if message.accuracy is not None:
            job.keep_accuracy(round, now - job.table.started, message.accuracy)
        return dataclasses.replace(
            row,
            heard=now,
            counted=True,
            device=message.device or row.device,
            transmission_time=row.transmission_time if told.transmission_time is None else told.transmission_time,
        )

    def _decided(self, job: Job, row: Row, now: float) -> Row:
        table = job.table
        table.put(row)
        for silent in table.stop_counting_on_the_silent(now):
            log.warning("worker %d is silent; no decision counts on it until it is heard again", silent.rank)
        decision = job.policy.decide(table, row.rank, now)
        log.debug("round %d | worker %d | %s | %s", row.round, row.rank, decision.action.value, decision.reason)
        return row.answered(decision.action, decision.reason, now)
