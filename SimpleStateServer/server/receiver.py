"""Receiver and sender: a POST's head and body become a message, its handler answers it, the answer goes back."""

import hmac
import secrets
import uuid
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from server import published, wire
from server.answers import JSON, Answer, Request, error, json_answer
from server.errors import BadMessage
from server.handlers import Handlers
from server.messages import Message, Response
from server.worker import Action

FORM_TYPE = "application/x-www-form-urlencoded"
MAX_FORM_FIELDS = 100


class Receiver:
    """Answers the four calls that change state.

    Args:
        handlers: take the messages.
        clock: monotonic seconds.
        token: when set, every call needs it.
        init_policy: of a `POST /init/` that names none.
    """

    def __init__(self, handlers: Handlers, clock: Callable[[], float], token: str, init_policy: str) -> None:
        self._handlers, self._clock = handlers, clock
        self._token = token.encode()
        self._init_policy = init_policy
        # A worker that sees it change knows that this server has lost its state.
        self._server = secrets.token_hex(4)
        self.calls: dict[str, Callable[[Request], Answer]] = {
            "/message/": self._message,
            "/init/": self._init,
            "/apply/": self._apply,
            "/reset/": self._reset,
        }  # by path

    def post(self, path: str, request: Request) -> Answer:
        """Answers a request to a path of `calls`. Raises BadMessage or Conflict where the message is refused."""
        headers = request.headers
        # Workers are no browsers and send neither; a browser sends them with every POST of a page, from wherever the
        # page is. This server's own page sends no POST.
        if "origin" in headers or "sec-fetch-site" in headers:
            origin = headers.get("origin", headers.get("sec-fetch-site", ""))[:80]
            return error(f"a page in a browser (Origin {origin!r}) may not send this; workers and programs may", 403)
        if self._token and not hmac.compare_digest(_token(headers).encode(), self._token):
            return error(
                "this server needs a token; send 'Authorization: Bearer <token>' with the value of ESYNC_TOKEN",
                401,
                {"WWW-Authenticate": "Bearer"},
            )
        return self.calls[path](request)

    def _message(self, request: Request) -> Answer:
        """`POST /message/`: a message as JSON; answers with a RESPONSE."""
        _need_type(request, JSON, "the message as JSON")
        message = wire.parse(request.body, _token(request.headers))
        return json_answer(self._ask(message).to_wire(self._server))

    def _init(self, request: Request) -> Answer:
        """`POST /init/` as published: begins a new job for the workers that name none."""
        job = f"init-{uuid.uuid4().hex}"
        self._ask(published.init(_form(request), job, self._init_policy))
        return Answer()

    def _apply(self, request: Request) -> Answer:
        """`POST /apply/` as published: {"ready": 0} train, {"ready": 1} aggregate now."""
        with published.published_names():
            response = self._ask(published.apply(_form(request)))
        return json_answer({"ready": int(response.action is Action.SYNC)})

    def _reset(self, request: Request) -> Answer:
        """`POST /reset/` as published: a worker has pulled and enters round t."""
        with published.published_names():
            self._ask(published.reset(_form(request)))
        return Answer()

    def _ask(self, message: Message) -> Response:
        return self._handlers.handle(message, self._clock())


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
