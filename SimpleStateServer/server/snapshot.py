"""The state at one moment, for readers. It copies references only, which takes microseconds."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from server.curve import Event, Point
from server.job_rates import Mark
from server.jobs import Job, Jobs
from server.messages import Limits, Settings
from server.policies import Policy
from server.row import Row


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job at one moment."""

    id: str
    settings: Settings
    policy: Policy  # its rule
    now: float  # when the snapshot was taken, on the clock of all times here (s)
    began: float  # when the job began; of a job that was taken over, by its workers' messages
    known_since: float  # when this server learned of it
    ended: float | None = None  # when it ended; None while it is at work
    round: int = 0  # the latest that any worker has entered
    slowest: int = 0  # rank of the worker that the policy calls the slowest
    rows: tuple[Row, ...] = ()  # one a worker
    curve: tuple[Point, ...] = ()  # values of the metric by round
    best: Point | None = None  # of all evaluations, also of those that the curve has dropped
    losses: tuple[Point, ...] = ()  # the workers' mean loss by round
    events: tuple[Event, ...] = ()  # what has happened, in the order of time
    cut_off: bool = False  # it ended before all workers had left
    history_lost: bool = False  # this server took the job over, and the evaluations before are not known
    marks: tuple[Mark, ...] = ()  # the work of all workers at moments since this server learned of the job
    heard: float | None = None  # time of the last message of any worker
    at_work: bool = True  # a worker is neither gone nor overdue

    @property
    def title(self) -> str:
        """The algorithm's name on the page."""
        return self.settings.title or self.policy.watch.title

    @property
    def metric(self) -> str:
        return "accuracy" if self.settings.metric is None else self.settings.metric.name

    @property
    def limits(self) -> Limits:
        return self.settings.limits


@dataclass(frozen=True, slots=True)
class JobSummary:
    """A job in a list of jobs; times as in Snapshot."""

    id: str
    title: str
    policy: str
    num_workers: int
    round: int
    began: float
    ended: float | None
    heard: float | None
    at_work: bool
    published: bool


@dataclass(frozen=True, slots=True)
class Overview:
    """All jobs in short."""

    now: float  # as in Snapshot
    jobs: tuple[JobSummary, ...] = ()  # in the order in which they began
    # Handled messages by type, and answers by action, since this server started
    counts: Mapping[str, int] = field(default_factory=dict)


def snapshot(job: Job, now: float) -> Snapshot:
    """One job at this moment."""
    table = job.table
    return Snapshot(
        id=job.id,
        settings=job.settings,
        policy=job.policy,
        now=now,
        began=job.began,
        known_since=table.started,
        ended=job.ended,
        round=table.round,
        slowest=table.slowest.rank,
        rows=tuple(table.rows),
        curve=job.curve.points,
        best=job.curve.best,
        losses=job.losses.points,
        events=job.events.latest,
        cut_off=job.is_cut_off,
        history_lost=job.history_lost,
        marks=table.rates.marks,
        heard=table.rates.heard,
        at_work=job.is_at_work(now),
    )


def overview(jobs: Jobs, now: float, counts: Mapping[str, int]) -> Overview:
    """All jobs at this moment."""
    lines = tuple(
        JobSummary(
            id=job.id,
            title=job.settings.title or job.policy.watch.title,
            policy=job.policy.name,
            num_workers=len(job.table.rows),
            round=job.table.round,
            began=job.began,
            ended=job.ended,
            heard=job.table.rates.heard,
            at_work=job.is_at_work(now),
            published=job is jobs.published,
        )
        for job in jobs
    )
    return Overview(now, lines, dict(counts))
