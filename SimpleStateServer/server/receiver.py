"""Receiver and sender: a POST's head and body become a message, its handler answers it, the answer goes back.

The messages are JSON (wire.py), or those of the published interface: its forms are translated into them here.
"""

import contextlib
import hmac
import secrets
import time
import uuid
from collections.abc import Mapping
from urllib.parse import parse_qsl

from django.apps import apps
from django.conf import settings
from msgspec import Struct

from server import wire
from server.answers import JSON, Answer, Request, error, json_answer
from server.errors import BadMessage, Conflict
from server.messages import (
    Count,
    Message,
    NumWorkers,
    PolicyName,
    Positive,
    PublishedReset,
    Query,
    Report,
    Response,
    Seconds,
    Settings,
    Status,
)
from server.row import Action

FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 100
_SERVER = secrets.token_hex(4)  # a worker that sees it change knows that this server has lost its state
_WIRE_NAMES = {
    "rank": "r",
    "local_iteration": "k",
    "round": "t",
    "computation_time": "c",
    "transmission_time": "m",
    "timestamp": "te",
}


class _Init(Struct, kw_only=True):
    num_workers: NumWorkers = 6
    epsilon: Seconds = 0.5
    policy: PolicyName


class _Apply(Status, frozen=True, kw_only=True):
    local_iteration: Count  # in the journal's messages it may be left out, here not


class _Reset(Status, frozen=True, kw_only=True):
    round: Positive  # likewise


def post(path: str, request: Request) -> Answer:
    """Answers a request to a path of CALLS. Raises BadMessage or Conflict where the message is refused."""
    headers, token = request.headers, settings.STATE_SERVER_TOKEN
    # Workers are no browsers and send neither; a browser sends them with every POST of a page, from wherever the page
    # is. This server's own page sends no POST.
    if "origin" in headers or "sec-fetch-site" in headers:
        origin = headers.get("origin", headers.get("sec-fetch-site", ""))[:80]
        return error(f"a page in a browser (Origin {origin!r}) may not send this; workers and programs may", 403)
    if token and not hmac.compare_digest(_token(headers).encode(), token.encode()):
        text = "this server needs a token; send 'Authorization: Bearer <token>' with the value of ESYNC_TOKEN"
        return error(text, 401, {"WWW-Authenticate": "Bearer"})
    return CALLS[path](request)


def _message(request: Request) -> Answer:
    """`POST /message/`: a message as JSON; answers with a RESPONSE."""
    _need_type(request, JSON, "the message as JSON")
    message = wire.parse(request.body, _token(request.headers))
    return json_answer(_ask(message).to_wire(_SERVER))


def _init(request: Request) -> Answer:
    """`POST /init/`: num_workers (6), epsilon (0.5 s), and as an addition policy (ESYNC_POLICY). Begins a new job for
    the workers that name none. An empty form stands for the defaults; one with none of these fields is refused: the
    sender meant something else."""
    form, known = _form(request), _Init.__struct_fields__
    if form and not form.keys() & {*known}:
        raise BadMessage(
            f"the form has none of the fields {', '.join(known)}, but {', '.join(form)[:80]!r}; "
            "send one of them, or an empty body for the defaults"
        )
    values = {name: text if name == "policy" else _typed(text) for name, text in form.items()}
    init: _Init = wire.convert({"policy": settings.STATE_SERVER_INIT_POLICY, **values}, _Init)
    its = Settings(init.num_workers, init.policy, init.epsilon)
    _ask(PublishedReset("published", f"init-{uuid.uuid4().hex}", its))
    return Answer()


def _apply(request: Request) -> Answer:
    """`POST /apply/`: r, k, c, te, and as an addition m, the seconds that a push takes. Answers {"ready": 0}, train, or
    {"ready": 1}, aggregate now."""
    response = _ask_as_published(Query, _Apply, _form(request))
    return json_answer({"ready": int(response.action is Action.SYNC)})


def _reset(request: Request) -> Answer:
    """`POST /reset/`: r, t, te. A worker has pulled and enters round t."""
    form = {name: text for name, text in _form(request).items() if name in ("r", "t", "te")}
    _ask_as_published(Report, _Reset, form)
    return Answer()


def _ask_as_published(kind: type[Query | Report], of_status: type[Status], form: Mapping[str, str]) -> Response:
    """Of the job that the latest `/init/` began: these workers name none. Errors name a field as they do. Raises
    Conflict where there is no such job."""
    values = {name: _typed(form[wire_name]) for name, wire_name in _WIRE_NAMES.items() if wire_name in form}
    try:
        status: Status = wire.convert(values, of_status)
        handlers = apps.get_app_config("server").handlers
        if (job := handlers.jobs.published) is None:
            handlers.counts[kind.__name__.upper()] += 1  # refused before it is handed to a handler
            raise Conflict("no-job", "no job has begun; POST /init/ first, or wait for it")
        return _ask(kind(f"worker-{status.rank}", job.id, status))
    except BadMessage as problem:
        field = problem.field or ""
        name = _WIRE_NAMES.get(field, field)
        raise BadMessage(str(problem).replace(f"field {field!r}", f"field {name!r}"), name or None) from None


def _typed(text: str) -> int | float | str:
    """A form knows only text; what looks like a number becomes one."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


CALLS = {"/message/": _message, "/init/": _init, "/apply/": _apply, "/reset/": _reset}  # that change state, by path


def _ask(message: Message) -> Response:
    return apps.get_app_config("server").handlers.handle(message, time.monotonic())


def _token(headers: Mapping[str, str]) -> str:
    """Empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else ""


def _need_type(request: Request, wanted: str, send: str) -> None:
    """A page can make a browser send text and forms to any server, but not JSON. Raises BadMessage if the body is of
    another type."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != wanted:
        raise BadMessage(f"the body is {(given or 'of no type')[:80]!r}; send {send}, as {wanted}")


def _form(request: Request) -> dict[str, str]:
    """The form's fields; none where there is no body. Raises BadMessage if the body is something else, which as a form
    without fields would mean the defaults of `/init/`."""
    if not request.body:
        return {}
    _need_type(request, FORM_TYPE, "the fields")
    text = request.body
    try:
        return dict(parse_qsl(text.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict"))
    except ValueError as problem:  # no UTF-8, or too many fields
        raise BadMessage(f"the body is no form: {problem}") from None
