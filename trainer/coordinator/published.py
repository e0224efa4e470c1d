"""ESync's link to a published state server, which takes forms in place of messages: /init/, /apply/ and /reset/.

Its question has no round, and its answers do not tell a lost job. So one message at a time is under way, the round is
told before its questions, overtaken messages are not sent, and after a failure the state at / tells the server's job.
The first message of rank 0 begins the job; others tell nothing before the server has one of this size.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from config import AMONG_WORKERS, Config
from esync.clock import Clock
from esync.http import HttpLink
from esync.protocol import Link, Message, NoAnswer, Reply, Timeouts
from utils import PeerLost, SetupError

# This project's server ignores a worker after this silence. The published rule has no such limit, so a worker that is
# not told to aggregate for this long aggregates all the same.
SILENCE_S = 30.0
SILENCE_STEPS = 10  # of the slowest device, where that is longer


def checked(http: HttpLink, clock: Clock, config: Config, num_workers: int) -> Link:
    """The link to the server at the address, in its protocol. Raises SetupError if there is no state server, or a
    published one, and the job needs more than that."""
    if not http.is_published():
        return http
    why = ""
    if config.transport in AMONG_WORKERS:
        why = f"through which the workers of --exchange {config.transport} find each other"
    elif config.mode != "esync":
        why = f"and its rule is not that of mode {config.mode}"
    elif config.settings.anchor:
        why = f"and its rule has no --anchor {config.settings.anchor}"
    if why:
        raise SetupError(
            f"{http.address} is a published ESync state server: it has no /healthz and no /message/, {why}; start this "
            "project's with scripts/state_server.sh: published workers may use it too"
        )
    without = "" if config.rule == "preprint" else f", and --policy {config.rule} does nothing"
    logging.warning(
        "%s is a published ESync state server: its rule is the preprint's (computing time, epsilon %g s)%s. It counts "
        "no transmission time and takes no token, compares its clock with the workers', has one job at a time, and no "
        "page of this project. scripts/state_server.sh starts this project's",
        http.address, config.settings.epsilon, without,
    )  # fmt: skip
    return PublishedLink(http, clock, num_workers)


class State(NamedTuple):
    """The published server's state."""

    num_workers: int
    round: int
    steps_s: tuple[float, ...]  # seconds of each rank's last step
    is_used: bool  # a worker has sent a message

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> State | None:
        """From the JSON object at /; None where it is something else."""
        try:
            steps_s = tuple(float(row[2]) for row in said["records"])
            is_used = any(row[2] or row[3] for row in said["records"])
            state = cls(int(said["num_workers"]), int(said["t"]), steps_s, is_used)
        except (LookupError, TypeError, ValueError, OverflowError):
            return None
        return state if all(map(math.isfinite, steps_s)) else None


class Holds(Enum):
    """The owner of the server's job."""

    OURS, NONE, ANOTHER = range(3)


def holds(state: State | None, num_workers: int, round_: int) -> Holds:
    """The owner of a state's job, for a worker in `round_`: others of its job are one round ahead at most."""
    if state is None:
        return Holds.NONE
    if state.num_workers == len(state.steps_s) == num_workers and state.round <= round_ + 1:
        return Holds.OURS
    return Holds.ANOTHER if state.is_used else Holds.NONE


