"""Rendezvous of the workers of a job without a parameter server: each asks the state server until all are there.

The answer has the worker's rank and the addresses of all (SimpleStateServer/server/membership.py). A worker that leaves
tells so, and learns why the job broke: of many workers that end at once, one was the first.
"""

from __future__ import annotations

import hashlib
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from trainer.clock import Clock
from trainer.coordinator.asker import Asker, Refused
from trainer.coordinator.protocol import BRIEF, PATIENT, Link, Message, NoAnswer, Timeouts
from utils import JobOver, PeerLost, SetupError, authority, printable

PAUSE_S = 0.1  # between two questions
SHORT_PAUSE_S = 0.02  # where a running job waits for the answer
SHARE = 0.05  # a pause as part of the time waited so far, between these two
TEST_AGAIN_S = 1.0  # between two calls of the same worker
REMIND_EVERY_S = 15.0


class Peer(NamedTuple):
    """A worker of the job."""

    name: str  # on the state server
    address: str
    port: int
    host: str
    device: str

    def called(self, rank: int) -> str:
        return f"worker {rank} ({self.device} on host {self.host}, {authority(self.address, self.port)})"


@dataclass(frozen=True)
class Start:
    """A worker's place among the others.

    Attributes:
        generation: how many times workers of this job have started.
        members: of all workers, by rank.
        calls: ranks of pairs in which the first one calls; in the others the higher rank does.
        others_wait: not all could take part.
    """

    generation: int
    rank: int
    members: tuple[Peer, ...]
    calls: frozenset[tuple[int, int]] = frozenset()
    others_wait: bool = False

    @property
    def secret(self) -> str:
        """Known to these workers alone, unless their traffic is read."""
        names = " ".join([str(self.generation), *(member.name for member in self.members)])
        return hashlib.sha256(names.encode()).hexdigest()

    def to_wire(self) -> Message:
        """The fields of JOIN and BEAT that tell a worker's place."""
        return {"generation": self.generation, "rank": self.rank, "members": [list(member) for member in self.members]}

    @classmethod
    def from_answer(cls, said: Mapping[str, Any]) -> Start:
        calls = frozenset((caller, called) for caller, called in said.get("calls", ()))
        members = tuple(Peer(*member) for member in said["members"])
        return cls(said["generation"], said["rank"], members, calls, bool(said.get("others")))


Call = Callable[[Peer], bool]  # calls a worker; returns whether it answers


class _Tests:
    """Calls other workers beside the wait for them, again and again."""

    def __init__(self, clock: Clock, call: Call) -> None:
        self._clock = clock
        self._call = call
        self._due: dict[str, float] = {}  # when the next call of each worker is; infinite while one is under way
        self._answers: dict[str, bool] = {}  # whether it has answered the last one

    def begin(self, others: Iterable[Peer]) -> None:
        for other in others:
            if self._due.get(other.name, 0.0) <= self._clock.now():
                self._due[other.name] = math.inf
                self._clock.start(partial(self._test, other), f"test of {other.name}")

    def _test(self, other: Peer) -> None:
        self._answers[other.name] = self._call(other)
        self._due[other.name] = self._clock.now() + TEST_AGAIN_S

    def to_wire(self) -> Message:
        """The fields of JOIN that tell what was found."""
        found = list(self._answers.items())
        return {"reached": [one for one, yes in found if yes], "unreached": [one for one, yes in found if not yes]}


