"""The metrics for Prometheus: of HTTP, and the jobs' state, made on request.

A job's labels never change: hosts and devices are in `esync_worker_info` alone, to be joined by `job` and `rank`. Up to
MAX_WORKER_SERIES workers have series of their own; all jobs have sums, counts and spreads.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter as PrometheusCounter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.curve import Point
from server.handlers import Handlers
from server.jobs import AT_WORK, ENDED, QUIET, Job
from server.messages import BY_TYPE
from server.row import Action, Row
from server.worker_states import ALL, WAITING, View

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # Prometheus' text format
PATHS = ("/message/", "/init/", "/apply/", "/reset/", "/", "/status.json", "/metrics", "/healthz", "/jobs/")
OTHER = "other"
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
MAX_WORKER_SERIES = 1000  # workers that have series of their own, of all jobs together


class Traffic:
    """The metrics of HTTP. `registry` is this process's own, so that several may live in one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        seconds = Histogram(
            "esync_request_seconds", "Time to answer a request, once it is here.", ["path"], buckets=BUCKETS,
            registry=registry,
        )  # fmt: skip
        # Made once, since every query counts here; of a fixed number, since a client may ask for any path.
        self._seconds = {path: seconds.labels(path) for path in (*PATHS, OTHER)}
        self.refused = PrometheusCounter(
            "esync_requests_refused", "Requests with another answer than 2xx.", ["status"], registry=registry
        )
        self.connections = Gauge("esync_connections", "Open connections.", registry=registry)
        self.connections_closed = PrometheusCounter(
            "esync_connections_closed", "Connections that this server closed.", ["why"], registry=registry
        )

    def answered(self, path: str, status: int, seconds: float) -> None:
        known = self._seconds.get(path)
        if known is None:
            known = self._seconds["/jobs/" if path.startswith("/jobs/") else OTHER]
        known.observe(seconds)
        if status >= 300:
            self.refused.labels(str(status)).inc()


class StateCollector(Collector):
    """The metrics of the jobs."""

    def __init__(self, handlers: Handlers, clock: Callable[[], float]) -> None:
        self._handlers, self._clock = handlers, clock

    def collect(self) -> Iterator[Metric]:
        counts, now = self._handlers.counts, self._clock()
        messages = ([kind, counts[kind]] for kind in BY_TYPE)
        yield _family("messages_total", "Messages handled, refused ones included.", "type", messages)
        decisions = ([action.value, counts[action.value]] for action in Action)
        yield _family("decisions_total", "Answers to queries.", "action", decisions)
        views = [View(job, now) for job in self._handlers.jobs.values()]
        number = Counter(view.state for view in views)
        states = ([state, number[state]] for state in (AT_WORK, QUIET, ENDED))
        yield _family("jobs", "Jobs that this server knows.", "state", states)
        yield from _job_metrics(views)
        yield from _worker_metrics(_with_series(views))


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
_JOB: list[tuple[str, str, Callable[[View], float | None]]] = [
    ("job_at_work", "1 while the job's workers are heard.", lambda view: view.state == AT_WORK),
    ("job_seconds", "Time since the job began, until it ended.", lambda view: view.job.elapsed(view.now)),
    ("workers", "Workers of the job.", lambda view: len(view.rows)),
    ("round", "The latest round that any worker has entered.", lambda view: view.job.table.round),
    ("limit_rounds", "Rounds after which the job ends.", lambda view: view.job.settings.limits.rounds),
    ("limit_seconds", "Seconds after which the job ends.", lambda view: view.job.settings.limits.seconds),
    ("computing_share", "Share of local steps in the last rounds' time.", lambda view: view.computing_share_of_all),
    ("training_loss", "Mean of the workers' latest losses.", lambda view: _value(view.job.losses.points[-1:])),
    ("straggler_rank", "The worker that the policy marks as slow.", lambda view: min(view.marks, default=None)),
    (
        "samples_total",
        "Samples that all workers have trained on.",
        lambda view: sum([row.samples for row in view.rows]),
    ),
    ("local_steps_total", "Local steps of all workers.", lambda view: sum([row.steps for row in view.rows])),
    ("computing_seconds_total", "Seconds of all local steps.", lambda view: sum([row.computing for row in view.rows])),
]

