"""The jobs' state for Prometheus, made on request. traffic.py has the HTTP metrics.

A job's labels never change: hosts and devices are in `esync_worker_info` alone, to be joined by `job` and `rank`. Up to
MAX_WORKER_SERIES workers have series of their own; all jobs have sums, counts and spreads.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.curve import Point
from server.eta import AT_WORK, ENDED, QUIET, elapsed
from server.handlers import Handlers
from server.jobs import Job, Jobs
from server.messages import BY_TYPE
from server.row import Row
from server.view import View
from server.worker import Action
from server.worker_states import ALL, WAITING

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format
MAX_WORKER_SERIES = 1000  # workers that have series of their own, of all jobs together


class StateCollector(Collector):
    """The metrics of the jobs."""

    def __init__(self, handlers: Handlers, clock: Callable[[], float]) -> None:
        self._handlers, self._clock = handlers, clock

    def collect(self) -> Iterator[Metric]:
        return _of_server(self._handlers.jobs, self._handlers.counts, self._clock())


def _family(name: str, text: str, labels: str, samples: Iterable[Sequence[object]]) -> Metric:
    """A gauge, or a counter where the name ends in `_total`. `labels` are names with spaces between. Each sample is its
    labels' values and then its own; one whose value is None is left out."""
    name, keys = f"esync_{name}", labels.split()
    if name.endswith("_total"):
        metric: Metric = CounterMetricFamily(name.removesuffix("_total"), text, labels=keys)
    else:
        metric = GaugeMetricFamily(name, text, labels=keys)
    for *values, value in samples:
        if isinstance(value, (int, float)):
            metric.add_sample(name, dict(zip(keys, map(str, values), strict=True)), float(value))
    return metric


# Of each job, however large it is: name, text, value. A name that ends in _total is a counter's.
_OF_A_JOB: list[tuple[str, str, Callable[[View], float | None]]] = [
    ("job_at_work", "1 while the job's workers are heard.", lambda its: its.state == AT_WORK),
    ("job_seconds", "Time since the job began, until it ended.", lambda its: elapsed(its.job, its.now)),
    ("workers", "Workers of the job.", lambda its: len(its.rows)),
    ("round", "The latest round that any worker has entered.", lambda its: its.job.table.round),
    ("limit_rounds", "Rounds after which the job ends.", lambda its: its.job.settings.limits.rounds),
    ("limit_seconds", "Seconds after which the job ends.", lambda its: its.job.settings.limits.seconds),
    ("computing_share", "Share of local steps in the last rounds' time.", lambda its: its.computing_share_of_all),
    ("training_loss", "Mean of the workers' latest losses.", lambda its: _value(its.job.losses.points[-1:])),
    ("straggler_rank", "The worker that the policy marks as slow.", lambda its: min(its.marks, default=None)),
    ("samples_total", "Samples that all workers have trained on.", lambda its: sum([row.samples for row in its.rows])),
    ("local_steps_total", "Local steps of all workers.", lambda its: sum([row.steps for row in its.rows])),
    ("computing_seconds_total", "Seconds of all local steps.", lambda its: sum([row.computing for row in its.rows])),
]

# The same of an accuracy, and of another metric with its name as a label.
_OF_A_METRIC: list[tuple[str, str, Callable[[Job], float | None]]] = [
    (
        "target",
        "at which the job ends.",
        lambda job: getattr(job.settings.limits, "target" if job.settings.metric else "accuracy"),
    ),
    ("test", "of the latest evaluation.", lambda job: _value(job.curve.points[-1:])),
    ("best_test", "of the best evaluation.", lambda job: _value([job.curve.best])),
]

# Of each worker of the jobs that are not too large.
_OF_A_WORKER: list[tuple[str, str, Callable[[View, Row], float | None]]] = [
    ("round", "Round that the worker is in.", lambda its, row: row.round),
    ("local_steps", "Local steps in this round.", lambda its, row: row.local_iteration),
    ("local_steps_total", "Local steps since the job began.", lambda its, row: row.steps),
    ("samples_total", "Samples trained on since the job began.", lambda its, row: row.samples),
    ("computing_seconds_total", "Seconds of local steps since the job began.", lambda its, row: row.computing),
    ("step_time_seconds", "Smoothed time of a local step.", lambda its, row: row.step_time),
    ("transmission_time_seconds", "Time to push a model.", lambda its, row: its.transmission_time(row)),
    ("silence_seconds", "Time since the worker was heard.", lambda its, row: its.silence(row)),
    ("computing_share", "Share of local steps in its time.", lambda its, row: its.computing_share(row.rank)),
    ("waiting", "1 while the worker waits for others.", lambda its, row: its.states[row.rank] == WAITING),
]


