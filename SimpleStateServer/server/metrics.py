"""The jobs' state for Prometheus, made from snapshots on request. traffic.py has the HTTP metrics.

A job's labels never change: hosts and devices are in `esync_worker_info` alone, to be joined by `job` and `rank`. Up to
MAX_WORKER_SERIES workers have series of their own; all jobs have sums, counts and spreads.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server import worker_states
from server.curve import Point
from server.eta import AT_WORK, ENDED, QUIET, elapsed, job_state
from server.messages import BY_TYPE
from server.router import Router
from server.row import Row
from server.snapshot import Snapshot
from server.status import Work, transmission_time, work
from server.worker import Action
from server.worker_states import WorkerStates, silence

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format
MAX_WORKER_SERIES = 1000  # workers that have series of their own, of all jobs together


class StateCollector(Collector):
    """The metrics of the jobs."""

    def __init__(self, router: Router) -> None:
        self._router = router

    def collect(self) -> Iterator[Metric]:
        overview = self._router.overview()
        yield from _messages(overview.counts)
        states = {line.id: job_state(line, overview.now) for line in overview.jobs}
        counted = list(states.values())
        yield _family(
            "jobs",
            "Jobs that this server knows.",
            ["state"],
            ([state, counted.count(state)] for state in (AT_WORK, QUIET, ENDED)),
        )
        snapshots = [snapshot for id in states if (snapshot := self._router.snapshot(id)) is not None]
        jobs = [_JobMetrics(snapshot, states[snapshot.id]) for snapshot in snapshots]
        yield from _of_jobs(jobs)
        yield from _of_workers(_with_series(jobs))


class _JobMetrics:
    """A snapshot, and values computed once from it. The job's `id` is each metric's first label."""

    def __init__(self, snapshot: Snapshot, state: str) -> None:
        self.snapshot, self.state, self.id, self.rows = snapshot, state, snapshot.id, snapshot.rows
        self.states: WorkerStates = worker_states.states_of(snapshot)
        self.work: Work = work(snapshot, self.states.states)
        self.marks = snapshot.policy.watch.marks(snapshot.rows, snapshot.slowest) if state == AT_WORK else {}
        self.step_times = sorted(time for row in snapshot.rows if (time := row.step_time) is not None)


def _with_series(jobs: Sequence[_JobMetrics]) -> list[_JobMetrics]:
    """The jobs whose workers have series of their own; a new job takes them from no other."""
    chosen, left = [], MAX_WORKER_SERIES
    for job in jobs:
        if job.state != ENDED and len(job.snapshot.rows) <= left:
            chosen.append(job)
            left -= len(job.snapshot.rows)
    return chosen


def _family(name: str, text: str, labels: list[str], samples: Iterable[Sequence[object]]) -> Metric:
    """A gauge, or a counter where the name ends in `_total`. Each sample is its labels' values and then its own; one
    whose value is None is left out."""
    name = f"esync_{name}"
    if name.endswith("_total"):
        metric: Metric = CounterMetricFamily(name.removesuffix("_total"), text, labels=labels)
    else:
        metric = GaugeMetricFamily(name, text, labels=labels)
    for *values, value in samples:
        if isinstance(value, (int, float)):
            metric.add_sample(name, dict(zip(labels, map(str, values), strict=True)), float(value))
    return metric


def _messages(counts: Mapping[str, int]) -> Iterator[Metric]:
    yield _family(
        "messages_total",
        "Messages handled, refused ones included.",
        ["type"],
        ([kind, counts.get(kind, 0)] for kind in BY_TYPE),
    )
    yield _family(
        "decisions_total",
        "Answers to queries.",
        ["action"],
        ([action.value, counts.get(action.value, 0)] for action in Action),
    )


# Of each job, however large it is: name, text, value. A name that ends in _total is a counter's.
_OF_A_JOB: list[tuple[str, str, Callable[[_JobMetrics], float | None]]] = [
    ("job_at_work", "1 while the job's workers are heard.", lambda job: job.state == AT_WORK),
    ("job_seconds", "Time since the job began, until it ended.", lambda job: elapsed(job.snapshot, job.snapshot.now)),
    ("workers", "Workers of the job.", lambda job: len(job.snapshot.rows)),
    ("round", "The latest round that any worker has entered.", lambda job: job.snapshot.round),
    ("limit_rounds", "Rounds after which the job ends.", lambda job: job.snapshot.limits.rounds),
    ("limit_seconds", "Seconds after which the job ends.", lambda job: job.snapshot.limits.seconds),
    (
        "computing_share",
        "Share of the workers' time in the last rounds that was spent on local steps.",
        lambda job: job.work.computing_share_of_all,
    ),
    ("training_loss", "Mean of the workers' latest losses.", lambda job: _value(job.snapshot.losses[-1:])),
    ("straggler_rank", "The worker that the policy marks as slow.", lambda job: min(job.marks, default=None)),
    ("samples_total", "Samples that all workers have trained on.", lambda job: sum([r.samples for r in job.rows])),
    ("local_steps_total", "Local steps of all workers.", lambda job: sum([row.steps for row in job.rows])),
    (
        "computing_seconds_total",
        "Seconds of local steps of all workers.",
        lambda job: sum([row.computing for row in job.rows]),
    ),
]

# The same of an accuracy, and of another metric with its name as a label.
_OF_A_METRIC: list[tuple[str, str, Callable[[Snapshot], float | None]]] = [
    ("target", "at which the job ends.", lambda job: job.limits.target if job.settings.metric else job.limits.accuracy),
    ("test", "of the latest evaluation.", lambda job: _value(job.curve[-1:])),
    ("best_test", "of the best evaluation.", lambda job: _value([job.best])),
]

# Of each worker of the jobs that are not too large.
_OF_A_WORKER: list[tuple[str, str, Callable[[_JobMetrics, Row], float | None]]] = [
    ("round", "Round that the worker is in.", lambda job, row: row.round),
    ("local_steps", "Local steps in this round.", lambda job, row: row.local_iteration),
    ("local_steps_total", "Local steps since the job began.", lambda job, row: row.steps),
    ("samples_total", "Samples trained on since the job began.", lambda job, row: row.samples),
    ("computing_seconds_total", "Seconds of local steps since the job began.", lambda job, row: row.computing),
    ("step_time_seconds", "Smoothed time of a local step.", lambda job, row: row.step_time),
    (
        "transmission_time_seconds",
        "Time to push a model update.",
        lambda job, row: transmission_time(job.snapshot, row),
    ),
    ("silence_seconds", "Time since the worker was heard.", lambda job, row: silence(job.snapshot, row)),
    (
        "computing_share",
        "Share of its time in the last rounds that was spent on local steps.",
        lambda job, row: job.work.computing_share(row.rank),
    ),
    (
        "waiting",
        "1 while the worker waits for others.",
        lambda job, row: job.states.states[row.rank] == worker_states.WAITING,
    ),
]


def _value(points: Sequence[Point | None]) -> float | None:
    return points[0].value if points and points[0] is not None else None


def _of_jobs(jobs: Sequence[_JobMetrics]) -> Iterator[Metric]:
    yield _family(
        "job_info",
        "A job.",
        ["job", "policy", "algorithm"],
        ([job.id, job.snapshot.settings.policy, job.snapshot.title, 1] for job in jobs),
    )
    yield _family(
        "workers_in_state",
        "Workers by what they do.",
        ["job", "state"],
        ([job.id, state, job.states.states.count(state)] for job in jobs for state in worker_states.ALL),
    )
    yield _family(
        "events",
        "Of the latest events, those of a kind.",
        ["job", "kind"],
        (
            [job.id, kind, count]
            for job in jobs
            for kind, count in Counter(event.kind for event in job.snapshot.events).items()
        ),
    )
    yield _family(
        "step_time_seconds",
        "Spread of the workers' smoothed step times.",
        ["job", "worker"],
        ([job.id, name, value] for job in jobs for name, value in _spread(job.step_times)),
    )
    for name, text, value in _OF_A_JOB:
        yield _family(name, text, ["job"], ([job.id, value(job)] for job in jobs))
    plain = [job.snapshot for job in jobs if job.snapshot.settings.metric is None]
    others = [job.snapshot for job in jobs if job.snapshot.settings.metric is not None]
    for name, text, read in _OF_A_METRIC:
        yield _family(f"{name}_accuracy", f"Test accuracy {text}", ["job"], ([job.id, read(job)] for job in plain))
        samples = ([job.id, job.metric, read(job)] for job in others)
        yield _family(f"{name}_metric", f"Value {text}", ["job", "metric"], samples)


def _spread(ascending: Sequence[float]) -> Iterator[tuple[str, float]]:
    if ascending:
        last = len(ascending) - 1
        for name, share in (("fastest", 0.0), ("median", 0.5), ("90th percentile", 0.9), ("slowest", 1.0)):
            yield name, ascending[round(share * last)]


def _of_workers(jobs: Sequence[_JobMetrics]) -> Iterator[Metric]:
    rows = [(job, row) for job in jobs for row in job.rows]
    yield _family(
        "worker_info",
        "Where a worker runs, once it has said so.",
        ["job", "rank", "host", "device"],
        (
            [job.id, row.rank, row.device.host, row.device.device, 1]
            for job, row in rows
            if row.device.host or row.device.device
        ),
    )
    for name, text, value in _OF_A_WORKER:
        yield _family(
            f"worker_{name}", text, ["job", "rank"], ([job.id, row.rank, value(job, row)] for job, row in rows)
        )
