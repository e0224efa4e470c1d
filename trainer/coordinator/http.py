"""The HTTP connections of a worker to its state server: kept open, one for each message that is under way."""

from __future__ import annotations

import contextlib
import os
import statistics
from collections import deque
from collections.abc import Iterator
from typing import Any

import requests

from trainer.clock import Clock
from trainer.coordinator.protocol import PATIENT, Message, NoAnswer, Reply, Timeouts
from utils import SetupError

ROUND_TRIPS = 5  # that the round trip time is the median of


class HttpLink:
    """Requests to one state server."""

    def __init__(self, host: str, port: str, clock: Clock, delay_s: float = 0.0) -> None:
        """
        Args:
            delay_s: emulated network: added to each round trip.
        """
        self.address = f"http://{host}:{port}"
        self._clock = clock
        self._delay_s = delay_s
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._idle: list[requests.Session] = []  # the last that was used is the next; threads may take and give back

    @property
    def round_trip_s(self) -> float:
        """Median of the last round trips; 0 before the first."""
        return statistics.median(self._round_trips) if self._round_trips else 0.0

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """As Link says."""
        begin = self._clock.now()
        self._clock.sleep(self._delay_s / 2)
        try:
            with self._session() as session:
                answer = session.post(f"{self.address}/message/", json=message, timeout=timeouts)
        except requests.RequestException as error:
            raise NoAnswer(reason_of(error)) from None
        self._clock.sleep(self._delay_s / 2)
        self._round_trips.append(self._clock.now() - begin)
        return Reply(answer.status_code, json_object(answer), answer.content.decode(errors="replace"))

    def check(self) -> None:
        """As Link says."""
        try:
            answer = self._get("/healthz")
        except requests.RequestException as error:
            raise SetupError(
                f"no state server answers at {self.address} ({reason_of(error)}): start it with "
                "scripts/state_server.sh, or name its address with -ip and -port"
            ) from None
        if answer.status_code == 200 and json_object(answer).get("status") == "ok":
            return
        if answer.status_code == 404 and self._is_published(answer):
            raise SetupError(
                f"{self.address} is a published ESync state server: it has no /healthz and no /message/, which this "
                "project's workers ask; start this project's with scripts/state_server.sh: published workers may use "
                "it too"
            )
        raise SetupError(
            f"{self.address} is not a state server: it answers {answer.status_code} {answer.text[:80]!r}; start one "
            "with scripts/state_server.sh, or name its address with -ip and -port"
        )

    def _is_published(self, not_found: requests.Response) -> bool:
        """Whether the server that answers so knows the published paths, or has the published state."""
        if all(path in not_found.text for path in ("init/", "apply/", "reset/")):  # Django's page lists what there is
            return True
        try:
            state = self._get("/")
        except requests.RequestException:
            return False
        return {"num_workers", "epsilon", "records"} <= json_object(state).keys()

    def _get(self, path: str) -> requests.Response:
        with self._session() as session:
            return session.get(f"{self.address}{path}", timeout=PATIENT)

    @contextlib.contextmanager
    def _session(self) -> Iterator[requests.Session]:
        """A connection that nobody else uses for the while."""
        try:
            session = self._idle.pop()
        except IndexError:
            session = _new_session()
        try:
            yield session
        finally:
            self._idle.append(session)


def _new_session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False  # a proxy has no place between a worker and its state server
    token = os.environ.get("ESYNC_TOKEN")
    if token:
        session.headers["Authorization"] = f"Bearer {token}"
    return session


def json_object(answer: requests.Response) -> dict[str, Any]:
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
