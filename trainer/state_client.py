"""A worker's side of the state server: RESET, REPORT and QUERY as JSON, and what is done about the answers.

Beside where a worker is, every REPORT and QUERY says what it has done since the job began (progress.py). A server that
was restarted is told all that, and the accuracies so far: each answer names the server's process.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import requests

from trainer.background import Background
from trainer.progress import ENDED, EVALUATING, Progress
from trainer.state_link import BRIEF, PATIENT, Link, Reply, StateLink, Timeouts, json_object, reason_of
from utils import JobError, PeerLost, SetupError

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 1.0
NOTICE_PAUSE_S = 1.0  # without a notice, where the last one found no server
PATIENCE_S = 60.0  # how long a worker waits for a server that is restarted

# The server's words for a job that it does not know: not yet, or not any more because it was restarted.
UNKNOWN_JOB = ("no-job", "unknown-job")
# And for a message of a round that this worker has left meanwhile: a question that later ones have overtaken.
OVERTAKEN = "stale"
# And for a job for which it has no room now: others end.
NO_ROOM = "too-many-jobs"

# An answer to whoever leaves the job and got none: stop the local steps, stay in step, release.
LEAVE = {"action": "SYNC", "reason": "this worker is about to leave, and the state server does not answer"}

_LOST = "lost"  # in place of the name of a server process that has forgotten the job

_JOB_NUMBER_RANGE = 1 << 24  # whole numbers below this survive the kvstore's float32


def draw_job_number() -> list[int]:
    """A random number for a new job, in parts that the kvstore can carry."""
    return [random.SystemRandom().randrange(_JOB_NUMBER_RANGE) for _ in range(2)]


def job_id(number: Sequence[float]) -> str:
    """The job's name on the state server."""
    return "-".join(f"{int(part):06x}" for part in number)


class _Status(NamedTuple):
    """Where this worker is; ordered by time."""

    round: int
    steps: int
    step_s: float
    transmission_s: float


class _Trouble(Exception):
    """No answer that means anything; a later one may. The text says what there was."""


