"""HTTP metrics for Prometheus: requests and the time to answer them."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

PATHS = ("/message/", "/init/", "/apply/", "/reset/", "/", "/status.json", "/metrics", "/healthz", "/jobs/")
OTHER = "other"
BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Traffic:
    """Owns the metrics of HTTP; metrics.py has the state's. `registry` is this process's; its
    own, so that several may live in one process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        seconds = Histogram(
            "esync_request_seconds", "Time to answer a request, once it is here.", ["path"], buckets=BUCKETS,
            registry=registry,
        )  # fmt: skip
        # Made once, since every query counts here; of a fixed number, since a client may ask for any path.
        self._seconds = {path: seconds.labels(path) for path in (*PATHS, OTHER)}
        self.refused = Counter(
            "esync_requests_refused", "Requests with another answer than 2xx.", ["status"], registry=registry
        )
        self.connections = Gauge("esync_connections", "Open connections.", registry=registry)
        self.connections_closed = Counter(
            "esync_connections_closed", "Connections that this server closed.", ["why"], registry=registry
        )

    def answered(self, path: str, status: int, seconds: float) -> None:
        known = self._seconds.get(path)
        if known is None:
            known = self._seconds["/jobs/" if path.startswith("/jobs/") else OTHER]
        known.observe(seconds)
        if status >= 300:
            self.refused.labels(str(status)).inc()
