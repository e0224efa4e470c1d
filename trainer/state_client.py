"""A worker's side of the state server: messages as JSON over one kept HTTP connection."""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Sequence
from typing import Any

import requests

from utils import JobError, PeerLost, SetupError

CONNECT_TIMEOUT_S = 3.0
ANSWER_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
# How long a worker goes on asking a server that does not answer, or does not know the job yet.
PATIENCE_S = 10.0

_JOB_NUMBER_RANGE = 1 << 24  # whole numbers below this survive the kvstore's float32


def draw_job_number() -> list[int]:
    """A random number for a new job, in parts that the kvstore can carry."""
    return [random.SystemRandom().randrange(_JOB_NUMBER_RANGE) for _ in range(2)]


def job_id(number: Sequence[float]) -> str:
    """The job's name on the state server."""
    return "-".join(f"{int(part):06x}" for part in number)


class StateClient:
    """Sends RESET, REPORT and QUERY; understands RESPONSE. Every message may be sent twice without harm."""

    def __init__(
        self, host: str, port: str, policy: str, epsilon_s: float, host_name: str, device: str, token: str | None = None
    ) -> None:
        """
        Args:
            policy: ESync's rule for the jobs that this client begins.
            epsilon_s: tolerance of the preprint's rule.
            host_name: this worker's host, for the status page.
            device: this worker's device, for the status page.
            token: shared secret of the state server; default: environment variable ESYNC_TOKEN.
        """
        self.address = f"http://{host}:{port}"
        self._policy = policy
        self._epsilon_s = epsilon_s
        self._device = {"host": host_name, "device": device}
        self._job = ""
        self._rank = 0
        self._session = requests.Session()
        self._session.trust_env = False  # a proxy has no place between a worker and its state server
        token = os.environ.get("ESYNC_TOKEN") if token is None else token
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def check(self) -> None:
        """Makes sure that the server is there, before this worker joins the cluster.

        Raises:
            SetupError: nobody answers at the address, or somebody else does.
        """
        try:
            answer = self._session.get(f"{self.address}/healthz", timeout=(CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S))
        except requests.RequestException as error:
            raise SetupError(
                f"no state server answers at {self.address} ({_reason(error)}): start it with "
                "scripts/state_server.sh, or name its address with -ip and -port"
            ) from None
        if answer.status_code != 200:
            raise SetupError(f"{self.address} answers {answer.status_code} to /healthz: that is not a state server")

    def begin_job(self, job: str, num_workers: int) -> None:
        """RESET: the server forgets the job before and makes an empty record for each rank."""
        self._job = job
        rule = {"policy": self._policy, "epsilon": self._epsilon_s}
        self._send({"msg_type": "RESET", "num_workers": num_workers, **rule})

    def join(self, job: str, rank: int) -> None:
        """From now on this client speaks for `rank` in `job`."""
        self._job, self._rank = job, rank

    def report(self, round_: int, step_s: float, transmission_s: float, accuracy: float | None) -> None:
        """REPORT: this worker has the global model and enters round `round_`."""
        extra: dict[str, Any] = {"device": self._device}
        if accuracy is not None:
            extra["accuracy"] = accuracy
        self._send({"msg_type": "REPORT", "status": self._status(round_, 0, step_s, transmission_s), **extra})

    def query(self, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
        """QUERY after a local step: whether to aggregate now (SYNC) or to train on (TRAIN)."""
        answer = self._send({"msg_type": "QUERY", "status": self._status(round_, steps, step_s, transmission_s)})
        return bool(answer["action"] == "SYNC")

    def _status(self, round_: int, steps: int, step_s: float, transmission_s: float) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "local_iteration": steps,
            "round": round_,
            "computation_time": step_s,
            "transmission_time": transmission_s,
            "timestamp": time.time(),
        }

    def _send(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message until it is answered.

        Raises:
            PeerLost: no answer within PATIENCE_S.
            JobError: the server refuses the message.
        """
        envelope = {"sender": f"worker-{self._rank}", "receiver": "state-server", "job": self._job, **message}
        give_up, pause = time.monotonic() + PATIENCE_S, FIRST_PAUSE_S
        while True:
            try:
                answer = self._session.post(
                    f"{self.address}/message/", json=envelope, timeout=(CONNECT_TIMEOUT_S, ANSWER_TIMEOUT_S)
                )
                if answer.ok:
                    return dict(answer.json())
                trouble = f"answered {answer.status_code}: {answer.text[:300]}"
                # Unknown jobs become known: rank 0 may be a moment behind. Anything else is refused for good.
                if answer.status_code not in (409, 502, 503, 504):
                    raise JobError(f"the state server at {self.address} {trouble}")
            except (requests.RequestException, ValueError) as error:
                trouble = f"does not answer ({_reason(error)})"
            if time.monotonic() + pause > give_up:
                raise PeerLost(f"the state server at {self.address} {trouble}; tried for {PATIENCE_S:g} s")
            if pause == FIRST_PAUSE_S:
                logging.warning("the state server at %s %s; asking again", self.address, trouble)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)


def _reason(error: Exception) -> str:
    """The innermost cause of a connection error, without the library's wrapping."""
    while error.__context__ is not None and not isinstance(error, OSError | TimeoutError):
        error = error.__context__  # type: ignore[assignment]
    cause: BaseException | None = error
    while isinstance(cause, requests.RequestException) and cause.__context__ is not None:
        cause = cause.__context__.__cause__ or cause.__context__
    return getattr(cause, "strerror", None) or type(cause).__name__
