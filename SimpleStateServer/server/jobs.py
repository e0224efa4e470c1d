"""The jobs of this server, side by side. Messages of other jobs never end a running one."""

import logging
import math
from collections.abc import Sequence

from msgspec.structs import replace

from server.curve import Curve, Event, Point
from server.errors import Conflict
from server.messages import MAX_WORKERS, PublishedReset, Reset, Settings, WorkerMessage
from server.policies import POLICIES
from server.row import SILENCE_S, Activity, Row
from server.state import Table

MAX_JOBS = 64
ROWS_PER_S = 200_000  # of jobs that begin
LOSS_PAUSE_S = 0.9  # between two points of its curve: workers that tell theirs once a second make one
MAX_ROWS = 2 * MAX_WORKERS  # of all jobs: what bounds the memory
AT_WORK, QUIET, ENDED = "at work", "quiet", "ended"

log = logging.getLogger(__name__)


class Job:
    """One job."""

    def __init__(self, id: str, token: str, settings: Settings, now: float) -> None:
        """`token` is that with which it was begun; empty: none is needed."""
        self.id, self.token, self.settings, self.policy = id, token, settings, POLICIES[settings.policy]
        self.table = Table(settings, self.policy, now)
        self.began = now  # of a job that was taken over, by its workers' messages
        self.curve = Curve(more_is_better=settings.metric is None or settings.metric.more_is_better)  # of its metric
        self.losses = Curve(more_is_better=False)  # the mean of the workers' latest losses, once a round
        self.events: Sequence[Event] = ()  # the latest that its workers have told
        self.history_lost = bool(settings.resumed)  # it is older than this server, which lacks earlier evaluations
        self.ended: float | None = None  # when its last worker left, or another job replaced it
        self.is_replaced = False  # by another `/init/`
        self.is_cut_off = False  # this server stops before all its workers have left
        self.left_alone: float | None = None  # time of its last message, once all its workers are overdue or have left
        self.senders: dict[int, str] = {}  # of the first message of each rank in this generation
        self._loss_of: dict[int, float] = {}  # the latest, by rank

    @property
    def rows(self) -> list[Row]:
        return self.table.rows

    @property
    def heard(self) -> float | None:
        """When a worker sent the last message; None: none has."""
        return self.table.rates.heard

    @property
    def title(self) -> str:
        """The algorithm's name on the page."""
        return self.settings.title or self.policy.title

    def note_loss(self, rank: int, round: int, loss: float, now: float) -> None:
        self._loss_of[rank] = loss
        last = self.losses.last
        if last is None or (round > last.round and now - last.time >= LOSS_PAUSE_S):
            self.losses.add(Point(round, now, sum(self._loss_of.values()) / len(self._loss_of)))

    def is_at_work(self, now: float) -> bool:
        """Whether a worker is neither overdue nor gone.

        Every view of the list of jobs asks, so all rows are checked only without a recent message, and once all workers
        are gone, not again until the next message.
        """
        heard = self.heard
        if self.ended is not None or heard is None or heard == self.left_alone:
            return False
        if now - heard <= SILENCE_S and not self.table.num_ended:
            return True
        if any(
            row.heard is not None and now - row.heard <= row.silence_limit and row.doing is not Activity.ENDED
            for row in self.table.rows
        ):
            return True
        self.left_alone = heard
        return False

    def state(self, now: float) -> str:
        """At work; quiet: no recent message, and not all workers have left; or ended."""
        if self.ended is not None:
            return ENDED
        is_new = self.heard is None and now - self.table.started <= SILENCE_S
        return AT_WORK if is_new or self.is_at_work(now) else QUIET

    def elapsed(self, now: float) -> float:
        """Seconds from the job's beginning to its end, or to its last message where it is quiet."""
        until = now if self.heard is None or self.state(now) == AT_WORK else self.heard
        return max((until if self.ended is None else min(until, self.ended)) - self.began, 0.0)

    def silence(self, row: Row, now: float) -> float:
        """Seconds since a worker's last message, or since this server learned of the job where there was none."""
        return now - (self.table.started if row.heard is None else row.heard)

    def end(self, now: float, why: str) -> None:
        if self.ended is None:
            self.ended = now
            log.info("job %s has ended: %s | round %d | %.1f s", self.id, why, self.table.round, now - self.began)

    def go_on_with(self, settings: Settings, now: float) -> None:
        """Continues the job with the workers of another generation; they tell their own progress, the curve stays."""
        self.settings = replace(settings, resumed=1)
        self.table = Table(self.settings, self.policy, now)
        self.ended = self.left_alone = None
        self.senders.clear()
        self._loss_of.clear()
        log.info("job %s goes on | generation %d | %d worker(s)", self.id, settings.generation, settings.num_workers)

    def note_who_left(self, now: float) -> None:
        """Ends the job if all its workers have left in order, and revives it if one of them sends a message."""
        if self.table.num_ended == len(self.table.rows):
            self.end(now, f"all {self.table.num_ended} worker(s) have left")
        elif self.ended is not None and not (self.is_replaced or self.is_cut_off):
            self.ended = None
            log.info("job %s goes on: a worker speaks that had left", self.id)


