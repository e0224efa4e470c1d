"""Readers' views: the page, the state as JSON, /metrics and /healthz.

They run in the loop that answers the workers. Responses that grow with the job come from `ResponseCache`, which bounds
their share of the loop's time.
"""

from __future__ import annotations

import functools
import json
import time
from typing import TYPE_CHECKING, cast

from django.apps import apps
from django.conf import settings
from django.http import HttpRequest
from django.template.loader import render_to_string

from server.answers import JSON, Answer, error, json_answer
from server.http import reading
from server.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from server.snapshot import Snapshot
from server.status import status
from server.worker import Action

if TYPE_CHECKING:
    from server.apps import ServerConfig

SMALL_JOB = 1000  # workers; the published state of such a job takes a millisecond or two
NO_STORE = {"Cache-Control": "no-store"}
PAGE_HEADERS = {
    **NO_STORE,
    "Vary": "Accept",
    # The page talks to this server alone.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}
# As the page's JSON stands in HTML, where these would end it; in JSON they are the same letters.
_IN_HTML = {ord("<"): "\\u003C", ord(">"): "\\u003E", ord("&"): "\\u0026"}
_STATUS_HERE = "STATUS-HERE"


class _NoSuchJob(Exception):
    """A job is asked for by an id that is not known."""


def app() -> ServerConfig:
    """The app of this process."""
    return cast("ServerConfig", apps.get_app_config("server"))


@reading
def index(request: HttpRequest, job: str | None = None) -> Answer:
    """`GET /` as published, the state as JSON; a browser gets the status page. Of the latest job, or of `/jobs/ID/`."""
    try:
        if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
            return _page(job)
        return Answer(200, _published(job), JSON, {"Vary": "Accept"})
    except _NoSuchJob:
        return _no_such_job(job)


@reading
def status_json(request: HttpRequest, job: str | None = None) -> Answer:
    """`GET /status.json`, `GET /jobs/ID/status.json`: what the status page shows."""
    app().watched_at = time.monotonic()
    try:
        return Answer(200, _status(job), JSON, NO_STORE)
    except _NoSuchJob:
        return _no_such_job(job)


@reading
def metrics_text(request: HttpRequest) -> Answer:
    """`GET /metrics`: for Prometheus."""
    return Answer(200, app().response_cache.get("metrics", app().metrics), METRICS_CONTENT_TYPE)


@functools.partial(reading, by_any_name=True)
def healthz(request: HttpRequest) -> Answer:
    """`GET /healthz`: 200 and the version while this server answers."""
    return json_answer({"status": "ok", "version": settings.STATE_SERVER_VERSION})


def _no_such_job(job: str | None) -> Answer:
    name = repr((job or "")[:200])
    return error(f"there is no job {name} here, or not any more; / shows the present ones", 404)


def _page(job: str | None) -> Answer:
    before, after = _page_parts()
    return Answer(200, before + _status(job) + after, "text/html; charset=utf-8", PAGE_HEADERS)


def last_page() -> bytes:
    """The page as one file that asks no server: of the latest job, with links to the others. Empty: there is none."""
    jobs = app().router.overview()
    found = {line.id: status(_snapshot(line.id), jobs) for line in jobs.jobs}
    if not found:
        return b""
    *_, latest = found.values()
    before, after = _page_parts()
    return before + _json({**latest, "all": found}) + after


@functools.cache
def _page_parts() -> tuple[bytes, bytes]:
    """The page is the same for all jobs, save the status in it."""
    values = {"status": _STATUS_HERE, "version": settings.STATE_SERVER_VERSION}
    before, after = render_to_string("server/status.html", values).split(_STATUS_HERE)
    return before.encode(), after.encode()


def _status(job: str | None) -> bytes:
    """The status as JSON that can stand in HTML. Raises _NoSuchJob if `job` is not known."""
    return app().response_cache.get(("status", job), lambda: _json(status(_snapshot(job), app().router.overview())))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).translate(_IN_HTML).encode()


def _published(job: str | None) -> bytes:
    """The state as published. Raises _NoSuchJob if `job` is not known."""
    snapshot = _snapshot(job)
    if snapshot is None or len(snapshot.rows) <= SMALL_JOB:  # a program may check the effect of its POST
        return _json(_published_state(snapshot))
    return app().response_cache.get(("published", job), lambda: _json(_published_state(snapshot)))


def _snapshot(job: str | None) -> Snapshot | None:
    snapshot = app().router.snapshot(job)
    if job is not None and snapshot is None:
        raise _NoSuchJob
    return snapshot


def _published_state(snapshot: Snapshot | None) -> dict[str, object]:
    """The published keys, and as an addition the job and its policy; before the first job, of an empty one."""
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
