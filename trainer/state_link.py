"""The HTTP connections of a worker to its state server: kept open, one a thread."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from typing import Any, NamedTuple, Protocol

import requests

ROUND_TRIPS = 5  # that the round trip time is the median of


class Timeouts(NamedTuple):
    """Seconds that one try may take."""

    connect_s: float
    answer_s: float


PATIENT = Timeouts(3.0, 10.0)
BRIEF = Timeouts(1.0, 1.0)  # for what is not worth a wait


class Reply(Protocol):
    """An HTTP answer, or what is like one."""

    @property
    def ok(self) -> bool:
        """Whether its status is below 400."""

    @property
    def status_code(self) -> int:
        """Of HTTP."""

    @property
    def text(self) -> str:
        """The body."""

    def json(self) -> Any:
        """The body's value; raises ValueError where it has none."""


class Link(Protocol):
    """A way to a state server."""

    @property
    def round_trip_s(self) -> float:
        """Median of the last round trips; 0 before the first."""

    def get(self, path: str) -> Reply:
        """One GET; raises requests.RequestException where there is no answer."""

    def post(self, path: str, value: dict[str, Any], timeouts: Timeouts) -> Reply:
        """One POST of JSON; raises requests.RequestException where there is no answer."""


class StateLink:
    """Requests to one state server. Threads may share it."""

    def __init__(self, host: str, port: str, delay_s: float) -> None:
        """
        Args:
            delay_s: emulated network: added to each round trip.
        """
        self.address = f"http://{host}:{port}"
        self._delay_s = delay_s
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._thread = threading.local()

    @property
    def round_trip_s(self) -> float:
        """Median of the last round trips; 0 before the first."""
        return statistics.median(self._round_trips) if self._round_trips else 0.0

    def get(self, path: str) -> requests.Response:
        """One GET; raises requests.RequestException where there is no answer."""
        return self._session.get(f"{self.address}{path}", timeout=PATIENT)

    def post(self, path: str, value: dict[str, Any], timeouts: Timeouts) -> requests.Response:
        """One POST of JSON; raises requests.RequestException where there is no answer."""
        begin = time.monotonic()
        time.sleep(self._delay_s / 2)
        answer = self._session.post(f"{self.address}{path}", json=value, timeout=timeouts)
        time.sleep(self._delay_s / 2)
        self._round_trips.append(time.monotonic() - begin)
        return answer

    @property
    def _session(self) -> requests.Session:
        """This thread's own connection."""
        if not hasattr(self._thread, "session"):
            session = requests.Session()
            session.trust_env = False  # a proxy has no place between a worker and its state server
            token = os.environ.get("ESYNC_TOKEN")
            if token:
                session.headers["Authorization"] = f"Bearer {token}"
            self._thread.session = session
        session = self._thread.session
        assert isinstance(session, requests.Session)
        return session


def json_object(answer: Reply) -> dict[str, Any]:
    """The JSON object of an answer; empty if it is something else."""
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def reason_of(error: Exception) -> str:
    """The innermost cause of a connection error, without the library's wrapping."""
    cause: BaseException = error
    while cause.__context__ is not None and not getattr(cause, "strerror", None):
        cause = cause.__context__
    return getattr(cause, "strerror", None) or type(cause).__name__