class Jobs(dict[str, Job]):
    """A bounded number of jobs by id, in the order in which they began.

    Args:
        max_jobs: beyond it, the oldest ended job is forgotten, or a quiet one.
        max_rows: workers of all jobs; likewise.
        rows_per_s: workers of new jobs in a second.
    """

    def __init__(self, max_jobs: int = MAX_JOBS, max_rows: int = MAX_ROWS, rows_per_s: float = ROWS_PER_S) -> None:
        super().__init__()
        self._max_jobs = max_jobs
        self._max_rows = max_rows
        self._rows_per_s = self._rows_left = rows_per_s
        self._rows_since = -math.inf
        self.published: Job | None = None  # the one that the latest `/init/` began

    @property
    def latest(self) -> Job | None:
        return next(reversed(self.values()), None)

    def begin(self, message: Reset | WorkerMessage, settings: Settings, now: float) -> Job:
        """Adds a job: round 1 and an empty record for each rank. Raises Conflict if running jobs leave no room for it,
        or too many workers begin too fast."""
        self._take_rows(settings.num_workers, now)
        replaced = self.published if isinstance(message, PublishedReset) else None
        forgotten = self._to_forget(settings.num_workers, replaced, now)
        if replaced is not None:
            replaced.is_replaced = True
            replaced.end(now, f"{message.job} takes its place by POST /init/")
        for job in forgotten:
            log.info("job %s is forgotten, to make room", job.id)
            del self[job.id]
            if job is self.published:
                self.published = None
        self[message.job] = job = Job(message.job, message.token, settings, now)
        if isinstance(message, PublishedReset):
            self.published = job
        log.info(
            "job %s %s | %s | by %s | %d workers | policy %s | epsilon %g s | anchor %s",
            job.id, "is taken over" if settings.resumed else "begins", job.title,
            message.sender, settings.num_workers, settings.policy, settings.epsilon, settings.anchor,
        )  # fmt: skip
        return job

    def cut_off(self, now: float) -> None:
        """Ends the jobs of this project's workers that have not all left: the server stops, and does so with them."""
        for job in self.values():
            if job.ended is None and job is not self.published:
                job.is_cut_off = True
                job.end(now, "the state server stops")

    def _take_rows(self, num_workers: int, now: float) -> None:
        """Bounds the loop's time for new jobs: a table of 100,000 rows takes about 25 ms."""
        passed = self._rows_per_s * (now - self._rows_since)
        self._rows_left, self._rows_since = min(self._rows_per_s, self._rows_left + passed), now
        if num_workers > self._rows_left:
            raise Conflict(
                "too-many-jobs",
                f"more than {self._rows_per_s:g} workers a second begin jobs here; send this again in a while",
            )
        self._rows_left -= num_workers

    def _to_forget(self, num_workers: int, replaced: Job | None, now: float) -> list[Job]:
        """The jobs to forget for a new one of so many workers: ended ones first, then quiet ones, whose workers can
        begin them again. The job that is `replaced` counts as one that ends now. Raises Conflict where that is not
        enough."""
        jobs, rows = len(self), sum(len(job.rows) for job in self.values())
        forgotten: list[Job] = []
        ended = {job: now if job is replaced else math.inf if job.ended is None else job.ended for job in self.values()}
        candidates = iter(sorted(ended, key=ended.__getitem__))  # the oldest of each kind first
        while jobs >= self._max_jobs or rows + num_workers > self._max_rows:
            job = next((job for job in candidates if job is replaced or not job.is_at_work(now)), None)
            if job is None:
                raise Conflict(
                    "too-many-jobs",
                    f"{jobs} jobs with {rows} workers are at work; this server takes {self._max_jobs} (ESYNC_MAX_JOBS) "
                    f"and {self._max_rows} workers: wait until one ends, or start another server",
                )
            forgotten.append(job)
            jobs, rows = jobs - 1, rows - len(job.rows)
        return forgotten
