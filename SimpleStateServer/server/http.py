"""How this server speaks HTTP: JSON answers with a length, JSON errors, one guard around every view."""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.utils.crypto import constant_time_compare

from server.handlers import Conflict
from server.messages import BadMessage

log = logging.getLogger(__name__)

View = Callable[[HttpRequest], HttpResponse]


def answer(
    content: bytes | str = b"",
    status: int = 200,
    content_type: str = "text/plain; charset=utf-8",
    headers: dict[str, str] | None = None,
) -> HttpResponse:
    """A response that says how long it is; servers close the connection after any other."""
    response = HttpResponse(content, status=status, content_type=content_type, headers=headers)
    response["Content-Length"] = str(len(response.content))
    return response


def json_answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> HttpResponse:
    """A response with a JSON value."""
    return answer(json.dumps(value), status, "application/json", headers)


def error(text: str, status: int, headers: dict[str, str] | None = None, **more: Any) -> HttpResponse:
    """A JSON error: what is wrong and what to do, for people, and more keys for programs."""
    return json_answer({"error": text, **more}, status, headers)


def endpoint(*methods: str) -> Callable[[View], View]:
    """Wraps a view: other methods get 405, a POST without the token 401, and what it raises becomes a JSON error.

    The body is read before anything is answered, since servers drop a connection with an unread body.
    """

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def guarded(request: HttpRequest) -> HttpResponse:
            refusal = _unreadable(request)
            if request.method not in methods:
                allowed = ", ".join(methods)
                return error(f"method {request.method} is not allowed; use {allowed}", 405, {"Allow": allowed})
            if request.method == "POST" and not _authorised(request):
                return error(
                    "this server needs a token; send 'Authorization: Bearer <token>' with the value of ESYNC_TOKEN",
                    401,
                    {"WWW-Authenticate": "Bearer"},
                )
            if refusal is not None:
                return refusal
            try:
                return view(request)
            except BadMessage as problem:
                log.info("%s: %s", request.path, problem)
                return error(str(problem), 400, field=problem.field)
            except Conflict as problem:
                return error(str(problem), 409, code=problem.code)
            except NoAnswer:
                log.error("%s: the router gave no answer in time", request.path)
                return error("the state server is overloaded; send this again", 503)

        return guarded

    return decorate


def _authorised(request: HttpRequest) -> bool:
    token = settings.STATE_SERVER_TOKEN
    return not token or constant_time_compare(request.headers.get("Authorization", ""), f"Bearer {token}")


def _unreadable(request: HttpRequest) -> HttpResponse | None:
    """Reads the whole body; the answer to give where that fails."""
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdigit()):
        return error(f"Content-Length is {length[:40]!r}; give the number of bytes", 400)
    try:
        if not request.body and "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", ""):
            return error("chunked bodies are not read; send Content-Length", 411)
    except RequestDataTooBig:
        while request.read(65536):  # in pieces, so that it takes no memory
            pass
        return error(f"the body is larger than {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes", 413)
    except UnreadablePostError as problem:
        return error(f"the body ended too soon: {problem}", 400)
    if len(request.body) < int(length):
        # Some servers hand over what has come when the sender leaves, and half a form is a form.
        return error(f"the body ended after {len(request.body)} of {length} bytes", 400)
    return None


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's answer to a request that it refuses itself."""
    return error("the request is malformed", 400)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's answer to an unknown path."""
    return error(f"there is no {request.path[:200]!r} here; see the README for the paths", 404)


def internal_error(request: HttpRequest) -> HttpResponse:
    """Django's answer when a view or a handler fails; Django has logged the traceback, none leaves the server."""
    return error("the state server failed on this request; its log says why", 500)
