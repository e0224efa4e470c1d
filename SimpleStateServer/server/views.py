"""Receiver and sender: a view parses a request into a message, queues it, waits for the answer and sends it."""

from __future__ import annotations

import time
import uuid
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, QueryDict
from django.template.loader import render_to_string

from server import messages, published
from server.handlers import Conflict, Snapshot
from server.http import answer, endpoint, json_answer
from server.messages import Action, BadMessage, Response
from server.metrics import CONTENT_TYPE as METRICS_CONTENT_TYPE
from server.metrics import metrics
from server.policies import POLICIES
from server.router import Router
from server.status import status

STATUS_AGE_S = 0.5
FORM_TYPE = "application/x-www-form-urlencoded"
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


def router() -> Router:
    """The one router of this process."""
    return apps.get_app_config("server").router


@endpoint("POST")
def message(request: HttpRequest) -> HttpResponse:
    """`POST /message/`: RESET, REPORT or QUERY as JSON; answers with a RESPONSE."""
    return json_answer(router().ask(messages.parse(request.body, POLICIES)).to_wire())


@endpoint("POST")
def init(request: HttpRequest) -> HttpResponse:
    """`POST /init/` as published: starts a new job."""
    job = f"init-{uuid.uuid4().hex}"
    router().ask(published.init(_form(request), job, POLICIES, settings.STATE_SERVER_INIT_POLICY))
    return answer()


@endpoint("POST")
def apply(request: HttpRequest) -> HttpResponse:
    """`POST /apply/` as published: {"ready": 0} go on training, {"ready": 1} aggregate now."""
    response = _ask_published(published.apply(_form(request)))
    return json_answer({"ready": int(response.action is Action.SYNC)})


@endpoint("POST")
def reset(request: HttpRequest) -> HttpResponse:
    """`POST /reset/` as published: a worker has pulled and enters round t."""
    _ask_published(published.reset(_form(request)))
    return answer()


@endpoint("GET", "HEAD")
def index(request: HttpRequest) -> HttpResponse:
    """`GET /` as published, the state as JSON; a browser gets the status page."""
    if request.get_preferred_type(["application/json", "text/html"]) == "text/html":
        page = render_to_string("server/status.html", {"status": _current_status()})
        return answer(page, content_type="text/html; charset=utf-8", headers=PAGE_HEADERS)
    snapshot = router().snapshot()
    if snapshot.settings is None:
        raise Conflict("no-job", "no job has begun; send a RESET (or POST /init/) first")
    return json_answer(_published_state(snapshot), headers={"Vary": "Accept"})


@endpoint("GET", "HEAD")
def status_json(request: HttpRequest) -> HttpResponse:
    """`GET /status.json`: what the status page shows."""
    return json_answer(_current_status(), headers={"Cache-Control": "no-store"})


@endpoint("GET", "HEAD")
def metrics_text(request: HttpRequest) -> HttpResponse:
    """`GET /metrics`: for Prometheus."""
    return answer(metrics(router().snapshot()), content_type=METRICS_CONTENT_TYPE)


@endpoint("GET", "HEAD")
def healthz(request: HttpRequest) -> HttpResponse:
    """`GET /healthz`: 200 while the router answers."""
    router().snapshot()
    return json_answer({"status": "ok"})


def _current_status() -> dict[str, Any]:
    """However many people watch, the work is done at most every STATUS_AGE_S seconds."""
    current: dict[str, Any] = cache.get_or_set("status", lambda: status(router().snapshot()), STATUS_AGE_S)
    return current


def _form(request: HttpRequest) -> dict[str, str]:
    """The form's fields; none where there is no body.

    Raises:
        BadMessage: the body is something else. Taken for a form it would have no fields, which `/init/` understands as
            its defaults. (request.POST would also take multipart bodies, which may hold files.)
    """
    if request.body and request.content_type != FORM_TYPE:
        raise BadMessage(f"the body is {(request.content_type or 'of no type')[:80]!r}; send the fields as {FORM_TYPE}")
    return QueryDict(request.body).dict()


def _ask_published(worker_message: messages.Query | messages.Report) -> Response:
    try:
        return router().ask(worker_message)
    except BadMessage as problem:
        raise BadMessage(str(problem), published.wire_name(problem.field)) from None


def _published_state(snapshot: Snapshot) -> dict[str, object]:
    assert snapshot.settings is not None
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
        "job": snapshot.settings.job,
        "policy": snapshot.settings.policy,
    }
