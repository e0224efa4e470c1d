"""The Django views' HTTP: an Answer as Django's response, a guard around every view, JSON errors."""

import functools
import ipaddress
from collections.abc import Callable
from time import perf_counter

from django.apps import apps
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.http.request import split_domain_port, validate_host

from server.answers import Answer, error

View = Callable[..., Answer]


def respond(answer: Answer) -> HttpResponse:
    """A response with its length; without it servers close the connection."""
    headers = {"Content-Length": str(len(answer.body)), **answer.headers}
    return HttpResponse(answer.body, status=answer.status, content_type=answer.content_type, headers=headers)


def reading(view: View, by_any_name: bool = False) -> Callable[..., HttpResponse]:
    """Wraps a view that changes nothing: other methods get 405, another server's name 421, and what is answered is
    counted."""

    @functools.wraps(view)
    def guarded(request: HttpRequest, **parts: str) -> HttpResponse:
        begin = perf_counter()
        if request.method in ("GET", "HEAD"):
            named = None if by_any_name else misdirected(request)
            answer = unreadable(request) or named or view(request, **parts)
        else:
            answer = _not_allowed(request, "GET, HEAD")
        app = apps.get_app_config("server")
        app.traffic.answered(request.path, answer.status, perf_counter() - begin)
        return respond(answer)

    return guarded


def misdirected(request: HttpRequest) -> Answer | None:
    """The answer where the name is not this server's. A page elsewhere can have its own name lead here (DNS rebinding):
    its browser then gives what it reads to that page. No page can do so with an address."""
    name, _ = split_domain_port(request.META.get("HTTP_HOST", "localhost"))
    if validate_host(name, settings.ALLOWED_HOSTS):
        return None
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        text = f"this server is not {name[:80]!r} (Host): ask by its address, or give it the name by ESYNC_HOSTS"
        return error(text, 421)
    return None


def posting(request: HttpRequest) -> HttpResponse:
    """The view of the calls that change something, where Django serves them (`runserver`)."""
    if request.method != "POST":
        return _counted(request, _not_allowed(request, "POST"))
    refusal = unreadable(request)
    if refusal is not None:
        return respond(refusal)
    headers = {name.lower(): value for name, value in request.headers.items()}
    address = request.META.get("REMOTE_ADDR", "")
    return respond(apps.get_app_config("server").receiver.post(request.path, headers, request.body, address))


def unreadable(request: HttpRequest) -> Answer | None:
    """Reads the whole body, since servers drop a connection with an unread one; the answer where that fails."""
    length = request.META.get("CONTENT_LENGTH") or "0"
    if not (length.isascii() and length.isdigit()):
        return error(f"Content-Length is {length[:40]!r}; give the number of bytes", 400)
    try:
        if not request.body and "chunked" in request.META.get("HTTP_TRANSFER_ENCODING", "").lower():
            return error("chunked bodies are not read; send Content-Length", 411)
    except RequestDataTooBig:
        while request.read(65536):  # in pieces, so that it takes no memory
            pass
        return error(f"the body is larger than {settings.DATA_UPLOAD_MAX_MEMORY_SIZE} bytes", 413)
    except UnreadablePostError as problem:
        return error(f"the body ended too soon: {problem}", 400)
    if len(request.body) < int(length):
        # Some servers hand over an incomplete body when the sender leaves, and half a form is a form.
        return error(f"the body ended after {len(request.body)} of {length} bytes", 400)
    return None


def _counted(request: HttpRequest, answer: Answer) -> HttpResponse:
    apps.get_app_config("server").traffic.answered(request.path, answer.status, 0.0)
    return respond(answer)


def _not_allowed(request: HttpRequest, allowed: str) -> Answer:
    return error(f"method {request.method} is not allowed; use {allowed}", 405, {"Allow": allowed})


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's answer to a request that it refuses itself."""
    return respond(error("the request is malformed", 400))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """Django's answer to an unknown path."""
    text = f"there is no {request.path[:200]!r} here; docs/state-server.md has the paths"
    return _counted(request, error(text, 404))


def internal_error(request: HttpRequest) -> HttpResponse:
    """Django's answer when a view or a handler fails; Django has logged the traceback, none leaves the server."""
    return respond(error("the state server failed on this request; its log says why", 500))