class PublishedLink:
    """One worker's messages as forms. Fields that the forms lack are dropped."""

    def __init__(self, http: HttpLink, clock: Clock, num_workers: int) -> None:
        self.address = http.address
        self._http = http
        self._clock = clock
        self._num_workers = num_workers
        self._is_known = False  # the job on the server
        self._lock = threading.Lock()  # held during a request, as none of the clock's may be
        self._at = (0, 0)  # round and local steps of the latest message
        self._entered = 0  # the round that the server knows; 0: perhaps none
        self._began = self._look_at = 0.0  # of this round; and time of the next check of the state

    @property
    def round_trip_s(self) -> float:
        return self._http.round_trip_s

    def send(self, message: Message, timeouts: Timeouts) -> Reply:
        """Raises PeerLost where the server answers as no published one does, or has another job."""
        ready = False
        try:
            with self._lock:
                if self._is_known or self._begin(message, timeouts):
                    send = self._ask if message["msg_type"] == "QUERY" else self._report
                    ready = send(message["status"], timeouts)
        except NoAnswer:
            self._entered = 0  # the next answer may come from another process
            raise
        return Reply(200, {"msg_type": "RESPONSE", "action": "SYNC" if ready else "TRAIN"})

    def _begin(self, message: Message, timeouts: Timeouts) -> bool:
        """Returns whether the server has the job now. Rank 0 begins it; after a loss the first worker that notices."""
        status, settings, was_there = message["status"], message["settings"], self._at[0] > 0
        state = self._state(timeouts)
        held = self._holds(state) if was_there else holds(state, self._num_workers, status["round"])
        self._is_known = held is Holds.OURS and (was_there or status["rank"] > 0)
        if not self._is_known and (was_there or not status["rank"]):
            self._post("/init/", {"num_workers": settings["num_workers"], "epsilon": settings["epsilon"]}, timeouts)
            self._is_known = True
        return self._is_known

    def _report(self, status: Message, timeouts: Timeouts) -> bool:
        is_timed = self._entered > 0 and not status["local_iteration"]
        if self._enter(status, timeouts) and not is_timed:  # the others' first questions need a step time
            self._apply(status, timeouts)
        return False

    def _ask(self, status: Message, timeouts: Timeouts) -> bool:
        at = (status["round"], status["local_iteration"])
        if at < self._at:
            return False
        self._enter(status, timeouts)
        ready = self._apply(status, timeouts)
        self._at = at  # only after the answer: concurrent messages wait for it
        return ready or self._has_waited_long(timeouts)

    def _enter(self, status: Message, timeouts: Timeouts) -> bool:
        """Tells the server of the round; returns whether it was new to the server."""
        round_ = status["round"]
        if round_ <= self._entered or round_ < self._at[0]:
            return False
        if round_ > self._at[0]:
            self._at, self._began = (round_, 0), self._clock.now()
            self._look_at = self._began + SILENCE_S
        self._post("/reset/", {"r": status["rank"], "t": round_, "te": status["timestamp"]}, timeouts)
        self._entered = round_
        return True

    def _apply(self, status: Message, timeouts: Timeouts) -> bool:
        """Asks. Before the first local step of a round the server notes the last step time, and is never ready."""
        form = {"r": status["rank"], "k": status["local_iteration"], "c": status["computation_time"]}
        reply = self._post("/apply/", {**form, "te": status["timestamp"]}, timeouts)
        ready = reply.said.get("ready")
        if type(ready) is not int or ready not in (0, 1):
            raise self._unfit("/apply/", reply)
        return ready == 1

    def _has_waited_long(self, timeouts: Timeouts) -> bool:
        """Whether to aggregate without READY from the server."""
        now = self._clock.now()
        if now < self._look_at:
            return False
        state = self._state(timeouts)
        self._holds(state)
        slowest_s = max(state.steps_s if state else (), default=0.0)
        self._look_at = self._began + max(SILENCE_S, SILENCE_STEPS * slowest_s)
        if now < self._look_at:
            return False
        logging.warning(
            "round %d: the state server at %s has not said ready for %.0f s; this worker aggregates without that",
            self._at[0], self.address, now - self._began,
        )  # fmt: skip
        return True

    def _post(self, path: str, form: Message, timeouts: Timeouts) -> Reply:
        reply = self._http.post(path, timeouts, form)
        if reply.status == 200:
            return reply
        if reply.status < 500:
            raise self._unfit(path, reply)
        self._is_known = path != "/init/" and self._holds(self._state(timeouts)) is not Holds.NONE
        raise NoAnswer(f"{reply.status}: {reply.in_short}")

    def _state(self, timeouts: Timeouts) -> State | None:
        return State.read(self._http.get("/", timeouts).said)

    def _holds(self, state: State | None) -> Holds:
        held = holds(state, self._num_workers, self._at[0])
        if held is Holds.ANOTHER:
            raise PeerLost(
                f"the published state server at {self.address} has lost this job: another one has begun there, or it "
                "was restarted; give each job a server of its own, or start this project's with "
                "scripts/state_server.sh"
            )
        return held

    def _unfit(self, path: str, reply: Reply) -> PeerLost:
        return PeerLost(
            f"{self.address} does not answer as a published state server does: {path} gets {reply.status} "
            f"{reply.in_short!r}; start this project's with scripts/state_server.sh"
        )
