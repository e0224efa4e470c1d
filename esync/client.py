"""A worker's client of the state server. Each message, a REPORT or a QUERY, is the worker's whole state: the job's
settings, the worker's place and progress, and what it has not told yet.

So a server that does not know the job, as one that was restarted, learns it from the next message of any worker. Each
answer names the server's process: one that is new to this worker is told all values of the metric.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import random
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from esync.base import JobError, PeerLost
from esync.clock import Clock, Event, Task
from esync.progress import ENDED, EVALUATING, MAX_EVENTS, MAX_POINTS, Progress
from esync.protocol import BRIEF, PATIENT, QUICK, Link, Message, NoAnswer, Timeouts, try_once

PATIENCE_S = 60.0  # for a server that is restarted
FIRST_PAUSE_S = 0.05  # before the second try
LONGEST_PAUSE_S = 1.0
FLOAT32_COUNTS_TO = 1 << 24  # up to here the kvstore, which has float32 alone, keeps whole numbers exact

# A page is looked at by people, and each message costs the training's process a millisecond.
NOTICE_REST_S = 0.1
PAGE_REST_S = 1.0  # in modes in which no rule of the server decides

# What an unanswered question counts as once this worker leaves: it stops its local steps, stays in step, or releases.
LEAVE = {"action": "SYNC"}


def draw_job_number() -> list[int]:
    """A random number for a new job, in parts that the kvstore can carry."""
    return [random.SystemRandom().randrange(FLOAT32_COUNTS_TO) for _ in range(2)]


def job_id(number: Iterable[float]) -> str:
    """The job's name on the state server."""
    return "-".join(f"{int(part):06x}" for part in number)


