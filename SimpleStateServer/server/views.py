"""Answers every request: the page, the state as JSON, /metrics and /healthz here, calls that change state by the
receiver.

All is done in the loop that answers the workers. Responses that grow with the job come from `ResponseCache`, which
bounds their share of the loop's time.
"""

import functools
import ipaddress
import json
import logging
import re
import time
from time import perf_counter
from typing import cast

from django.apps import apps
from django.conf import settings
from django.http import HttpRequest
from django.http.request import split_domain_port, validate_host
from django.template.loader import render_to_string
from prometheus_client import generate_latest

from server.answers import JSON, Answer, Request, error, json_answer, refused
from server.apps import ServerConfig
from server.errors import BadMessage, Conflict
from server.jobs import Job
from server.log_limit import note_refusal
from server.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from server.receiver import CALLS, post
from server.row import Action
from server.status import status

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

log = logging.getLogger(__name__)


@functools.cache  # each message asks
def app() -> ServerConfig:
    """The app of this process."""
    return cast(ServerConfig, apps.get_app_config("server"))


def answer(request: Request) -> Answer:
    """Answers a request, also with an error, and counts it."""
    begin, path = perf_counter(), request.path
    try:
        found = _answer(path, request)
    except (BadMessage, Conflict) as problem:
        code, said = refused(problem)
        found = json_answer(said, code)
    except Exception:  # the sender is told; the next request must not suffer from this one
        log.exception("%s %r failed", request.method, path[:200])
        found = error("the state server failed on this request; its log says why", 500)
    app().traffic.answered(path, found.status, perf_counter() - begin)
    if path in CALLS and found.status != 200:
        note_refusal(request.address, f"{request.method} {path}", found)
    return found


def _answer(path: str, request: Request) -> Answer:
    if path in CALLS:
        return post(path, request) if request.method == "POST" else _not_allowed(request, "POST")
    job = None
    if of_job := re.fullmatch(r"/jobs/([^/]+)(/(?:status\.json)?)", path):
        job, path = of_job.groups()
    if path not in ("/", "/status.json", "/metrics", "/healthz"):
        return error(f"there is no {path[:200]!r} here; docs/state-server.md has the paths", 404)
    if request.method not in ("GET", "HEAD"):
        return _not_allowed(request, "GET, HEAD")
    if path == "/healthz":  # by any name
        return json_answer({"status": "ok", "version": settings.STATE_SERVER_VERSION})
    if misdirected := _misdirected(request):
        return misdirected
    if path == "/metrics":
        text = app().response_cache.get("metrics", lambda: generate_latest(app().registry))
        return Answer(200, text, METRICS_CONTENT_TYPE)
    jobs = app().handlers.jobs
    found = jobs.latest if job is None else jobs.get(job)
    if job is not None and found is None:
        return error(f"there is no job {job[:200]!r} here, or not any more; / shows the present ones", 404)
    if path == "/status.json":
        app().watched_at = time.monotonic()
        return Answer(200, _status(job, found), JSON, NO_STORE)
    if _wants_page(request):
        before, after = _page_parts()
        return Answer(200, before + _status(job, found) + after, "text/html; charset=utf-8", PAGE_HEADERS)
    return Answer(200, _published(job, found), JSON, {"Vary": "Accept"})


def _wants_page(request: Request) -> bool:
    """Whether a browser asks; programs get the published state as JSON."""
    asks = HttpRequest()
    asks.META["HTTP_ACCEPT"] = request.headers.get("accept", "*/*")
    return asks.get_preferred_type([JSON, "text/html"]) == "text/html"


def _not_allowed(request: Request, allowed: str) -> Answer:
    return error(f"method {request.method} is not allowed; use {allowed}", 405, {"Allow": allowed})


def _misdirected(request: Request) -> Answer | None:
    """The answer where the name is not this server's. A page elsewhere can have its own name lead here (DNS rebinding):
    its browser then gives what it reads to that page. No page can do so with an address."""
    name, _ = split_domain_port(request.headers.get("host", "localhost"))
    if validate_host(name, settings.ALLOWED_HOSTS):
        return None
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        text = f"this server is not {name[:80]!r} (Host): ask by its address, or give it the name by ESYNC_HOSTS"
        return error(text, 421)
    return None


def last_page() -> bytes:
    """The page as one file that asks no server: of the latest job, with links to the others. Empty: there is none."""
    jobs, now = app().handlers.jobs, time.monotonic()
    found = {id: status(job, jobs, now) for id, job in jobs.items()}
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


def _status(name: str | None, job: Job | None) -> bytes:
    """The status as JSON that can stand in HTML. `name` is that by which the job was asked for."""
    jobs = app().handlers.jobs
    return app().response_cache.get(("status", name), lambda: _json(status(job, jobs, time.monotonic())))


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).translate(_IN_HTML).encode()


def _published(name: str | None, job: Job | None) -> bytes:
    """The state as published. Arguments as in `_status`."""
    if job is None or len(job.rows) <= SMALL_JOB:  # a program may check the effect of its POST
        return _json(_published_state(job))
    return app().response_cache.get(("published", name), lambda: _json(_published_state(job)))


def _published_state(job: Job | None) -> dict[str, object]:
    """The published keys, and as an addition the job and its policy; before the first job, of an empty one."""
    if job is None:
        return {"num_workers": 0, "t": 0, "epsilon": 0.5, "records": [], "job": None, "policy": None}
    epoch = time.time() - time.monotonic()  # the table keeps monotonic times, the published field is seconds since 1970
    return {
        "num_workers": job.settings.num_workers,
        "t": job.table.round,
        "epsilon": job.settings.epsilon,
        "records": [
            [
                row.rank,
                row.local_iteration,
                row.computation_time or 0.0,
                0.0 if row.since is None else epoch + row.since,
                row.action is Action.SYNC,
                row.round,
            ]
            for row in job.rows
        ],
        "job": job.id,
        "policy": job.settings.policy,
    }