# The same of an accuracy, and of another metric with its name as a label.
_METRIC: list[tuple[str, str, Callable[[Job], float | None]]] = [
    (
        "target",
        "at which the job ends.",
        lambda job: getattr(job.settings.limits, "target" if job.settings.metric else "accuracy"),
    ),
    ("test", "of the latest evaluation.", lambda job: _value(job.curve.points[-1:])),
    ("best_test", "of the best evaluation.", lambda job: _value([job.curve.best])),
]

# Of each worker of the jobs that are not too large.
_WORKER: list[tuple[str, str, Callable[[View, Row], float | None]]] = [
    ("round", "Round that the worker is in.", lambda view, row: row.round),
    ("local_steps", "Local steps in this round.", lambda view, row: row.local_iteration),
    ("local_steps_total", "Local steps since the job began.", lambda view, row: row.steps),
    ("samples_total", "Samples trained on since the job began.", lambda view, row: row.samples),
    ("computing_seconds_total", "Seconds of local steps since the job began.", lambda view, row: row.computing),
    ("step_time_seconds", "Smoothed time of a local step.", lambda view, row: row.step_time),
    ("transmission_time_seconds", "Time to push a model.", lambda view, row: view.transmission_time(row)),
    ("silence_seconds", "Time since the worker was heard.", lambda view, row: view.job.silence(row, view.now)),
    ("computing_share", "Share of local steps in its time.", lambda view, row: view.computing_share(row.rank)),
    ("waiting", "1 while the worker waits for others.", lambda view, row: view.states[row.rank] == WAITING),
]


def _value(points: Sequence[Point | None]) -> float | None:
    return points[0].value if points and points[0] is not None else None


def _job_metrics(views: Sequence[View]) -> Iterator[Metric]:
    about = ([view.job.id, view.job.policy.name, view.job.title, 1] for view in views)
    yield _family("job_info", "A job.", "job policy algorithm", about)
    states = ([view.job.id, state, view.states.count(state)] for view in views for state in ALL)
    yield _family("workers_in_state", "Workers by what they do.", "job state", states)
    kinds = ((view.job.id, Counter(event.kind for event in view.job.events)) for view in views)
    events = ([id, kind, count] for id, counts in kinds for kind, count in counts.items())
    yield _family("events", "Of the latest events, those of a kind.", "job kind", events)
    spreads = ([view.job.id, name, value] for view in views for name, value in _spread(view.rows))
    yield _family("step_time_seconds", "Spread of the workers' smoothed step times.", "job worker", spreads)
    for name, text, value in _JOB:
        yield _family(name, text, "job", ([view.job.id, value(view)] for view in views))
    for name, text, read in _METRIC:
        plain = ([view.job.id, read(view.job)] for view in views if view.job.settings.metric is None)
        yield _family(f"{name}_accuracy", f"Test accuracy {text}", "job", plain)
        others = ((view.job, view.job.settings.metric) for view in views)
        samples = ([job.id, metric.name, read(job)] for job, metric in others if metric is not None)
        yield _family(f"{name}_metric", f"Value {text}", "job metric", samples)


def _spread(rows: Sequence[Row]) -> Iterator[tuple[str, float]]:
    ascending = sorted(time for row in rows if (time := row.step_time) is not None)
    for name, share in (("fastest", 0.0), ("median", 0.5), ("90th percentile", 0.9), ("slowest", 1.0)):
        if ascending:
            yield name, ascending[round(share * (len(ascending) - 1))]


def _with_series(views: Sequence[View]) -> list[View]:
    """The jobs whose workers have series of their own; a new job takes them from no other."""
    chosen, left = [], MAX_WORKER_SERIES
    for view in views:
        if view.state != ENDED and len(view.rows) <= left:
            chosen.append(view)
            left -= len(view.rows)
    return chosen


def _worker_metrics(views: Sequence[View]) -> Iterator[Metric]:
    rows = [(view, row) for view in views for row in view.rows]
    places = ((view.job.id, row.rank, row.device.host, row.device.device) for view, row in rows)
    known = ([*place, 1] for place in places if place[2] or place[3])
    yield _family("worker_info", "Where a worker runs, once it has said so.", "job rank host device", known)
    for name, text, value in _WORKER:
        yield _family(
            f"worker_{name}", text, "job rank", ([view.job.id, row.rank, value(view, row)] for view, row in rows)
        )
