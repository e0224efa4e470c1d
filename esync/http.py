"""A worker's HTTP connections to its state server, kept open, one for each message under way."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections import deque
from collections.abc import Iterator
from typing import Any

import requests

from esync.base import SetupError, authority
from esync.clock import Clock
from esync.protocol import PATIENT, Message, NoAnswer, Reply, Timeouts

ROUND_TRIPS = 5  # whose median is the round trip time
ADVICE = "with scripts/state_server.sh, or name its address with -ip and -port"


class HttpLink:
    """Requests to one state server."""

    def __init__(self, host: str, port: str, clock: Clock, delay_s: float = 0.0) -> None:
        """`delay_s`: emulated network: added to each round trip."""
        self.address = f"http://{authority(host, port)}".replace("%", "%25")  # of a link-local address: its card
        self._clock = clock
        self._delay_s = delay_s
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._idle: list[requests.Session] = []  # the last used is the next; threads may take and return

    @property
    def round_trip_s(self) -> float:
        return statistics.median(self._round_trips) if self._round_trips else 0.0

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        return self.post("/message/", timeouts, json=message)

    def post(self, path: str, timeouts: Timeouts, **body: Any) -> Reply:
        """One POST, timed as a round trip; raises NoAnswer. `body` is `json`, or `data` for a form, as in requests."""
        begin = self._clock.now()
        self._clock.sleep(self._delay_s / 2)
        reply = self._request("POST", path, timeouts, **body)
        self._clock.sleep(self._delay_s / 2)
        self._round_trips.append(self._clock.now() - begin)
        return reply

    def get(self, path: str, timeouts: Timeouts = PATIENT) -> Reply:
        return self._request("GET", path, timeouts)

    def _request(self, method: str, path: str, timeouts: Timeouts, **body: Any) -> Reply:
        try:
            with self._session() as session:
                answer = session.request(method, f"{self.address}{path}", timeout=timeouts, **body)
        except requests.RequestException as error:
            raise NoAnswer(reason_of(error)) from None
        return Reply(answer.status_code, json_object(answer), answer.content.decode(errors="replace"))

    def is_published(self, advice: str = ADVICE) -> bool:
        """Whether a published server answers, in place of this project's: without /healthz and /message/, but with the
        published paths or the published state. Raises SetupError where no state server answers."""
        try:
            answer = self.get("/healthz")
            if answer.status == 200 and answer.said.get("status") == "ok":
                return False
            asked = self.post("/message/", PATIENT, json={})
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
    def _session(self) -> Iterator[requests.Session]:
        """A connection that no other thread uses meanwhile: a Session is not made for several."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = requests.Session()
            session.trust_env = False  # no proxy between a worker and its state server
            if token := os.environ.get("ESYNC_TOKEN"):
                session.headers["Authorization"] = f"Bearer {token}"
        try:
            yield session
        finally:
            self._idle.append(session)


def json_object(answer: requests.Response) -> dict[str, Any]:
    """The JSON object of an answer; empty if it is something else."""
    try:
        value = answer.json()
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def reason_of(error: Exception) -> str:
    """The innermost cause of a connection error, without the library's wrapping."""
    cause: BaseException = error
    while cause.__context__ is not None and not getattr(cause, "strerror", None):
        cause = cause.__context__
    return getattr(cause, "strerror", None) or type(cause).__name__
