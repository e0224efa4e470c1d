"""Receiver and sender: a POST's head and body become a message, its handler answers it, the answer goes back."""

import hmac
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from django.apps import apps
from django.conf import settings

from server import published, wire
from server.answers import JSON, Answer, Request, error, json_answer
from server.errors import BadMessage
from server.messages import Message, Response
from server.row import Action

FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 100
_SERVER = secrets.token_hex(4)  # a worker that sees it change knows that this server has lost its state


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
    """`POST /init/` as published: begins a new job for the workers that name none."""
    _ask(published.init(_form(request), f"init-{uuid.uuid4().hex}", settings.STATE_SERVER_INIT_POLICY))
    return Answer()


def _apply(request: Request) -> Answer:
    """`POST /apply/` as published: {"ready": 0} train, {"ready": 1} aggregate now."""
    response = _ask_as_published(published.apply, request)
    return json_answer({"ready": int(response.action is Action.SYNC)})


def _reset(request: Request) -> Answer:
    """`POST /reset/` as published: a worker has pulled and enters round t."""
    _ask_as_published(published.reset, request)
    return Answer()


CALLS = {"/message/": _message, "/init/": _init, "/apply/": _apply, "/reset/": _reset}  # that change state, by path


def _ask_as_published(read: Callable[[Mapping[str, str]], Message], request: Request) -> Response:
    try:
        return _ask(read(_form(request)))
    except BadMessage as problem:
        raise published.renamed(problem) from None


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
