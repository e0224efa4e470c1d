"""A worker's side of the state server: messages as JSON over kept HTTP connections."""

from __future__ import annotations

import logging
import os
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import requests

from utils import JobError, PeerLost, SetupError

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
PATIENCE_S = 60.0  # how long a worker waits for a server that is restarted
ROUND_TRIPS = 5  # that the round trip time is the median of

# The server's words for a job that it does not know: not yet, or not any more because it was restarted.
UNKNOWN_JOB = ("no-job", "unknown-job")
# And for a message of a round that this worker has left meanwhile: a question that later ones have overtaken.
OVERTAKEN = "stale"

_JOB_NUMBER_RANGE = 1 << 24  # whole numbers below this survive the kvstore's float32


def draw_job_number() -> list[int]:
    """A random number for a new job, in parts that the kvstore can carry."""
    return [random.SystemRandom().randrange(_JOB_NUMBER_RANGE) for _ in range(2)]


def job_id(number: Sequence[float]) -> str:
    """The job's name on the state server."""
    return "-".join(f"{int(part):06x}" for part in number)


class StateClient:
    """Sends RESET, REPORT and QUERY; understands RESPONSE.

    Every message may be sent twice without harm, so it is sent until it is answered. Threads may share a client.
    """

    def __init__(
        self,
        host: str,
        port: str,
        policy: str,
        epsilon_s: float,
        host_name: str = "",
        device: str = "",
        batch_size: int = 0,
        delay_s: float = 0.0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """
        Args:
            policy: the job's rule, by the state server's name of it.
            epsilon_s: tolerance of the preprint's rule.
            host_name: this worker's host, for the status page.
            device: this worker's device, for the status page.
            batch_size: samples of a local step, for the status page.
            delay_s: emulated network: added to each round trip.
            patience_s: how long to go on asking a server that does not answer.
        """
        self.address = f"http://{host}:{port}"
        self._rule = {"policy": policy, "epsilon": epsilon_s}
        self._device = {"host": host_name, "device": device}
        self._batch_size = batch_size
        self._delay_s = delay_s
        self._patience_s = patience_s
        self._job = ""
        self._num_workers = 0
        self._rank = 0
        self._round_trips: deque[float] = deque(maxlen=ROUND_TRIPS)
        self._thread = threading.local()

    @property
    def round_trip_s(self) -> float:
        """Median of the last round trips; 0 before the first."""
        return statistics.median(self._round_trips) if self._round_trips else 0.0

    def check(self) -> None:
        """Makes sure that the server is there, before this worker joins the cluster.

        Raises:
            SetupError: nobody answers at the address, or somebody else does.
        """
        try:
            answer = self._get("/healthz")
        except requests.RequestException as error:
            raise SetupError(
                f"no state server answers at {self.address} ({_reason(error)}): start it with "
                "scripts/state_server.sh, or name its address with -ip and -port"
            ) from None
        if answer.status_code == 200 and _object(answer).get("status") == "ok":
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
        return {"num_workers", "epsilon", "records"} <= _object(state).keys()

    def join(self, job: str, rank: int, num_workers: int) -> None:
        """From now on this client speaks for `rank` in `job`."""
        self._job, self._rank, self._num_workers = job, rank, num_workers

    def begin_job(self, resumed: bool = False) -> None:
        """RESET: the server forgets the job before and makes an empty record for each rank.

        Args:
            resumed: the job is running already; the server was restarted.

        Raises:
            PeerLost: no answer.
            JobError: the server refuses the job.
        """
        self._send({"msg_type": "RESET", "num_workers": self._num_workers, **self._rule, "resumed": int(resumed)})

    def report(self, round_: int, step_s: float, transmission_s: float, accuracy: float | None) -> None:
        """REPORT: this worker has the global model and enters round `round_`."""
        extra: dict[str, Any] = {"device": self._device}
        if accuracy is not None:
            extra["accuracy"] = accuracy
        self._send({"msg_type": "REPORT", "status": self._status(round_, 0, step_s, transmission_s), **extra})

    def query(self, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
        """QUERY after a local step: whether to aggregate now (SYNC) or to train on (TRAIN)."""
        return self.query_why(round_, steps, step_s, transmission_s)[0]

    def query_why(self, round_: int, steps: int, step_s: float, transmission_s: float) -> tuple[bool, str]:
        """As `query`, with the server's reason in words."""
        status = self._status(round_, steps, step_s, transmission_s)
        answer = self._send({"msg_type": "QUERY", "status": status, "samples": self._batch_size})
        return answer.get("action") == "SYNC", str(answer.get("reason", ""))

    def _status(self, round_: int, steps: int, step_s: float, transmission_s: float) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "local_iteration": steps,
            "round": round_,
            "computation_time": step_s,
            "transmission_time": transmission_s,
            "timestamp": time.time(),
        }

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

    def _send(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message until it is answered. A server that was restarted is told about the job first.

        Raises:
            PeerLost: no answer for as long as this client is patient.
            JobError: the server refuses the message.
        """
        give_up, pause = time.monotonic() + self._patience_s, FIRST_PAUSE_S
        while True:
            try:
                answer = self._post(message)
                said = _object(answer)
                if answer.ok and said.get("msg_type") == "RESPONSE":
                    return said
                trouble = f"answered {answer.status_code}: {answer.text[:300]}"
                code = said.get("code")
                if code == OVERTAKEN:
                    return {"action": "TRAIN"}
                if code in UNKNOWN_JOB and message["msg_type"] != "RESET":
                    logging.warning("the state server at %s was restarted; telling it about the job", self.address)
                    self.begin_job(resumed=True)
                    continue
                if answer.status_code < 500:
                    raise JobError(f"the state server at {self.address} {trouble}")
            except requests.RequestException as error:
                trouble = f"does not answer ({_reason(error)})"
            if time.monotonic() + pause > give_up:
                raise PeerLost(f"the state server at {self.address} {trouble}; tried for {self._patience_s:g} s")
            if pause == FIRST_PAUSE_S:
                logging.warning("the state server at %s %s; asking again", self.address, trouble)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _get(self, path: str) -> requests.Response:
        return self._session.get(f"{self.address}{path}", timeout=(CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S))

    def _post(self, message: dict[str, Any]) -> requests.Response:
        envelope = {"sender": f"worker-{self._rank}", "receiver": "state-server", "job": self._job, **message}
        begin = time.monotonic()
        time.sleep(self._delay_s / 2)
        answer = self._session.post(
            f"{self.address}/message/", json=envelope, timeout=(CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
        )
        time.sleep(self._delay_s / 2)
        self._round_trips.append(time.monotonic() - begin)
        return answer


def _object(answer: requests.Response) -> dict[str, Any]:
    """The JSON object of an answer; empty if it is something else."""
    try:
        value = answer.json()
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _reason(error: Exception) -> str:
    """The innermost cause of a connection error, without the library's wrapping."""
    cause: BaseException = error
    while cause.__context__ is not None and not getattr(cause, "strerror", None):
        cause = cause.__context__
    return getattr(cause, "strerror", None) or type(cause).__name__
