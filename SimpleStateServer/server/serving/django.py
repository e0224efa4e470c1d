"""Requests that Django answers: the page and the JSON views."""

import io
import sys
from typing import Any
from urllib.parse import unquote_to_bytes

from django.core.handlers.wsgi import WSGIHandler

from server.answers import Answer
from server.serving.request import Request


class DjangoAnswers:
    """Calls Django's WSGI handler. `host` is name and port by which this server listens."""

    def __init__(self, host: tuple[str, int]) -> None:
        self._handler = WSGIHandler()
        self._host = host

    def __call__(self, request: Request) -> Answer:
        """Django's answer; errors are JSON, as the views and handlers make them."""
        path, _, query = request.target.partition(b"?")
        environ: dict[str, Any] = {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(path).decode("latin-1"),  # as WSGI wants it
            "QUERY_STRING": query.decode("latin-1"),
            "SERVER_NAME": self._host[0],
            "SERVER_PORT": str(self._host[1]),
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": request.address,
            "CONTENT_LENGTH": str(len(request.body)),
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(request.body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": False,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        for name, value in request.headers.items():
            if name not in ("content-length", "transfer-encoding"):
                key = name.upper().replace("-", "_")
                environ[key if key == "CONTENT_TYPE" else f"HTTP_{key}"] = value
        response = self._handler(environ, lambda _status, _headers: None)
        try:
            headers = dict(response.items())
            content_type = headers.pop("Content-Type", "text/plain; charset=utf-8")
            return Answer(response.status_code, bytes(response.content), content_type, headers)
        finally:
            response.close()
