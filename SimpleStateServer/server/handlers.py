"""Applies messages to the state table, one at a time. Time is an argument.

The event loop's own list of what is ready is the FIFO queue of the journal paper, and `handle` its message router.

Messages may come twice (a client resends after a lost connection) or late, so every handler is idempotent: a repeated
message changes nothing and gets the same answer; a stale one is refused.
"""

import logging
from collections import Counter

from msgspec.structs import replace

from server.curve import Event, Point, with_event
from server.errors import BadMessage, Conflict, check_token
from server.jobs import Job, Jobs
from server.messages import Message, Query, Report, Reset, Response, WorkerMessage
from server.policies import Sync
from server.rendezvous.groups import Rendezvous
from server.row import Action, Activity, Row

log = logging.getLogger(__name__)


class Handlers:
    """Own the state tables of the jobs."""

    def __init__(self, jobs: Jobs | None = None) -> None:
        self.jobs = Jobs() if jobs is None else jobs
        self.counts: Counter[str] = Counter()  # handled messages by type, and answers by action
        self.rendezvous = Rendezvous()

    def handle(self, message: Message, now: float) -> Response:
        """Hands a message to the handler of its type. Raises Conflict or BadMessage as that says."""
        match message:
            case Query():
                return self.query(message, now)
            case Report():
                return self.report(message, now)
            case Reset():
                return self.reset(message, now)
            case _:
                self.counts[type(message).__name__.upper()] += 1
                return self.rendezvous.handle(message, now)

    def reset(self, message: Reset, now: float) -> Response:
        """Starts a job beside the running ones, or continues one with a new generation of workers. Only `/init/`
        replaces a job: that of the `/init/` before. Raises as `_job_of`."""
        self.counts["RESET"] += 1
        job = self._job_of(message, now)
        reason = f"the job has {job.settings.num_workers} worker(s) and is in round {job.table.round}"
        return Response(message.sender, message.job, reason)

    def report(self, message: Report, now: float) -> Response:
        """A worker has pulled and enters a round, or tells its activity in it. Raises Conflict where there is no such
        job, it has other settings, or a guest's round is neither its own nor its next one; BadMessage where the job has
        no such rank."""
        self.counts["REPORT"] += 1
        job = self._job_of(message, now)
        row = self._heard(job, message, now)
        status = message.status
        step_time = status.computation_time or None  # 0 means: none was measured
        if not row.step_times and step_time:
            # A test step before the first round, or the last step that an earlier server knew.
            row, step_time = row.timed(step_time, message.samples or 0), None
        if status.local_iteration > row.local_iteration:  # else it repeats a known step
            row = row.stepping(status.local_iteration, step_time, message.samples or 0, now)
        elif (
            (message.decision is not None or job.policy.sync is Sync.IS_NOT_SAID)
            and step_time
            and row.round > job.table.rows[row.rank].round
        ):
            row = row.timed(step_time)  # the step that ended the round before
        if message.decision is not None:
            row = row.told(message.decision, now)
        # An evaluation is told in the background, and may arrive after the worker has left.
        is_late = row.doing is Activity.ENDED and message.doing is Activity.EVALUATING
        if message.doing is not row.doing and not is_late:
            evaluating = now if message.doing is Activity.EVALUATING else row.evaluating
            row = row._replace(doing=message.doing, evaluating=evaluating)
        job.table.put(row.in_total(message.total, before=job.table.rows[row.rank]))
        job.note_who_left(now)
        return Response(message.sender, job.id, f"worker {row.rank} is in round {row.round}")

    def query(self, message: Query, now: float) -> Response:
        """A worker asks what to do next. Raises as `report`."""
        self.counts["QUERY"] += 1
        job = self._job_of(message, now)
        row = self._heard(job, message, now)
        status = message.status
        answered = row.action is not None
        if status.local_iteration > row.local_iteration:
            row = row.stepping(status.local_iteration, status.computation_time, message.samples or 0, now)
            answered = row.action is Action.SYNC  # it stands for the rest of the round
        elif not status.local_iteration and status.computation_time and status.computation_time != row.computation_time:
            # A published worker asks before its first step as well, and tells how long its last one took.
            row = row.timed(status.computation_time)
        if row.doing is not Activity.TRAINING:
            row = row._replace(doing=Activity.TRAINING)
        row = row.in_total(message.total, before=job.table.rows[row.rank])
        if not answered:
            row = self._decided(job, row, now)
        # Otherwise the query was repeated, or overtaken by a later one, and gets the earlier answer.
        job.table.put(row)
        job.note_who_left(now)
        assert row.action is not None
        self.counts[row.action.value] += 1
        return Response(message.sender, job.id, row.reason, row.action, job.table.batch_size_of(row.rank))

    def _job_of(self, message: Reset | WorkerMessage, now: float) -> Job:
        """The job of a message. With settings it begins, goes on with other workers, or runs so already. Raises
        Conflict if it runs with other settings, is not known, or there is no room for it."""
        settings = message.settings
        if (job := self.jobs.get(message.job)) is None:
            if settings is None:
                raise Conflict("unknown-job", f"job {message.job!r} is not known here; send its RESET, or its settings")
            return self.jobs.begin(message, settings, now)
        check_token(job.token, message.token, job.id)
        running = job.settings
        if settings is not None and settings.generation > running.generation:
            job.go_on_with(settings, now)
        elif settings is not None and settings.generation < running.generation:
            why = f"job {job.id!r} is in generation {running.generation} of its workers"
            raise Conflict("stale", f"{why}, this is of generation {settings.generation}")
        elif settings is not None and replace(settings, resumed=running.resumed) != running:
            raise Conflict(
                "job-settings",
                f"job {job.id!r} is running with num_workers={running.num_workers}, policy={running.policy}, "
                f"epsilon={running.epsilon:g}, anchor={running.anchor}, title={running.title!r}, "
                f"metric {running.metric} and limits {running.limits}; give another job id or the same settings",
            )
        return job

    def _heard(self, job: Job, message: WorkerMessage, now: float) -> Row:
        """The worker's row in the message's round, with the fields that both kinds of message update."""
        job.settings.check_kind(message.accuracy, message.value, ("accuracy", "value"))
        job.settings.check_kind(message.accuracies, message.values, ("accuracies", "values"))
        status, rows = message.status, job.table.rows
        if (rank := max(0, status.rank, *message.lost)) >= len(rows):
            raise BadMessage(f"rank {rank} is not in this job; give 0 to {len(rows) - 1}", "rank")
        row = rows[status.rank]
        if job.senders.get(row.rank, message.sender) != message.sender:
            raise Conflict(
                "other-sender",
                f"another sender speaks for worker {row.rank} of job {job.id!r} in this generation",
            )
        round = row.round if status.round is None else status.round
        if round < row.round:
            raise Conflict("stale", f"worker {row.rank} is in round {row.round} already, this is of round {round}")
        # Under Sync-Switch rounds count batches, not all with a question; under WBSP they are releases, of which a slow
        # worker misses some. No worker waits for a round there. And a job that is taken over may be in any round.
        may_skip = not job.policy.all_aggregate or (row.heard is None and bool(job.settings.resumed))
        if round > row.round + 1 and message.settings is None and not may_skip:
            # Accepted, it would make all later messages of the worker stale.
            raise Conflict(
                "round-ahead", f"worker {row.rank} is in round {row.round}, this is of round {round}; rounds go up by 1"
            )
        if row.rank not in job.senders:
            job.senders[row.rank] = message.sender
            place = " ".join(filter(None, (message.device.device, message.device.host))) if message.device else ""
            log.info("job %s | worker %d of %d is there | %s", job.id, row.rank, len(rows), place or "no device told")
        if round > row.round or row.entered is None:
            # A question that is the first message of its round comes after a step of it.
            computed = status.computation_time or 0.0 if status.local_iteration else 0.0
            row = row.entering(round, now, computed)
        if job.settings.resumed and message.elapsed is not None:
            job.began = min(job.began, now - message.elapsed)
        value = message.value if message.accuracy is None else message.accuracy
        if value is not None:
            after = row.round - 1 if message.evaluated is None else message.evaluated
            job.curve.add(Point(after, now, value))
        began = job.began if message.elapsed is None else now - message.elapsed
        points = message.values if message.accuracies is None else message.accuracies
        if points is not None:  # perhaps none: the first evaluation is to come
            job.curve.merge([Point(round, began + elapsed, value) for round, elapsed, value in points])
            job.history_lost = False
        if message.loss is not None:
            job.note_loss(row.rank, row.round, message.loss, now)
        for after, elapsed, *about in message.events:
            job.events = with_event(job.events, Event(began + elapsed, after, *about))
        for rank in {*message.lost} - {row.rank}:
            job.senders.pop(rank, None)  # a new process may speak for it
            job.table.stop_counting_on(rows[rank])
        return row._replace(
            heard=now,
            counted=True,
            device=message.device or row.device,
            way=row.way if message.way is None else message.way,
            transmission_time=row.transmission_time if status.transmission_time is None else status.transmission_time,
        )

    def _decided(self, job: Job, row: Row, now: float) -> Row:
        table = job.table
        table.put(row)
        for silent in table.stop_counting_on_the_silent(now):
            log.warning(
                "job %s | worker %d is silent; no decision counts on it until it is heard again", job.id, silent.rank
            )
        table.share_out(row.round)
        decision = job.policy.decide(table, row.rank, now)
        log.debug(
            "job %s | round %d | worker %d | %s | %s",
            job.id, row.round, row.rank, decision.action.value, decision.reason,
        )  # fmt: skip
        return row.answered(decision, now)
