"""Rendezvous of the workers of a job without a parameter server: each asks the state server until all are there.

The answer has the worker's rank and the addresses of all (SimpleStateServer/server/membership.py). A worker that leaves
tells so, and learns why the job broke: of many workers that end at once, one was the first.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from trainer.clock import Clock
from trainer.coordinator.asker import Asker, Refused
from trainer.coordinator.protocol import BRIEF, PATIENT, Link, Message, NoAnswer, Timeouts
from utils import JobOver, PeerLost, SetupError, authority, printable

PAUSE_S = 0.1  # between two questions
SHORT_PAUSE_S = 0.02  # where a running job waits for the answer
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
    """

    generation: int
    rank: int
    members: tuple[Peer, ...]

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
        return cls(said["generation"], said["rank"], tuple(Peer(*member) for member in said["members"]))


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
    ) -> None:
        """
        Args:
            min_workers: the least number of workers with which the job continues; 0: it ends with the first loss.
            patience_s: after which a worker that does not come back counts as lost.
        """
        self._link = link
        self._asker = Asker(link, clock, self._complete)
        self._survives = {"min_workers": min_workers, "patience": patience_s} if min_workers else {}
        self._clock = clock
        self._num_workers = num_workers
        self._job = job
        self._name = f"worker-{secrets.token_hex(8)}"
        self._address, self._port = address
        self._device = {"host": host, "device": device}

    def wait(self, timeout_s: float) -> Start:
        """Waits until all workers are there.

        Args:
            timeout_s: 0: for ever.

        Raises:
            SetupError: the state server refuses this worker.
            PeerLost: they were not all there in time.
            JobOver: the job has ended.
        """
        return self._until_start(timeout_s, PAUSE_S, dict)

    def come_back(self, before: Start, lost: Callable[[], Sequence[int]]) -> Start:
        """Waits for the remaining workers and the newcomers; otherwise as `wait`.

        Args:
            before: this worker's last place.
            lost: returns the ranks of the workers there that are seen to be gone.
        """
        return self._until_start(0.0, SHORT_PAUSE_S, lambda: {**before.to_wire(), "lost": list(lost())})

    def beat(self, place: Start) -> bool:
        """Tells that the job is running; returns whether workers wait to take part in it."""
        try:
            return self._ask({"msg_type": "BEAT", **place.to_wire()}, BRIEF).get("action") == "PAUSE"
        except NoAnswer:
            return False

    def _until_start(self, timeout_s: float, pause_s: float, about: Callable[[], Message]) -> Start:
        begin = reminded = self._clock.now()
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
            self._clock.sleep(pause_s)

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
        return {"sender": self._name, "receiver": "state-server", "job": self._job, **message}
