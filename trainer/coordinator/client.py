"""A worker's client of the state server: RESET, REPORT and QUERY, and the answers.

Every REPORT and QUERY also tells the worker's work since the job began (progress.py). Each answer names the server's
process; a restarted server is told all that, and the metric's values so far.
"""

from __future__ import annotations

import contextlib
import logging
import math
import random
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainer.clock import Clock
from trainer.coordinator.asker import NOTICE_REST_S, Asker, UnknownJob
from trainer.coordinator.messages import Messages, Told
from trainer.coordinator.protocol import BRIEF, PATIENT, QUICK, Link, Message, NoAnswer
from trainer.progress import ENDED, EVALUATING, Progress
from utils import FLOAT32_COUNTS_TO, JobError

PATIENCE_S = 60.0  # for a server that is restarted


def draw_job_number() -> list[int]:
    """A random number for a new job, in parts that the kvstore can carry."""
    return [random.SystemRandom().randrange(FLOAT32_COUNTS_TO) for _ in range(2)]


def job_id(number: Iterable[float]) -> str:
    """The job's name on the state server."""
    return "-".join(f"{int(part):06x}" for part in number)


class StateClient:
    """One worker's client. Threads may share it."""

    def __init__(
        self,
        link: Link,
        clock: Clock,
        policy: str,  # the job's rule, by the state server's name of it
        epsilon_s: float,  # tolerance of the preprint's rule
        host_name: str = "",  # for the status page, as `device`
        device: str = "",
        batch_size: int = 0,  # samples of a local step
        patience_s: float = PATIENCE_S,  # how long an unanswered message is sent again that training depends on
        title: str = "",  # the algorithm's name on the status page; empty: the policy's
        # Rounds, seconds and the metric's target at which the job will end, for the status page
        limits: Mapping[str, float] | None = None,
        stop_requested: Callable[[], bool] = lambda: False,  # a signal came: unanswered messages are not sent again
        shares_batch: bool = False,  # the rule decides on batch sizes, so the server must know the first ones
        anchor: int | str = 0,  # local steps of ESync's straggler in a round, or auto; 0: one
        notice_rest_s: float = NOTICE_REST_S,  # seconds between two messages beside the training
    ) -> None:
        rule: Message = {"policy": policy, "epsilon": epsilon_s}
        rule |= {"title": title} if title else {}
        rule |= {"batch_size": batch_size} if shares_batch else {}
        rule |= {"anchor": anchor} if anchor else {}
        self._messages = Messages(clock, rule, limits or {}, {"host": host_name, "device": device})
        self._batch_size = batch_size
        self._patience_s = patience_s
        self._link = link
        self._asker = Asker(
            link,
            clock,
            self._messages.complete,
            lambda: self._messages.reset(resumed=True),
            stop_requested,
            notice_rest_s,
        )
        self._to_announce: Message | None = None  # the RESET that the next notice sends first
        self.is_behind = False  # progress was noted that no message tells
        self.is_refused = False  # the server takes no message of this worker

    @property
    def round_trip_s(self) -> float:
        """Usual round trip; 0 before the first."""
        return self._link.round_trip_s

    # ------------------------------------------------------------------------------------- messages with answers

    @property
    def job(self) -> str:
        return self._messages.job

    def join(
        self, job: str, rank: int, num_workers: int, progress: Progress | None = None, generation: int = 1
    ) -> None:
        """From now on messages are those of `rank` in `job`, and tell its progress. `generation`: of the job's
        workers."""
        mine = self._messages
        mine.job, mine.rank, mine.num_workers, mine.generation = job, rank, num_workers, generation
        mine.answered = 0
        mine.progress = progress or mine.progress

    def begin_job(self, resumed: bool = False) -> None:
        """RESET: the server makes an empty record for each rank; a job that it knows continues. `resumed`: the job is
        running already, or continues from a checkpoint, and the server is new to it. Raises PeerLost without an answer,
        JobError where the server refuses the job."""
        self._send(self._messages.reset(resumed))

    @property
    def generation(self) -> int:
        """Of the workers: how many times they have come together."""
        return self._messages.generation

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
        message = self._messages.report(self._messages.note(round_, 0, step_s, transmission_s, generation))
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
        status = self._messages.note(round_, steps, step_s, transmission_s, generation)
        return self._ask(status, self._batch_size, patience_s).get("action") == "SYNC"

    def note(self, round_: int, steps: int, step_s: float, transmission_s: float) -> None:
        """Notes the progress, which `catch_up` tells."""
        self._messages.note(round_, steps, step_s, transmission_s)
        self.is_behind = True

    def catch_up(self, patience_s: float) -> None:
        """REPORT of what was noted, unless it was told meanwhile; otherwise like `report`."""
        was_behind, self.is_behind = self.is_behind, False
        if was_behind and self._messages.latest is not None:
            self._send(self._messages.report_with_all(self._messages.latest), patience_s)

    def ask_batch_size(self, round_: int, step_s: float, samples: int) -> int | None:
        """QUERY after the one step of a round, of `samples` samples in `step_s` seconds, under a rule that decides on
        batch sizes. Returns the samples of this worker's batches from the next round on; None while the server cannot
        decide."""
        size = self._ask(self._messages.note(round_, 1, step_s, 0.0), samples, math.inf).get("batch_size")
        return size if isinstance(size, int) and size > 0 else None

    def _ask(self, status: Told, samples: int, patience_s: float | None) -> Mapping[str, Any]:
        answer = self._send(self._messages.query(status, samples), patience_s)
        if self._messages.progress.activity == EVALUATING:
            self.tell_doing()  # the question came from beside the training; the server takes it for a sign of training
        return answer

    # -------------------------------------------------------------------------- notices beside the training

    def announce(self, resumed: bool = False) -> None:
        """RESET, along with the next notice, for a server that only shows the job: nothing waits for it. Every worker
        may send it."""
        self._to_announce = self._messages.reset(resumed)

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
        message = self._messages.report(self._messages.note(round_, steps, step_s, transmission_s))
        if decision is not None:
            message["decision"] = {"action": decision[0], "reason": decision[1]}
        self._asker.notify(lambda: self._tell(message))

    def tell_doing(self) -> None:
        """REPORT in the background, once: this worker's activity. The next message tells the rest if it is lost."""
        if self._messages.latest is not None:
            message = self._messages.report(self._messages.latest)
            self._asker.notify(lambda: self._send_once(message))

    def stop_waiting(self) -> None:
        """From now on unanswered messages are not sent again."""
        self._asker.stop_waiting()

    def leave(self, round_: int = 0) -> None:
        """REPORT, once, without patience: this worker has left the job in order. `round_`: its last, where that is
        later than what was told."""
        self.stop_waiting()
        self._messages.progress.activity = ENDED
        if self._messages.latest is None:
            return
        last = self._messages.latest._replace(round=max(round_, self._messages.latest.round))
        self._asker.wait_until_idle(BRIEF.answer_s)  # earlier notices must not arrive after this
        with contextlib.suppress(NoAnswer, JobError):
            self._send(self._messages.report_with_all(last), 0.0)

    # ------------------------------------------------------------------------------------------------- sending

    def _send(self, message: Message, patience_s: float | None = None) -> Mapping[str, Any]:
        """Sends a message until it is answered; 0: once. Then a restarted server is told all that it has lost of this
        worker. Raises PeerLost without an answer in time, JobError where the server refuses the message."""
        patience_s = self._patience_s if patience_s is None else patience_s
        patience = patience_s, PATIENT if patience_s else BRIEF if self._messages.is_heard else QUICK
        told = len(self._messages.progress.events), len(self._messages.progress.evaluations)
        said = self._asker.ask(message, *patience)
        self._note_answer(message, said.get("not_heard"))
        if self._asker.is_another_server(said) and self._messages.latest is not None:
            self._messages.told = (0, 0)
            self._asker.ask(self._messages.report_with_all(self._messages.latest), *patience)
        self._messages.told = told
        return said

    def _note_answer(self, message: Message, refusal: str | None) -> None:
        """Says where the server takes even the newest message of this worker for an old one, or for another's."""
        if (status := message.get("status")) is None or message.get("generation", 1) != self._messages.generation:
            return
        self._messages.answered = max(self._messages.answered, status["round"])
        is_newest = self._messages.latest is not None and status["round"] >= self._messages.latest.round
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
                self._asker.try_once(self._to_announce, BRIEF if self._messages.is_heard else QUICK)
                self._to_announce = None
            self._send(message, 0.0)
        except (JobError, NoAnswer) as error:  # PeerLost, without an answer, is one too
            if self._to_announce is not None:
                self._to_announce["resumed"] = 1  # from here on the job's beginning is not known there
            if self._messages.is_heard:
                why = f"the state server at {self._link.address} {error}" if isinstance(error, NoAnswer) else error
                logging.log(
                    logging.INFO if self._messages.rank else logging.WARNING, "%s; training goes on without it", why
                )
            self._messages.is_heard = False
            self._asker.forget_server()
            return
        if not self._messages.is_heard:
            logging.info("the state server at %s hears this worker again", self._link.address)
        self._messages.is_heard = True
