"""Receiver and sender: a POST's head and body become a message, the router answers it, the answer goes back.

It knows no HTTP server: `serving/` hands it what its loop has received, the Django views what `runserver` has.
"""

import hmac
import logging
import secrets
import uuid
from collections.abc import Callable, Mapping
from time import perf_counter
from urllib.parse import parse_qsl

from server import published, wire
from server.answers import Answer, error, json_answer, refused
from server.errors import BadMessage, Conflict
from server.log_limit import note_refusal
from server.messages import Query, Report, Response
from server.policies import POLICIES
from server.router import Router
from server.traffic import Traffic
from server.worker import Action

FORM_TYPE = "application/x-www-form-urlencoded"
JSON_TYPE = "application/json"
MAX_FORM_FIELDS = 100

log = logging.getLogger(__name__)


class Receiver:
    """Answers the four calls that change state.

    Args:
        router: takes the messages.
        traffic: counts answers and their time.
        token: when set, every call needs it.
        init_policy: of a `POST /init/` that names none.
    """

    def __init__(self, router: Router, traffic: Traffic, token: str, init_policy: str) -> None:
        self._router = router
        self._traffic = traffic
        self._token = token.encode()
        self._init_policy = init_policy
        # A worker that sees it change knows that this server has lost its state.
        self._server = secrets.token_hex(4)
        self._calls: dict[str, Callable[[Mapping[str, str], bytes], Answer]] = {
            "/message/": self._message,
            "/init/": self._init,
            "/apply/": self._apply,
            "/reset/": self._reset,
        }

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(self._calls)

    def post(self, path: str, headers: Mapping[str, str], body: bytes, address: str) -> Answer:
        """Answers a call to one of `paths`, also with an error. The headers are by lower-case name; `address` is the
        sender's, for the log."""
        begin = perf_counter()
        answer = self._refusal(headers)
        if answer is None:
            try:
                answer = self._calls[path](headers, body)
            except (BadMessage, Conflict) as problem:
                status, said = refused(problem)
                answer = json_answer(said, status)
            except Exception:  # the sender is told; the next message must not suffer from this one
                log.exception("POST %s failed", path)
                answer = error("the state server failed on this request; its log says why", 500)
        self._traffic.answered(path, answer.status, perf_counter() - begin)
        if answer.status != 200:
            note_refusal(address, f"POST {path}", answer)
        return answer

    def _refusal(self, headers: Mapping[str, str]) -> Answer | None:
        """The refusal that follows from the headers alone, if any."""
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
        return None

    def _message(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """`POST /message/`: a message as JSON; answers with a RESPONSE."""
        _need_type(headers, JSON_TYPE, "the message as JSON")
        message = wire.parse(body, POLICIES, _token(headers))
        return json_answer(self._router.ask(message).to_wire(self._server))

    def _init(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """`POST /init/` as published: begins a new job for the workers that name none."""
        job = f"init-{uuid.uuid4().hex}"
        self._router.ask(published.init(_form(headers, body), job, POLICIES, self._init_policy))
        return Answer()

    def _apply(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """`POST /apply/` as published: {"ready": 0} train, {"ready": 1} aggregate now."""
        response = self._ask_published(published.apply(_form(headers, body)))
        return json_answer({"ready": int(response.action is Action.SYNC)})

    def _reset(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """`POST /reset/` as published: a worker has pulled and enters round t."""
        self._ask_published(published.reset(_form(headers, body)))
        return Answer()

    def _ask_published(self, message: Query | Report) -> Response:
        with published.published_names():
            return self._router.ask(message)


def _token(headers: Mapping[str, str]) -> str:
    """Empty where there is none."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip(" ") if scheme.lower() == "bearer" else ""


def _need_type(headers: Mapping[str, str], wanted: str, send: str) -> None:
    """A page can make a browser send text and forms to any server, but not JSON. Raises BadMessage if the body is of
    another type."""
    given = headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != wanted:
        raise BadMessage(f"the body is {(given or 'of no type')[:80]!r}; send {send}, as {wanted}")


def _form(headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    """The form's fields; none where there is no body. Raises BadMessage if the body is something else, which as a form
    without fields would mean the defaults of `/init/`."""
    if not body:
        return {}
    _need_type(headers, FORM_TYPE, "the fields")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FORM_FIELDS, errors="strict"))
    except ValueError as problem:  # no UTF-8, or too many fields
        raise BadMessage(f"the body is no form: {problem}") from None