def _value(points: Sequence[Point | None]) -> float | None:
    return points[0].value if points and points[0] is not None else None


def _of_server(all_jobs: Jobs, counts: Mapping[str, int], now: float) -> Iterator[Metric]:
    yield _family(
        "messages_total", "Messages handled, refused ones included.", "type",
        ([kind, counts.get(kind, 0)] for kind in BY_TYPE),
    )  # fmt: skip
    yield _family(
        "decisions_total", "Answers to queries.", "action",
        ([action.value, counts.get(action.value, 0)] for action in Action),
    )  # fmt: skip
    jobs = [View(job, now) for job in all_jobs]
    number = Counter(its.state for its in jobs)
    states = ([state, number[state]] for state in (AT_WORK, QUIET, ENDED))
    yield _family("jobs", "Jobs that this server knows.", "state", states)
    yield from _of_jobs(jobs)
    yield from _of_workers(_with_series(jobs))


def _of_jobs(jobs: Sequence[View]) -> Iterator[Metric]:
    about = ([its.job.id, its.job.policy.name, its.job.title, 1] for its in jobs)
    yield _family("job_info", "A job.", "job policy algorithm", about)
    states = ([its.job.id, state, its.states.count(state)] for its in jobs for state in ALL)
    yield _family("workers_in_state", "Workers by what they do.", "job state", states)
    kinds = ((its.job.id, Counter(event.kind for event in its.job.events.latest)) for its in jobs)
    events = ([id, kind, count] for id, counts in kinds for kind, count in counts.items())
    yield _family("events", "Of the latest events, those of a kind.", "job kind", events)
    spreads = ([its.job.id, name, value] for its in jobs for name, value in _spread(its.rows))
    yield _family("step_time_seconds", "Spread of the workers' smoothed step times.", "job worker", spreads)
    for name, text, value in _OF_A_JOB:
        yield _family(name, text, "job", ([its.job.id, value(its)] for its in jobs))
    for name, text, read in _OF_A_METRIC:
        plain = ([its.job.id, read(its.job)] for its in jobs if its.job.settings.metric is None)
        yield _family(f"{name}_accuracy", f"Test accuracy {text}", "job", plain)
        others = ((its.job, its.job.settings.metric) for its in jobs)
        samples = ([job.id, metric.name, read(job)] for job, metric in others if metric is not None)
        yield _family(f"{name}_metric", f"Value {text}", "job metric", samples)


def _spread(rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    ascending = sorted(time for row in rows if (time := row.step_time) is not None)
    for name, share in (("fastest", 0.0), ("median", 0.5), ("90th percentile", 0.9), ("slowest", 1.0)):
        if ascending:
            yield name, ascending[round(share * (len(ascending) - 1))]


def _with_series(jobs: Sequence[View]) -> list[View]:
    """The jobs whose workers have series of their own; a new job takes them from no other."""
    chosen, left = [], MAX_WORKER_SERIES
    for its in jobs:
        if its.state != ENDED and len(its.rows) <= left:
            chosen.append(its)
            left -= len(its.rows)
    return chosen


def _of_workers(jobs: Sequence[View]) -> Iterator[Metric]:
    rows = [(its, row) for its in jobs for row in its.rows]
    places = ((its.job.id, row.rank, row.device.host, row.device.device) for its, row in rows)
    known = ([*place, 1] for place in places if place[2] or place[3])
    yield _family("worker_info", "Where a worker runs, once it has said so.", "job rank host device", known)
    for name, text, value in _OF_A_WORKER:
        yield _family(
            f"worker_{name}", text, "job rank", ([its.job.id, row.rank, value(its, row)] for its, row in rows)
        )