class _UnknownJob(Exception):
    """The server does not know the job."""


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
        title: str = "",
        limits: Mapping[str, float] | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        link: Link | None = None,
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
            title: what the status page calls the algorithm; as the policy says where empty.
            limits: when the job will end, for the status page: rounds, seconds, accuracy; those that there are.
            stop_requested: a signal came. Who is to stop waits no longer for a server that does not answer.
            link: another way to the server than HTTP.
        """
        self.address = f"http://{host}:{port}"
        self._rule: dict[str, Any] = {"policy": policy, "epsilon": epsilon_s}
        self._rule |= {name: value for name, value in {"title": title, "limits": limits}.items() if value}
        self._device = {"host": host_name, "device": device}
        self._batch_size = batch_size
        self._patience_s = patience_s
        self._stop_requested = stop_requested
        self._leaves = threading.Event()
        self._link: Link = link or StateLink(host, port, delay_s)
        self._notices = Background("notices")
        self._quiet_until = 0.0  # no notice is sent before
        self._untold: float | None = None  # an accuracy
        self._knows_all = False  # the server does, so notices need not repeat all accuracies
        self._job = ""
        self._num_workers = 0
        self._rank = 0
        self._progress = Progress()
        self._lock = threading.Lock()
        self._latest: _Status | None = None  # that was told
        self._server = ""  # the server's process, by its own word; a job that was unknown to it makes it another one

    @property
    def round_trip_s(self) -> float:
        """Median of the last round trips; 0 before the first."""
        return self._link.round_trip_s

    def check(self) -> None:
        """Makes sure that the server is there, before this worker joins the cluster.

        Raises:
            SetupError: nobody answers at the address, or somebody else does.
        """
        try:
            answer = self._link.get("/healthz")
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

    def _is_published(self, not_found: Reply) -> bool:
        """Whether the server that answers so knows the published paths, or has the published state."""
        if all(path in not_found.text for path in ("init/", "apply/", "reset/")):  # Django's page lists what there is
            return True
        try:
            state = self._link.get("/")
        except requests.RequestException:
            return False
        return {"num_workers", "epsilon", "records"} <= json_object(state).keys()

    # ------------------------------------------------------------------------------------------- what is said

    def join(self, job: str, rank: int, num_workers: int, progress: Progress | None = None) -> None:
        """From now on this client speaks for `rank` in `job`, and tells of its progress."""
        self._job, self._rank, self._num_workers = job, rank, num_workers
        self._progress = progress or self._progress

    def begin_job(self, resumed: bool = False) -> None:
        """RESET: the server makes an empty record for each rank; a job that it knows goes on.

        Args:
            resumed: the job is running already, or goes on from a checkpoint: it is the server that is new to it.

        Raises:
            PeerLost: no answer.
            JobError: the server refuses the job.
        """
        self._send(self._reset(resumed))

    def announce(self, resumed: bool = False) -> None:
        """RESET, once, for a server that is only told: where none answers, a warning says that there is no page."""
        try:
            self._post(self._reset(resumed), PATIENT)
        except (_Trouble, JobError) as error:
            logging.warning("there is no status page of this job: the state server at %s %s", self.address, error)

    def tell(
        self,
        round_: int,
        steps: int,
        step_s: float,
        transmission_s: float,
        accuracy: float | None = None,
        decision: tuple[str, str] | None = None,
    ) -> None:
        """REPORT in the background, of which only the newest matters: nobody waits for the server, or misses it.

        An accuracy that was not heard is told with the next one.

        Args:
            round_: that this worker is in.
            steps: local steps that it has done in the round.
            step_s: seconds of the last one.
            transmission_s: seconds of its push and pull.
            accuracy: measured after the round before, where that was.
            decision: what the optimizer on the server has decided (SYNC or TRAIN), and why: after the steps of this
                round, or where there are none yet, at the end of the round before.
        """
        if accuracy is not None:
            self._note_accuracy(round_ - 1, accuracy)
            self._untold = accuracy
        extra = {} if decision is None else {"decision": {"action": decision[0], "reason": decision[1]}}
        message = self._report(self._told(round_, steps, step_s, transmission_s), **extra)
        self._notices.do(lambda: self._notify(message))

    def _notify(self, message: dict[str, Any]) -> None:
        """Sends a notice, and all accuracies so far to a server that may not know them."""
        if time.monotonic() < self._quiet_until:
            return
        accuracy, self._untold = self._untold, None
        fresh = {} if accuracy is None else {"accuracy": accuracy}
        try:
            if self._knows_all and not self._has_lost_all({**message, **fresh}):
                return
            everything = {**message, **(self._accuracies() or fresh)}
            if self._has_lost_all(everything):
                self._has_lost_all(everything)
            self._knows_all = True
        except _Trouble:
            self._quiet_until = time.monotonic() + NOTICE_PAUSE_S
            self._untold = accuracy if self._untold is None else self._untold
        except (_UnknownJob, JobError):
            pass  # the worker has left this round behind meanwhile; the next notice is of a later one

    def _has_lost_all(self, message: dict[str, Any]) -> bool:
        """Sends a notice; whether the server is another one than before, which has to be told everything.

        Where it does not even know the job, it is told of that in place of the notice.
        """
        try:
            return self._is_another_server(self._post(message, BRIEF))
        except _UnknownJob:
            self._is_another_server(self._post(self._reset(resumed=True), BRIEF))
            return True

    def report(self, round_: int, step_s: float, transmission_s: float, accuracy: float | None) -> None:
        """REPORT: this worker has the global model and enters round `round_`.

        Args:
            accuracy: measured after the round before, where that was.
        """
        extra: dict[str, Any] = {}
        if accuracy is not None:
            extra["accuracy"] = accuracy
            self._note_accuracy(round_ - 1, accuracy)
        self._send(self._report(self._told(round_, 0, step_s, transmission_s), **extra))

    def query(self, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
        """QUERY after a local step: whether to aggregate now (SYNC) or to train on (TRAIN)."""
        status = self._told(round_, steps, step_s, transmission_s)
        message = {"msg_type": "QUERY", "status": self._status(status), "samples": self._batch_size}
        answer = self._send(message)
        if self._progress.doing == EVALUATING:
            self.tell_doing()  # a question from beside the training; the server takes who asks for one who trains
        return answer.get("action") == "SYNC"

    def tell_doing(self) -> None:
        """REPORT in the background, once: what this worker does now, in the round that was told last.

        If it is not heard, the next message tells all else that it said.
        """
        if self._latest is not None:
            message = self._report(self._latest)
            self._notices.do(lambda: self._send_once(message))

    def stop_waiting(self) -> None:
        """This worker is done: from now on nothing is tried again for which no answer comes."""
        self._leaves.set()

    def leave(self, accuracy: float | None, round_: int = 0) -> None:
        """REPORT, once, without patience: this worker has left the job in order.

        Args:
            accuracy: the last one, where no REPORT has told it.
            round_: its last, where that is later than what was told.
        """
        self.stop_waiting()
        self._progress.doing = ENDED
        if self._latest is None:
            return
        last = self._latest._replace(round=max(round_, self._latest.round))
        if accuracy is not None:
            self._note_accuracy(last.round, accuracy)
        self._notices.wait_until_idle(BRIEF.answer_s)  # what it did before must not be heard after this
        self._send_once(self._report(last, **self._accuracies()))

    def _reset(self, resumed: bool) -> dict[str, Any]:
        return {"msg_type": "RESET", "num_workers": self._num_workers, **self._rule, "resumed": int(resumed)}

    def _report(self, status: _Status, **extra: Any) -> dict[str, Any]:
        about = {"msg_type": "REPORT", "status": self._status(status), "device": self._device}
        return {**about, "doing": self._progress.doing, **extra}

    def _note_accuracy(self, round_: int, accuracy: float) -> None:
        if self._progress.curve is not None:
            self._progress.curve.add(self._progress.point(round_, accuracy))

    def _accuracies(self) -> dict[str, Any]:
        """The curve so far, of the worker that evaluates; perhaps without any point."""
        curve = self._progress.curve
        return {} if curve is None else {"accuracies": curve.points()}

    def _told(self, round_: int, steps: int, step_s: float, transmission_s: float) -> _Status:
        """Notes where this worker is. Questions may overtake each other: the latest status is that of the last step."""
        status = _Status(round_, steps, step_s, transmission_s)
        with self._lock:
            if self._latest is None or status[:2] >= self._latest[:2]:
                self._latest = status
        return status

    def _status(self, status: _Status) -> dict[str, Any]:
        return {
            "rank": self._rank,
            "local_iteration": status.steps,
            "round": status.round,
            "computation_time": status.step_s,
            "transmission_time": status.transmission_s,
            "timestamp": time.time(),
        }

    # ------------------------------------------------------------------------------------------ how it is sent

    def _send(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends a message until it is answered. A server that was restarted is told about the job first, and about all
        that it has lost of this worker then.

        Raises:
            PeerLost: no answer for as long as this client is patient.
            JobError: the server refuses the message.
        """
        said = self._until_answered(message)
        if self._is_another_server(said) and self._latest is not None:
            self._until_answered(self._report(self._latest, **self._accuracies()))
        return said

    def _until_answered(self, message: dict[str, Any]) -> dict[str, Any]:
        give_up, pause = time.monotonic() + self._patience_s, FIRST_PAUSE_S
        while True:
            try:
                return self._post(message, PATIENT)
            except _UnknownJob:
                logging.warning("the state server at %s was restarted; telling it about the job", self.address)
                self._server = self._server and _LOST
                self._until_answered(self._reset(resumed=True))
                trouble = "forgets the job again and again"
                if pause == FIRST_PAUSE_S:  # once at once: a server that was restarted knows it now
                    pause *= 2
                    continue
            except JobError:
                if not self._is_leaving():
                    raise
                return LEAVE  # while the server was away a leaver has gone on without it, perhaps too far for it
            except _Trouble as error:
                trouble = str(error)
            if self._is_leaving():
                return LEAVE
            if time.monotonic() + pause > give_up:
                raise PeerLost(f"the state server at {self.address} {trouble}; tried for {self._patience_s:g} s")
            if pause == FIRST_PAUSE_S:
                logging.warning("the state server at %s %s; asking again", self.address, trouble)
            self._leaves.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _send_once(self, message: dict[str, Any]) -> None:
        """Sends what nobody has to hear."""
        with contextlib.suppress(_Trouble, _UnknownJob, JobError):
            self._post(message, BRIEF)

    def _is_leaving(self) -> bool:
        return self._leaves.is_set() or self._stop_requested()

    def _is_another_server(self, said: Mapping[str, Any]) -> bool:
        """Whether this answer is from another process than the one before; an older server does not say."""
        server = said.get("server")
        if not isinstance(server, str):
            return False
        with self._lock:
            before, self._server = self._server, server
        return before not in ("", server)

    def _post(self, message: dict[str, Any], timeouts: Timeouts) -> dict[str, Any]:
        """One try.

        Raises:
            _Trouble: no answer.
            _UnknownJob: the server does not know the job.
            JobError: the server refuses the message.
        """
        envelope = {"sender": f"worker-{self._rank}", "receiver": "state-server", "job": self._job, **message}
        if "status" in message:
            envelope |= self._progress.to_wire()
        try:
            answer = self._link.post("/message/", envelope, timeouts)
        except requests.RequestException as error:
            raise _Trouble(f"does not answer ({reason_of(error)})") from None
        said = json_object(answer)
        if answer.ok and said.get("msg_type") == "RESPONSE":
            return said
        code = said.get("code")
        if code == OVERTAKEN:
            return {"action": "TRAIN"}
        if code in UNKNOWN_JOB and message["msg_type"] != "RESET":
            raise _UnknownJob
        if code == NO_ROOM:
            raise _Trouble(f"has no room: {said.get('error')}")
        if code is not None and answer.status_code == 409:
            kind = message["msg_type"]
            raise JobError(f"the state server at {self.address} refuses this {kind} ({code}): {said.get('error')}")
        trouble = f"answered {answer.status_code}: {answer.text[:300]}"
        if answer.status_code < 500:
            raise JobError(f"the state server at {self.address} {trouble}")
        raise _Trouble(trouble)