class Joining:
    """One worker's client of the rendezvous on the state server.

    Args:
        job: its name, the same for all its workers.
        address: host and port at which this worker listens.
    """

    def __init__(
        self,
        link: Link,
        clock: Clock,
        job: str,
        num_workers: int,
        address: tuple[str, int],
        host: str,
        device: str,
        min_workers: int = 0,
        patience_s: float = 0.0,
        call: Call | None = None,
    ) -> None:
        """
        Args:
            min_workers: the least number of workers with which the job continues; 0: it ends with the first loss.
            patience_s: after which a worker that does not come back counts as lost.
            call: tests whether another worker is reached; None: all are.
        """
        self._call = call
        self._link = link
        self._asker = Asker(link, clock, self._complete)
        self._survives = {"min_workers": min_workers, "patience": patience_s} if min_workers else {}
        self._clock = clock
        self._num_workers = num_workers
        self._job = job
        self.name = f"worker-{secrets.token_hex(8)}"
        self._address, self._port = address
        self._device = {"host": host, "device": device}
        self.patience_s = patience_s

    def wait(self, timeout_s: float) -> Start:
        """Waits until all workers are there.

        Args:
            timeout_s: 0: for ever.

        Raises:
            SetupError: the state server refuses this worker.
            PeerLost: they were not all there in time.
            JobOver: the job has ended.
        """
        return self._until_start(timeout_s, PAUSE_S, dict, ())

    def come_back(self, before: Start, lost: Callable[[], Sequence[int]]) -> Start:
        """Waits for the remaining workers and the newcomers; otherwise as `wait`.

        Args:
            before: this worker's last place.
            lost: returns the ranks of the workers there that are seen to be gone.
        """
        others = [member for member in before.members if member.name != self.name]
        return self._until_start(0.0, SHORT_PAUSE_S, lambda: {**before.to_wire(), "lost": list(lost())}, others)

    def beat(self, place: Start, knows: bool = False) -> str | None:
        """Tells that the job is running; returns the state server's call: PAUSE for others that can take part, WAIT
        where others cannot, or nothing. None: there is no answer.

        Args:
            knows: the last call was one of these.
        """
        try:
            said = self._ask({"msg_type": "BEAT", "knows": knows, **place.to_wire()}, BRIEF)
        except NoAnswer:
            return None
        return str(said.get("action", ""))

    def _until_start(
        self, timeout_s: float, pause_s: float, about: Callable[[], Message], others: Iterable[Peer]
    ) -> Start:
        begin = reminded = self._clock.now()
        tests = _Tests(self._clock, self._call) if self._call is not None else None
        if tests is not None:
            tests.begin(others)
        waits_for = ""
        while True:
            try:
                said = self._ask(
                    {
                        "msg_type": "JOIN",
                        "num_workers": self._num_workers,
                        "address": self._address,
                        "port": self._port,
                        "device": self._device,
                        **self._survives,
                        **about(),
                        **({} if tests is None else tests.to_wire()),
                    },
                    PATIENT,
                )
            except NoAnswer as trouble:
                said = {"reason": f"the state server at {self._link.address} {trouble}"}
            if said.get("action") == "START":
                return Start.from_answer(said)
            if said.get("action") == "OVER":
                raise JobOver(str(said["reason"]))
            now, before, waits_for = self._clock.now(), waits_for, str(said["reason"])
            if timeout_s and now - begin > timeout_s:
                self.leave()
                raise PeerLost(f"the job was not complete after {timeout_s:g} s (--start-timeout): {waits_for}")
            if waits_for != before or now - reminded > REMIND_EVERY_S:
                logging.info("waiting for the other workers: %s", waits_for)
                reminded = now
            if tests is not None:
                tests.begin(Peer(*other) for other in said.get("others", ()))
            self._clock.sleep(min(PAUSE_S, max(pause_s, SHARE * (now - begin))))

    def leave(self, lost: Sequence[int] = (), cause: str = "") -> str:
        """Tells, once and without patience, that this worker leaves; returns the state server's reason, or nothing.

        Args:
            lost: ranks of the workers whose loss is the cause.
            cause: its own error, if that is the cause.
        """
        try:
            said = self._ask({"msg_type": "LEFT", "lost": list(lost), "cause": printable(cause)}, BRIEF)
        except (NoAnswer, SetupError):
            return ""
        return str(said.get("reason", ""))

    def _ask(self, message: Message, timeouts: Timeouts) -> Mapping[str, Any]:
        """The answer to a message; raises NoAnswer, or SetupError where the state server refuses it."""
        try:
            return self._asker.try_once(message, timeouts)
        except Refused as error:
            raise SetupError(str(error)) from None

    def _complete(self, message: Message) -> Message:
        return {"sender": self.name, "receiver": "state-server", "job": self._job, **message}