class Notices:
    """Runs one notice at a time beside the caller, and of those that wait only the newest."""

    def __init__(self, clock: Clock, rest_s: float, leaves: Event) -> None:
        """`rest_s`: seconds between two notices, which end once this worker `leaves`."""
        self._clock, self._rest_s, self._leaves = clock, rest_s, leaves
        self._lock = clock.lock()
        self._next: Callable[[], None] | None = None
        self._task: Task[None] | None = None

    def begin(self, notice: Callable[[], None]) -> None:
        """The notice must not raise."""
        with self._lock:
            self._next = notice
            if self._task is None:
                self._task = self._clock.start(self._run, "notices to the state server")

    def wait_until_idle(self, patience_s: float) -> None:
        """Waits for the end of the notices, `patience_s` seconds at most."""
        if (task := self._task) is not None:
            with contextlib.suppress(FutureTimeout):
                task.result(patience_s)

    def _run(self) -> None:
        while True:
            with self._lock:
                notice, self._next = self._next, None
                if notice is None:
                    self._task = None
                    return
            notice()
            self._leaves.wait(self._rest_s)


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
        lost: Callable[[], Collection[int]] = tuple,  # ranks of the workers without which the others go on
    ) -> None:
        rule = {"title": title, "batch_size": batch_size if shares_batch else 0, "anchor": anchor}
        self._rule: Message = {"policy": policy, "epsilon": epsilon_s}
        self._rule |= {name: told for name, told in rule.items() if told}
        self._limits = limits or {}
        self._device, self._batch_size = {"host": host_name, "device": device}, batch_size
        self._patience_s, self._lost = patience_s, lost
        self._link, self._clock = link, clock
        self._stop_requested = stop_requested
        self._leaves = clock.event()  # from then on unanswered messages are not sent again
        self._notices = Notices(clock, notice_rest_s, self._leaves)
        self._is_heard = True  # no line has said since the last answer that none comes
        self._name = _name_of(self._device)
        self.job, self._rank, self._settings = "", 0, self._rule
        self._progress = Progress()
        self._lock = clock.lock()
        self._newest: Message = {}  # the REPORT of the last step that was noted
        self._has_begun = False  # a message has left: the job may have begun on a server
        self._server = ""  # the process that has answered last
        # Numbers of events and of evaluations that the server has had; None: it may be new, and is told all
        self._told: tuple[int, int] | None = None
        self.is_refused = False  # the server takes no message of this worker

    @property
    def round_trip_s(self) -> float:
        """Usual round trip; 0 before the first."""
        return self._link.round_trip_s

    def join(
        self, job: str, rank: int, num_workers: int, progress: Progress | None = None, generation: int = 1
    ) -> None:
        """From now on messages are those of `rank` in `job`, and tell its progress. `generation`: how many times the
        job's workers have come together."""
        self.job, self._rank, self._progress = job, rank, progress or self._progress
        self._settings = {**self._rule, "num_workers": num_workers, "generation": generation}
        limits = dict(self._limits)
        if not self._progress.metric.is_accuracy:
            self._settings["metric"] = self._progress.metric.about()
        elif "target" in limits:
            limits["accuracy"] = limits.pop("target")
        self._settings |= {"limits": limits} if limits else {}

    # ------------------------------------------------------------------------------------- messages with answers

    def note(
        self,
        round_: int,
        steps: int,
        step_s: float,
        transmission_s: float,
        samples: int | None = None,
        asks: bool = False,
    ) -> Message:
        """This worker's state now, as a message for `send`: a QUERY if it asks, else a REPORT. `steps`: in the round so
        far, the last of which took `step_s`; 0: this worker has the global model. `transmission_s`: seconds to push a
        model. `samples` of that step; None: a batch in a QUERY, and not told in a REPORT."""
        sender = {"sender": f"worker-{self._rank}-{self._name}", "receiver": "state-server", "job": self.job}
        status = {"rank": self._rank, "local_iteration": steps, "round": round_, "computation_time": step_s}
        status |= {"transmission_time": transmission_s, "timestamp": self._clock.timestamp()}
        state = {"msg_type": "REPORT", **sender, "settings": self._settings, "status": status, "device": self._device}
        state["doing"] = self._progress.activity
        with self._lock:  # questions may overtake each other
            if _at(state) >= _at(self._newest):
                self._newest = state
        told = self._batch_size if asks and samples is None else samples
        return {**state, "msg_type": "QUERY" if asks else "REPORT"} | ({} if told is None else {"samples": told})

    def send(self, message: Message, patience_s: float | None = None) -> Mapping[str, Any]:
        """Sends a message until it is answered, for `patience_s` seconds; None: this client's; 0: one short try. Raises
        PeerLost without an answer in time, JobError where the server refuses the message."""
        patience_s = self._patience_s if patience_s is None else patience_s
        timeouts = PATIENT if patience_s else BRIEF if self._is_heard else QUICK
        give_up, pause, said = self._clock.now() + patience_s, FIRST_PAUSE_S, None
        while said is None:
            try:
                said = self._try(message, timeouts)
            except NoAnswer as error:
                if patience_s and (self._leaves.is_set() or self._stop_requested()):
                    return LEAVE
                if self._clock.now() + pause > give_up:
                    tried = f"; tried for {patience_s:g} s" if patience_s else ""
                    raise PeerLost(f"the state server at {self._link.address} {error}{tried}") from None
                if self._is_heard:
                    self._is_heard = False
                    logging.warning("the state server at %s %s; asking again", self._link.address, error)
                self._leaves.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
        if message["msg_type"] == "QUERY" and self._progress.activity == EVALUATING:
            self.tell_doing()  # the question came from beside the training; the server takes it for a sign of training
        return said

    # -------------------------------------------------------------------------- notices beside the training

    def tell(
        self, round_: int, steps: int, step_s: float, transmission_s: float, decision: tuple[str, str] | None = None
    ) -> None:
        """Tells this worker's state, as `note` has it, in the background. Of several messages only the newest is sent.
        Training does not depend on it. `decision`: (SYNC or TRAIN, reason) of the server part on the hub, after the
        steps of this round, or before the first one, at the end of the round before."""
        message = self.note(round_, steps, step_s, transmission_s)
        if decision is not None:
            message["decision"] = {"action": decision[0], "reason": decision[1]}
        self._notices.begin(lambda: self._tell(message))

    def tell_doing(self) -> None:
        """Likewise this worker's activity. The next message tells the rest if it is lost."""
        if self._newest:
            message = {**self._newest, "doing": self._progress.activity}
            self._notices.begin(lambda: self._tell(message))

    def stop_waiting(self) -> None:
        """From now on unanswered messages are not sent again."""
        self._leaves.set()

    def leave(self, round_: int = 0) -> None:
        """Tells, once and without patience, that this worker has left the job in order. `round_`: its last, where that
        is later than what was told."""
        self.stop_waiting()
        self._progress.activity = ENDED
        if not self._newest:
            return
        told = self._newest["status"]
        steps, step_s, transmission_s = told["local_iteration"], told["computation_time"], told["transmission_time"]
        last = self.note(max(round_, told["round"]), steps, step_s, transmission_s)
        self._notices.wait_until_idle(BRIEF.answer_s)  # earlier notices must not arrive after this
        self._told = None  # no later message tells what a server that is new does not know
        with contextlib.suppress(JobError):
            self.send(last, 0.0)

    # ------------------------------------------------------------------------------------------------- sending

    def _try(self, message: Message, timeouts: Timeouts) -> Mapping[str, Any]:
        """One try, as `try_once`."""
        before, told = self._told, (len(self._progress.events), len(self._progress.evaluations))
        try:
            said = try_once(self._link, self._complete(message, before), timeouts)
            self._is_heard = True
        except (NoAnswer, JobError):
            self._told = None
            raise
        finally:
            self._has_begun = True
        refusal = said.get("not_heard")
        if not refusal:
            server, self._server = self._server, said.get("server", "")
            self._told = told if before is None or server == self._server else None
            if server not in ("", self._server):
                logging.warning("the state server at %s was restarted; telling it about the job", self._link.address)
        is_newest = _at(message)[:2] >= (self._settings["generation"], _at(self._newest)[1])
        if refusal and is_newest and not self.is_refused:
            why = "the others go on without this worker, or another program speaks for it, which ESYNC_TOKEN prevents"
            logging.warning("warning: the state server at %s takes none: %s; %s", self._link.address, refusal, why)
        if is_newest or not refusal:
            self.is_refused = bool(refusal)
        return said

    def _complete(self, message: Message, told: tuple[int, int] | None) -> Message:
        """The message with all that is known when it is sent. `told`: how many events and evaluations the server knows;
        None: it may be new."""
        progress, more = self._progress, self._progress.to_wire()
        newest, all_ = ("accuracy", "accuracies") if progress.metric.is_accuracy else ("value", "values")
        events, evaluations = told or (0, 0)
        if new := progress.events[events:][-MAX_EVENTS:]:
            more["events"] = [list(event) for event in new]
        points = progress.evaluations[evaluations:]
        if told is None and progress.evaluates:
            more[all_] = [list(point) for point in progress.curve()]  # perhaps none: the first is to come
        elif points:
            more |= {newest: points[-1].value, "evaluated": points[-1].round}
            if len(points) > 1:
                more[all_] = [list(point) for point in points[:-1][-MAX_POINTS:]]
        if lost := self._lost():
            more["lost"] = sorted(lost)
        resumed = int(self._has_begun or message["status"]["round"] > 1)
        return {**message, **more, "settings": {**message["settings"], "resumed": resumed}}

    def _tell(self, message: Message) -> None:
        """One try; success and failure are logged where they change."""
        was_heard = self._is_heard
        try:
            self.send(message, 0.0)
        except JobError as error:
            if was_heard:
                level = logging.INFO if message["status"]["rank"] else logging.WARNING
                logging.log(level, "%s; training goes on without it", error)
            self._is_heard = False
        else:
            if not was_heard:
                logging.info("the state server at %s hears this worker again", self._link.address)


def _at(state: Message) -> tuple[int, int, int]:
    """Generation, round and local steps of a message, by which the newest is known."""
    if not state:
        return 0, 0, 0
    return state["settings"]["generation"], state["status"]["round"], state["status"]["local_iteration"]


def _name_of(device: Message) -> str:
    """Others do not know it: a rank speaks for one sender. With a token a process that takes the place of a lost one on
    the same device has the same one."""
    token = os.environ.get("ESYNC_TOKEN")
    return hashlib.sha256(f"{token} {device}".encode()).hexdigest()[:16] if token else secrets.token_hex(8)
