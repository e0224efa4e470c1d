"""A worker's side of the state server: RESET, REPORT and QUERY as JSON, and what is done about the answers.

Beside where a worker is, every REPORT and QUERY says what it has done since the job began (progress.py). A server that
was restarted is told all that, and the accuracies so far: each answer names the server's process.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trainer.clock import Clock
from trainer.coordinator.background import Background
from trainer.coordinator.protocol import BRIEF, PATIENT, Link, Message, NoAnswer
from trainer.coordinator.sending import Sender, UnknownJob
from trainer.progress import ENDED, EVALUATING, Progress
from utils import FLOAT32_COUNTS_TO, JobError

NOTICE_REST_S = 0.1  # a page is looked at by people, and each message costs the training's process a millisecond
PATIENCE_S = 60.0  # how long a worker waits for a server that is restarted


def draw_job_number() -> list[int]:
    """A random number for a new job, in parts that the kvstore can carry."""
    return [random.SystemRandom().randrange(FLOAT32_COUNTS_TO) for _ in range(2)]


def job_id(number: Sequence[float]) -> str:
    """The job's name on the state server."""
    return "-".join(f"{int(part):06x}" for part in number)


class _Status(NamedTuple):
    """Where this worker is; ordered by time."""

    round: int
    steps: int
    step_s: float
    transmission_s: float


