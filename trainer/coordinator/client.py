"""A worker's client of the state server: RESET, REPORT and QUERY, and the answers.

Every REPORT and QUERY also tells the worker's work since the job began (progress.py). Each answer names the server's
process; a restarted server is told all that, and the metric's values so far.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from trainer.clock import Clock
from trainer.coordinator.asker import NOTICE_REST_S, Asker, UnknownJob
from trainer.coordinator.protocol import BRIEF, PATIENT, QUICK, Link, Message, NoAnswer
from trainer.progress import ENDED, EVALUATING, MAX_EVENTS, MAX_POINTS, Progress
from utils import FLOAT32_COUNTS_TO, JobError

PATIENCE_S = 60.0  # for a server that is restarted


def draw_job_number() -> list[int]:
    """A random number for a new job, in parts that the kvstore can carry."""
    return [random.SystemRandom().randrange(FLOAT32_COUNTS_TO) for _ in range(2)]


def job_id(number: Sequence[float]) -> str:
    """The job's name on the state server."""
    return "-".join(f"{int(part):06x}" for part in number)


class _Status(NamedTuple):
    """A worker's progress; ordered by time. Of an earlier generation of workers the server takes none."""

    generation: int
    round: int
    steps: int
    step_s: float
    transmission_s: float


class StateClient:
    """One worker's client. Threads may share it."""

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
        anchor: int | str = 0,
        notice_rest_s: float = NOTICE_REST_S,
    ) -> None:
        """
        Args:
            policy: the job's rule, by the state server's name of it.
            epsilon_s: tolerance of the preprint's rule.
            host_name: for the status page, as `device`.
            batch_size: samples of a local step.
            patience_s: how long an unanswered message is sent again that training depends on.
            title: the algorithm's name on the status page; empty: the policy's.
            limits: rounds, seconds and the metric's target at which the job will end, for the status page.
            stop_requested: a signal came: unanswered messages are not sent again.
            shares_batch: the rule decides on batch sizes, so the server must know the first ones.
            anchor: local steps of ESync's straggler in a round, or auto; 0: one.
            notice_rest_s: seconds between two messages beside the training.
        """
        self._rule: Message = {"policy": policy, "epsilon": epsilon_s}
        self._rule |= {"title": title} if title else {}
        self._rule |= {"batch_size": batch_size} if shares_batch else {}
        self._rule |= {"anchor": anchor} if anchor else {}
        self._limits = limits or {}
        self._device = {"host": host_name, "device": device}
        self._batch_size = batch_size
        self._patience_s = patience_s
        self._link = link
        self._clock = clock
        self._asker = Asker(
            link, clock, self._complete, lambda: self._reset(resumed=True), stop_requested, notice_rest_s
        )
        self._job = ""
        self._num_workers = 0
        self._rank = 0
        self._generation = 1
        self._progress = Progress()
        self._lock = clock.lock()
        self._latest: _Status | None = None  # of what was told
        self._is_heard = True  # whether the last notice was answered
        self._to_announce: Message | None = None  # the RESET that the next notice sends first
        self._told = (0, 0)  # how many of the progress's events and evaluations have an answer
        self._answered = 0  # the last round of which a message of this generation has an answer
        self.is_behind = False  # progress was noted that no message tells
        self.is_refused = False  # the server takes no message of this worker
        self._name = secrets.token_hex(8)  # which other senders do not know: a rank speaks for one

    @property
    def round_trip_s(self) -> float:
        """Usual round trip; 0 before the first."""
        return self._link.round_trip_s

    def check(self) -> None:
        """Raises SetupError where no state server answers."""
        self._link.check()

    # ------------------------------------------------------------------------------------- messages with answers

    @property
    def job(self) -> str:
        return self._job

    def join(
        self, job: str, rank: int, num_workers: int, progress: Progress | None = None, generation: int = 1
    ) -> None:
        """From now on messages are those of `rank` in `job`, and tell its progress.

        Args:
            generation: of the job's workers.
        """
        self._job, self._rank, self._num_workers, self._generation = job, rank, num_workers, generation
        self._answered = 0
        self._progress = progress or self._progress

    def begin_job(self, resumed: bool = False) -> None:
        """RESET: the server makes an empty record for each rank; a job that it knows continues.

        Args:
            resumed: the job is running already, or continues from a checkpoint, and the server is new to it.

        Raises:
            PeerLost: no answer.
            JobError: the server refuses the job.
        """
        self._send(self._reset(resumed))

    @property
    def generation(self) -> int:
        """Of the workers: how many times they have come together."""
        return self._generation

    def report(
        self,
        round_: int,
        step_s: float,
        transmission_s: float,
        samples: int | None = None,
        patience_s: float | None = None,
        generation: int = 0,
    ) -> None:
        """REPORT: this worker has the global model and enters round `round_`.

        Args:
            samples: of the step that took `step_s`, where the rule decides on batch sizes.
            patience_s: seconds until it gives up; None: this client's; 0: one short try.
            generation: in which it does so; 0: the present one.

        Raises:
            PeerLost: no answer.
            JobError: the server refuses the message.
        """
        message = self._report(self._note(round_, 0, step_s, transmission_s, generation))
        self._send(message if samples is None else message | {"samples": samples}, patience_s)

    def query(
        self,
        round_: int,
        steps: int,
        step_s: float,
        transmission_s: float,
        patience_s: float | None = None,
        generation: int = 0,
    ) -> bool:
        """QUERY after a local step, like `report`; returns whether to aggregate now."""
        status = self._note(round_, steps, step_s, transmission_s, generation)
        return self._ask(status, self._batch_size, patience_s).get("action") == "SYNC"

    def note(self, round_: int, steps: int, step_s: float, transmission_s: float) -> None:
        """Notes the progress, which `catch_up` tells."""
        self._note(round_, steps, step_s, transmission_s)
        self.is_behind = True

    def catch_up(self, patience_s: float) -> None:
        """REPORT of what was noted, unless it was told meanwhile; otherwise like `report`."""
        was_behind, self.is_behind = self.is_behind, False
        if was_behind and self._latest is not None:
            self._send(self._report_with_all(self._latest), patience_s)

    def ask_batch_size(self, round_: int, step_s: float, samples: int) -> int | None:
        """QUERY after the one step of a round, under a rule that decides on batch sizes.

        Args:
            step_s: seconds of the step.
            samples: in it.

        Returns:
            Samples of this worker's batches from the next round on; None while the server cannot decide.
        """
        size = self._ask(self._note(round_, 1, step_s, 0.0), samples, math.inf).get("batch_size")
        return size if isinstance(size, int) and size > 0 else None

    def _ask(self, status: _Status, samples: int, patience_s: float | None) -> Mapping[str, Any]:
        message: Message = {"msg_type": "QUERY", "status": self._status(status), "samples": samples}
        answer = self._send(message | _of_generation(status.generation), patience_s)
        if self._progress.activity == EVALUATING:
            self.tell_doing()  # the question came from beside the training; the server takes it for a sign of training
        return answer

    # -------------------------------------------------------------------------- notices beside the training

    def announce(self, resumed: bool = False) -> None:
        """RESET, along with the next notice, for a server that only shows the job: nothing waits for it. Every worker
        may send it."""
        self._to_announce = self._reset(resumed)

    def tell(
        self,
        round_: int,
        steps: int,
        step_s: float,
        transmission_s: float,
        decision: tuple[str, str] | None = None,
    ) -> None:
        """REPORT in the background: this worker's progress. Of several only the newest is sent. Training does
        not depend on it.

        Args:
            steps: local steps in the round so far.
            step_s: seconds of the last one.
            transmission_s: seconds of its push and pull.
            decision: (SYNC or TRAIN, reason) of the optimizer on the server: after the steps of this round, or before
                the first one, at the end of the round before.
        """
        message = self._report(self._note(round_, steps, step_s, transmission_s))
        if decision is not None:
            message["decision"] = {"action": decision[0], "reason": decision[1]}
        self._asker.notify(lambda: self._tell(message))

    def tell_doing(self) -> None:
        """REPORT in the background, once: this worker's activity. The next message tells the rest if it is lost."""
        if self._latest is not None:
            message = self._report(self._latest)
            self._asker.notify(lambda: self._send_once(message))

    def stop_waiting(self) -> None:
        """From now on unanswered messages are not sent again."""
        self._asker.stop_waiting()

    def leave(self, round_: int = 0) -> None:
        """REPORT, once, without patience: this worker has left the job in order.

        Args:
            round_: its last, where that is later than what was told.
        """
        self.stop_waiting()
        self._progress.activity = ENDED
        if self._latest is None:
            return
        last = self._latest._replace(round=max(round_, self._latest.round))
        self._asker.wait_until_idle(BRIEF.answer_s)  # earlier notices must not arrive after this
        with contextlib.suppress(NoAnswer, JobError):
            self._send(self._report_with_all(last), 0.0)

    # --------------------------------------------------------------------------------------------- the messages

    def _reset(self, resumed: bool) -> Message:
        metric, limits = self._progress.metric, dict(self._limits)
        about = {"msg_type": "RESET", "num_workers": self._num_workers, **self._rule, "resumed": int(resumed)}
        if not metric.is_accuracy:
            about["metric"] = metric.about()
        elif "target" in limits:
            limits["accuracy"] = limits.pop("target")
        return {**about, **({"limits": limits} if limits else {}), **_of_generation(self._generation)}

    def _report(self, status: _Status) -> Message:
        about = {"msg_type": "REPORT", "status": self._status(status), "device": self._device}
        return {**about, **_of_generation(status.generation), "doing": self._progress.activity}

    def _report_with_all(self, status: _Status) -> Message:
        """With the curve so far, perhaps empty, where this worker evaluates."""
        curve = self._progress.curve
        points = {} if curve is None else {self._keys[1]: [list(point) for point in curve.points()]}
        return {**self._report(status), **points}

    @property
    def _keys(self) -> tuple[str, str]:
        """Of a value of the metric, and of all."""
        return ("accuracy", "accuracies") if self._progress.metric.is_accuracy else ("value", "values")

    def _note(self, round_: int, steps: int, step_s: float, transmission_s: float, generation: int = 0) -> _Status:
        """Notes the progress. Questions may overtake each other: the latest status is that of the last step."""
        status = _Status(generation or self._generation, round_, steps, step_s, transmission_s)
        with self._lock:
            if self._latest is None or status[:3] >= self._latest[:3]:
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
        sender = f"worker-{self._rank}-{self._name}"
        envelope = {"sender": sender, "receiver": "state-server", "job": self._job, **message}
        if "status" not in message:
            return envelope
        if (missed := message["status"]["round"] - 1 - self._answered) > 0:
            envelope["missed"] = missed
        events = self._progress.events[self._told[0] :][-MAX_EVENTS:]
        # A server that did not hear the last notice is told the whole curve after this message.
        untold = self._progress.evaluations[self._told[1] :] if self._is_heard else []
        more: Message = {"events": [list(event) for event in events]} if events else {}
        if untold:
            more |= {self._keys[0]: untold[-1].value, "evaluated": untold[-1].round}
        if len(untold) > 1 and message["msg_type"] == "REPORT":
            more[self._keys[1]] = [list(point) for point in untold[:-1][-MAX_POINTS:]]
        return more | envelope | self._progress.to_wire()

    # ------------------------------------------------------------------------------------------------- sending

    def _send(self, message: Message, patience_s: float | None = None) -> Mapping[str, Any]:
        """Sends a message until it is answered; 0: once. Then a restarted server is told all that it has lost of this
        worker.

        Raises:
            PeerLost: no answer in time.
            JobError: the server refuses the message.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        patience = patience_s, PATIENT if patience_s else BRIEF if self._is_heard else QUICK
        told = len(self._progress.events), len(self._progress.evaluations)
        said = self._asker.ask(message, *patience)
        self._note_answer(message, said.get("not_heard"))
        if self._asker.is_another_server(said) and self._latest is not None:
            self._told = (0, 0)
            self._asker.ask(self._report_with_all(self._latest), *patience)
        self._told = told
        return said

    def _note_answer(self, message: Message, refusal: str | None) -> None:
        """Says where the server takes even the newest message of this worker for an old one, or for another's."""
        if (status := message.get("status")) is None or message.get("generation", 1) != self._generation:
            return
        self._answered = max(self._answered, status["round"])
        is_newest = self._latest is not None and status["round"] >= self._latest.round
        if refusal and is_newest and not self.is_refused:
            why = "the others go on without this worker, or another program speaks for it, which ESYNC_TOKEN prevents"
            logging.warning("warning: the state server at %s takes none: %s; %s", self._link.address, refusal, why)
        if is_newest or not refusal:
            self.is_refused = bool(refusal)

    def _send_once(self, message: Message) -> None:
        with contextlib.suppress(NoAnswer, UnknownJob, JobError):
            self._asker.try_once(message, BRIEF)

    def _tell(self, message: Message) -> None:
        """One try; success and failure are logged where they change."""
        try:
            if self._to_announce is not None:
                self._asker.try_once(self._to_announce, BRIEF if self._is_heard else QUICK)
                self._to_announce = None
            self._send(message, 0.0)
        except (JobError, NoAnswer) as error:  # PeerLost, without an answer, is one too
            if self._to_announce is not None:
                self._to_announce["resumed"] = 1  # from here on the job's beginning is not known there
            if self._is_heard:
                why = f"the state server at {self._link.address} {error}" if isinstance(error, NoAnswer) else error
                logging.log(logging.INFO if self._rank else logging.WARNING, "%s; training goes on without it", why)
            self._note_unheard()
            return
        if not self._is_heard:
            logging.info("the state server at %s hears this worker again", self._link.address)
        self._is_heard = True

    def _note_unheard(self) -> None:
        """The server that answers next may not know this worker."""
        self._is_heard = False
        self._asker.forget_server()


def _of_generation(generation: int) -> Message:
    """Only told once there is more than one."""
    return {"generation": generation} if generation > 1 else {}
