"""A state server of the tests' own that writes down what it is told: it answers, or passes all on to a real one."""

import contextlib
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import requests

LONG_S = 30.0

Message = dict[str, Any]
Answer = tuple[int, dict[str, Any]]  # HTTP status and JSON


def response(action: str = "SYNC", server: str | None = "aaaaaaaa") -> Answer:
    """An answer as the state server gives it; one of an older program does not name the server."""
    named = {} if server is None else {"server": server}
    return 200, {"msg_type": "RESPONSE", "action": action, "reason": "by the test", **named}


def refusal(code: str, error: str = "because of the test") -> Answer:
    """An answer that refuses a message."""
    return 409, {"error": error, "code": code}


class Recorder:
    """What was heard, in the order of arrival, and how it is answered.

    Attributes:
        heard: the messages.
        answer: message -> answer; may be changed at any time. ConnectionError: none, the connection is closed.
    """

    def __init__(self, answer: Callable[[Message], Answer]) -> None:
        self.heard: list[Message] = []
        self.answer = answer
        self.port = 0

    def of(self, rank: int, *kinds: str) -> list[Message]:
        """The messages of one worker, all or those of some kinds."""
        return [
            message
            for message in list(self.heard)
            if message["sender"].startswith(f"worker-{rank}-") and (not kinds or message["msg_type"] in kinds)
        ]


@contextlib.contextmanager
def recording(answer: Callable[[Message], Answer]) -> Iterator[Recorder]:
    """A server on a free port that answers as it is told."""
    recorder = Recorder(answer)

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # connections stay open
        disable_nagle_algorithm = True
        wbufsize = -1  # an answer is one packet

        def do_GET(self) -> None:
            self._send(200, {"status": "ok"})

        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            recorder.heard.append(message)
            try:
                self._send(*recorder.answer(message))
            except ConnectionError:
                self.close_connection = True

        def _send(self, status: int, value: dict[str, Any]) -> None:
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as server:
        recorder.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield recorder
        finally:
            server.shutdown()


def passing_on(port: int) -> contextlib.AbstractContextManager[Recorder]:
    """A server that passes every message on to the real one at `port`, and its answer back."""

    thread = threading.local()  # each has a connection of its own, as each of a worker's

    def ask(message: Message) -> Answer:
        session = thread.__dict__.setdefault("session", requests.Session())
        try:
            answer = session.post(f"http://127.0.0.1:{port}/message/", json=message, timeout=LONG_S)
        except requests.RequestException as error:
            raise ConnectionError from error
        return answer.status_code, answer.json()

    return recording(ask)


def rounds_that_skip(messages: list[Message]) -> list[tuple[int, int]]:
    """Of one worker's messages: (latest round so far, round) of those that are beyond its next round."""
    latest, found = 1, []
    for message in messages:
        round_ = message["status"]["round"]
        if round_ > latest + 1:
            found.append((latest, round_))
        latest = max(latest, round_)
    return found
