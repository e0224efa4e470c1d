"""The one Django view, of `runserver`: Django's request becomes one of this server's, and its answer goes back. Django
calls it from threads; the lock lets them in one after the other, as the loop of `serve` does."""

import threading
from urllib.parse import quote

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.http import HttpRequest, HttpResponse, UnreadablePostError
from django.urls import re_path

from server.answers import Answer, Request, error
from server.views import answer

_TURN = threading.Lock()


def view(request: HttpRequest) -> HttpResponse:
    """A response with its length; without it servers close the connection."""
    found = _unreadable(request)
    if found is None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        address, target = request.META.get("REMOTE_ADDR", ""), quote(request.path).encode()
        with _TURN:
            found = answer(Request(address, request.method or "", target, headers, request.body))
    told = {"Content-Length": str(len(found.body)), **found.headers}
    return HttpResponse(found.body, status=found.status, content_type=found.content_type, headers=told)


def _unreadable(request: HttpRequest) -> Answer | None:
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


urlpatterns = [re_path("", view)]  # of Django; server/views.py knows the paths
