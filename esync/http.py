"""A worker's HTTP connections to its state server, kept open, one for each message under way."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import select
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from esync.base import SetupError, authority
from esync.clock import Clock
from esync.measure import Smoothed
from esync.protocol import PATIENT, Message, NoAnswer, Reply, Timeouts

ADVICE = "with scripts/state_server.sh, or name its address with -ip and -port"


class HttpLink:
    """Requests to one state server."""

    def __init__(self, host: str, port: str, clock: Clock, delay_s: float = 0.0) -> None:
        """`delay_s`: emulated network: added to each round trip."""
        self.address = f"http://{authority(host, port)}".replace("%", "%25")  # of a link-local address: its card
        self._clock = clock
        self._delay_s = delay_s
        self._round_trips = Smoothed()
        self._host, self._port = host, port
        self._idle: list[http.client.HTTPConnection] = []  # the last used is the next; threads may take and return
        self._headers = {}
        if token := os.environ.get("ESYNC_TOKEN"):
            self._headers["Authorization"] = f"Bearer {token}"

    @property
    def round_trip_s(self) -> float:
        return self._round_trips.value

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        return self._post("/message/", timeouts, "application/json", json.dumps(message, allow_nan=False))

    def post(self, path: str, timeouts: Timeouts, form: Message) -> Reply:
        return self._post(path, timeouts, "application/x-www-form-urlencoded", urlencode(form))

    def _post(self, path: str, timeouts: Timeouts, content_type: str, body: str) -> Reply:
        """Timed as a round trip."""
        begin = self._clock.now()
        self._clock.sleep(self._delay_s / 2)
        reply = self._request("POST", path, timeouts, body, content_type)
        self._clock.sleep(self._delay_s / 2)
        self._round_trips.add(self._clock.now() - begin)
        return reply

    def get(self, path: str, timeouts: Timeouts = PATIENT) -> Reply:
        return self._request("GET", path, timeouts)

    def _request(self, method: str, path: str, timeouts: Timeouts, body: str = "", content_type: str = "") -> Reply:
        headers = self._headers | ({"Content-Type": content_type} if body else {})
        # http.client rather than requests, which takes four times its CPU time: a worker asks after every local step
        try:
            with self._connection(timeouts) as connection:
                connection.request(method, path, body.encode() or None, headers)
                response = connection.getresponse()
                answer = response.read()
        except (OSError, http.client.HTTPException, ValueError, OverflowError) as error:  # the last two: an address
            raise NoAnswer(getattr(error, "strerror", None) or type(error).__name__) from None
        return Reply(response.status, json_object(answer), answer.decode(errors="replace"))

    def is_published(self, advice: str = ADVICE) -> bool:
        """Whether a published server answers, in place of this project's: without /healthz and /message/, but with the
        published paths or the published state. Raises SetupError where no state server answers."""
        try:
            answer = self.get("/healthz")
            if answer.status == 200 and answer.said.get("status") == "ok":
                return False
            asked = self.send({}, PATIENT)
            if asked.status == 404 or not asked.said:
                if all(path in answer.text for path in ("init/", "apply/", "reset/")):  # Django's page lists the paths
                    return True
                if {"num_workers", "t", "epsilon", "records"} <= self.get("/").said.keys():
                    return True
        except NoAnswer as error:
            raise SetupError(f"no state server answers at {self.address} ({error}): start it {advice}") from None
        told = f"it answers {answer.status} {answer.in_short!r}"
        raise SetupError(f"{self.address} is not a state server: {told}; start one {advice}")

    @contextlib.contextmanager
    def _connection(self, timeouts: Timeouts) -> Iterator[http.client.HTTPConnection]:
        """An open connection that no other thread uses meanwhile. One that has failed is closed."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = http.client.HTTPConnection(self._host, int(self._port))
        try:
            if connection.sock is not None and is_readable(connection.sock):
                connection.close()  # nothing was asked: the server has closed it
            if connection.sock is None:
                connection.timeout = timeouts.connect_s
                connection.connect()
            connection.sock.settimeout(timeouts.answer_s)
            yield connection
        except BaseException:
            connection.close()
            raise
        finally:
            self._idle.append(connection)


def is_readable(sock: socket.socket) -> bool:
    """Whether something, or the end of the connection, can be read now. Raises ValueError where it is closed here."""
    poll = select.poll()  # unlike select(), for a process with more than 1,024 files open
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object of an answer; empty if it is something else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
