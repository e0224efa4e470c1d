"""What people and programs read: the page, the state as JSON, /metrics and /healthz."""

from __future__ import annotations

import time
from typing import Any

from django.apps import apps
from django.core.cache import cache
from django.http import HttpRequest
from django.template.loader import render_to_string

from server.answers import Answer, error, json_answer
from server.http import posting, reading
from server.messages import Action
from server.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from server.metrics import metrics
from server.router import Router
from server.snapshot import Snapshot
from server.status import status

STATUS_AGE_S = 0.5
PAGE_HEADERS = {
    "Vary": "Accept",
    "Cache-Control": "no-store",
    # The page loads nothing and talks to nobody but this server.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}

call = posting


def router() -> Router:
    """The one router of this process."""
    return apps.get_app_config("server").router


@reading
def index(request: HttpRequest, job: str | None = None) -> Answer:
    """`GET /` as published, the state as JSON; a browser gets the status page. Of the latest job, or of `/jobs/ID/`."""
    snapshot = router().snapshot(job)
    if job is not None and snapshot is None:
        return error(f"there is no job {job!r} here, or not any more; / shows those that there are", 404)
    if request.get_preferred_type(["application/json", "text/html"]) != "text/html":
        return json_answer(_published_state(snapshot), headers={"Vary": "Accept"})
    page = render_to_string("server/status.html", {"status": _current_status(job)})
    return Answer(200, page.encode(), "text/html; charset=utf-8", PAGE_HEADERS)


@reading
def status_json(request: HttpRequest, job: str | None = None) -> Answer:
    """`GET /status.json`, `GET /jobs/ID/status.json`: what the status page shows."""
    current = _current_status(job)
    if job is not None and current["job"] is None:
        return error(f"there is no job {job!r} here, or not any more", 404)
    return json_answer(current, headers={"Cache-Control": "no-store"})


@reading
def metrics_text(request: HttpRequest) -> Answer:
    """`GET /metrics`: for Prometheus."""
    return Answer(200, metrics(router()).encode(), METRICS_CONTENT_TYPE)


@reading
def healthz(request: HttpRequest) -> Answer:
    """`GET /healthz`: 200 while the router answers."""
    router().overview()
    return json_answer({"status": "ok"})


def _current_status(job: str | None) -> dict[str, Any]:
    """However many people watch, the work is done at most every STATUS_AGE_S seconds."""
    current: dict[str, Any] = cache.get_or_set(
        f"status-{job or ''}", lambda: status(router().snapshot(job), router().overview()), STATUS_AGE_S
    )
    return current


def _published_state(snapshot: Snapshot | None) -> dict[str, object]:
    """The published keys, and as an addition the job and its policy; before the first job, of a job of nobody."""
    if snapshot is None:
        return {"num_workers": 0, "t": 0, "epsilon": 0.5, "records": [], "job": None, "policy": None}
    epoch = time.time() - snapshot.now  # the table keeps monotonic times, the published field is seconds since 1970
    return {
        "num_workers": snapshot.settings.num_workers,
        "t": snapshot.round,
        "epsilon": snapshot.settings.epsilon,
        "records": [
            [
                row.rank,
                row.local_iteration,
                row.computation_time or 0.0,
                0.0 if row.since is None else epoch + row.since,
                row.action is Action.SYNC,
                row.round,
            ]
            for row in snapshot.rows
        ],
        "job": snapshot.id,
        "policy": snapshot.settings.policy,
    }