class StateClient:
    """Sends RESET, REPORT and QUERY; understands RESPONSE.

    Threads may share a client.
    """

    def __init__(
        self,
        link: Link,
        clock: Clock,
        policy: str,
        epsilon_s: float,
        host_name: str = "",
        device: str = "",
        batch_size: int = 0,
        patience_s: float = PATIENCE_S,
        title: str = "",
        limits: Mapping[str, float] | None = None,
        stop_requested: Callable[[], bool] = lambda: False,
        shares_batch: bool = False,
    ) -> None:
        """
        Args:
            link: the way to the server.
            policy: the job's rule, by the state server's name of it.
            epsilon_s: tolerance of the preprint's rule.
            host_name: this worker's host, for the status page.
            device: this worker's device, for the status page.
            batch_size: samples of a local step, for the status page.
            patience_s: how long to go on asking a server that does not answer.
            title: what the status page calls the algorithm; as the policy says where empty.
            limits: when the job will end, for the status page: rounds, seconds, accuracy; those that there are.
            stop_requested: a signal came. Who is to stop waits no longer for a server that does not answer.
            shares_batch: the rule decides on batch sizes, so the server must know how large they are at first.
        """
        self._rule: Message = {"policy": policy, "epsilon": epsilon_s}
        self._rule |= {name: value for name, value in {"title": title, "limits": limits}.items() if value}
        self._rule |= {"batch_size": batch_size} if shares_batch else {}
        self._device = {"host": host_name, "device": device}
        self._batch_size = batch_size
        self._patience_s = patience_s
        self._link = link
        self._clock = clock
        self._sender = Sender(link, clock, stop_requested, self._complete)
        self._notices = Background(clock, "notices to the state server", NOTICE_REST_S)
        self._job = ""
        self._num_workers = 0
        self._rank = 0
        self._generation = 1
        self._progress = Progress()
        self._lock = clock.lock()
        self._latest: _Status | None = None  # that was told
        self._untold: float | None = None  # an accuracy that no answer has followed yet
        self._is_heard = True  # what was told last

    @property
    def round_trip_s(self) -> float:
        """What a question and its answer usually take; 0 before the first."""
        return self._link.round_trip_s

    def check(self) -> None:
        """Makes sure that the server is there, before this worker joins the cluster.

        Raises:
            SetupError: nobody answers at the address, or somebody else does.
        """
        self._link.check()

    # ------------------------------------------------------------------------------------------- what is said

    @property
    def job(self) -> str:
        """The job's name, once this client has joined it."""
        return self._job

    def join(
        self, job: str, rank: int, num_workers: int, progress: Progress | None = None, generation: int = 1
    ) -> None:
        """From now on this client speaks for `rank` in `job`, and tells of its progress.

        Args:
            generation: of the job's workers.
        """
        self._job, self._rank, self._num_workers, self._generation = job, rank, num_workers, generation
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

    def report(
        self, round_: int, step_s: float, transmission_s: float, accuracy: float | None, samples: int | None = None
    ) -> None:
        """REPORT: this worker has the global model and enters round `round_`.

        Args:
            accuracy: measured after the round before, where that was.
            samples: of the step that took `step_s`, where the rule decides on batch sizes.
        """
        self._note_accuracy(round_ - 1, accuracy)
        message = self._report(self._told(round_, 0, step_s, transmission_s))
        self._send(_with(message, accuracy=accuracy, samples=samples))

    def query(self, round_: int, steps: int, step_s: float, transmission_s: float) -> bool:
        """QUERY after a local step: whether to aggregate now (SYNC) or to train on (TRAIN)."""
        status = self._told(round_, steps, step_s, transmission_s)
        return self._ask(status, self._batch_size).get("action") == "SYNC"

    def ask_batch_size(self, round_: int, step_s: float, samples: int, accuracy: float | None) -> int | None:
        """QUERY after the one step of a round, under a rule that decides on batch sizes.

        Args:
            step_s: seconds of the step.
            samples: in it.
            accuracy: measured after the round before, where that was.

        Returns:
            Samples of this worker's batches from the next round on; None while the server cannot decide.
        """
        self._note_accuracy(round_ - 1, accuracy)
        size = self._ask(self._told(round_, 1, step_s, 0.0), samples, accuracy).get("batch_size")
        return size if isinstance(size, int) and size > 0 else None

    def _ask(self, status: _Status, samples: int, accuracy: float | None = None) -> Mapping[str, Any]:
        message: Message = {"msg_type": "QUERY", "status": self._status(status), "samples": samples}
        message |= self._of_generation
        answer = self._send(_with(message, accuracy=accuracy))
        if self._progress.activity == EVALUATING:
            self.tell_doing()  # a question from beside the training; the server takes who asks for one who trains
        return answer

    # -------------------------------------------------------------------------- what is said beside the training

    def announce(self, resumed: bool = False) -> None:
        """RESET, once, for a server that is only told: where none answers, a warning says that there is no page."""
        try:
            self._sender.post(self._reset(resumed), PATIENT)
        except (NoAnswer, JobError) as error:
            self._note_unheard()
            why = error if isinstance(error, JobError) else f"the state server at {self._link.address} {error}"
            logging.warning("there is no status page of this job: %s", why)

    def tell(
        self,
        round_: int,
        steps: int,
        step_s: float,
        transmission_s: float,
        accuracy: float | None = None,
        decision: tuple[str, str] | None = None,
    ) -> None:
        """REPORT in the background: where this worker is. Of several only the newest is sent, with the newest accuracy
        that was not heard yet. Training goes on whether it is heard or not.

        Args:
            round_: that this worker is in.
            steps: local steps that it has done in the round.
            step_s: seconds of the last one.
            transmission_s: seconds of its push and pull.
            accuracy: measured after the round before, where that was.
            decision: what the optimizer on the server has decided (SYNC or TRAIN), and why: after the steps of this
                round, or where there are none yet, at the end of the round before.
        """
        self._note_accuracy(round_ - 1, accuracy)
        message = self._report(self._told(round_, steps, step_s, transmission_s))
        if decision is not None:
            message["decision"] = {"action": decision[0], "reason": decision[1]}
        if accuracy is not None:
            with self._lock:
                self._untold = accuracy
        self._notices.do(lambda: self._tell(message))

    def tell_doing(self) -> None:
        """REPORT in the background, once: what this worker does now, in the round that was told last.

        If it is not heard, the next message tells all else that it said.
        """
        if self._latest is not None:
            message = self._report(self._latest)
            self._notices.do(lambda: self._send_once(message))

    def stop_waiting(self) -> None:
        """This worker is done: from now on nothing is tried again for which no answer comes."""
        self._sender.stop_waiting()

    def leave(self, accuracy: float | None, round_: int = 0) -> None:
        """REPORT, once, without patience: this worker has left the job in order.

        Args:
            accuracy: the last one, where no REPORT has told it.
            round_: its last, where that is later than what was told.
        """
        self.stop_waiting()
        self._progress.activity = ENDED
        if self._latest is None:
            return
        last = self._latest._replace(round=max(round_, self._latest.round))
        self._note_accuracy(last.round, accuracy)
        self._notices.wait_until_idle(BRIEF.answer_s)  # what it did before must not be heard after this
        self._send_once(self._report_with_all(last))

    # --------------------------------------------------------------------------------------------- the messages

    def _reset(self, resumed: bool) -> Message:
        about = {"msg_type": "RESET", "num_workers": self._num_workers, **self._rule, "resumed": int(resumed)}
        return {**about, **self._of_generation}

    @property
    def _of_generation(self) -> Message:
        """Said once there is more than one: ranks are those of a generation."""
        return {"generation": self._generation} if self._generation > 1 else {}

    def _report(self, status: _Status) -> Message:
        about = {"msg_type": "REPORT", "status": self._status(status), "device": self._device, **self._of_generation}
        return {**about, "doing": self._progress.activity}

    def _report_with_all(self, status: _Status) -> Message:
        """With the curve so far, where this is the worker that evaluates; perhaps without any point."""
        curve = self._progress.curve
        points = {} if curve is None else {"accuracies": [list(point) for point in curve.points()]}
        return {**self._report(status), **points}

    def _note_accuracy(self, round_: int, accuracy: float | None) -> None:
        if accuracy is not None and self._progress.curve is not None:
            self._progress.curve.add(self._progress.point(round_, accuracy))

    def _told(self, round_: int, steps: int, step_s: float, transmission_s: float) -> _Status:
        """Notes where this worker is. Questions may overtake each other: the latest status is that of the last step."""
        status = _Status(round_, steps, step_s, transmission_s)
        with self._lock:
            if self._latest is None or status[:2] >= self._latest[:2]:
                self._latest = status
        return status

    def _status(self, status: _Status) -> Message:
        return {
            "rank": self._rank,
            "local_iteration": status.steps,
            "round": status.round,
            "computation_time": status.step_s,
            "transmission_time": status.transmission_s,
            "timestamp": self._clock.timestamp(),
        }

    def _complete(self, message: Message) -> Message:
        envelope = {"sender": f"worker-{self._rank}", "receiver": "state-server", "job": self._job, **message}
        return envelope | self._progress.to_wire() if "status" in message else envelope

    # ------------------------------------------------------------------------------------------ how it is sent

    def _send(self, message: Message, once: bool = False) -> Mapping[str, Any]:
        """Sends a message until it is answered. A server that was restarted is told about all that it has lost of this
        worker then.

        Args:
            once: without patience, but a server that was restarted is told all the same.

        Raises:
            PeerLost: no answer for as long as this client is patient.
            JobError: the server refuses the message.
        """
        patience = (0.0, BRIEF) if once else (self._patience_s, PATIENT)
        reset = self._reset(resumed=True)
        said = self._sender.until_answered(message, reset, *patience)
        if self._sender.is_another_server(said) and self._latest is not None:
            self._sender.until_answered(self._report_with_all(self._latest), reset, *patience)
        return said

    def _send_once(self, message: Message) -> None:
        """Sends what nobody has to hear."""
        with contextlib.suppress(NoAnswer, UnknownJob, JobError):
            self._sender.post(message, BRIEF)

    def _tell(self, message: Message) -> None:
        """One try, with the accuracy that was not heard yet; what happens is logged where it changes."""
        with self._lock:
            accuracy, self._untold = self._untold, None
        try:
            # Whoever hears this worker again, or for the first time, is told all accuracies behind the message.
            self._send(_with(message, accuracy=accuracy if self._is_heard else None), once=True)
        except JobError as error:  # also that nobody answers
            with self._lock:
                self._untold = accuracy if self._untold is None else self._untold
            if self._is_heard:
                logging.warning("%s; training goes on without it", error)
            self._note_unheard()
            return
        if not self._is_heard:
            logging.info("the state server at %s hears this worker again", self._link.address)
        self._is_heard = True

    def _note_unheard(self) -> None:
        """Whatever answers next may not know anything of this worker."""
        self._is_heard = False
        self._sender.forget_server()


def _with(message: Message, **more: float | None) -> Message:
    """The message with those of some fields that there is something to say of."""
    return message | {name: value for name, value in more.items() if value is not None}
