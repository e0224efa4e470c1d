"""A process's side of the rendezvous: it asks until all are there, agree, and reach those that it has to.

It asks the state server or, where MXNet connects the processes, the scheduler (rendezvous_client.py). The answer has
the addresses of all (SimpleStateServer/server/rendezvous/membership.py). A worker that leaves tells so, and learns why
the job broke: of many workers that end at once, one was the first.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from esync.clock import Clock
from esync.protocol import BRIEF, PATIENT, Link, Message, NoAnswer, Refused, Timeouts, try_once
from server.messages import Member, Place
from utils import JobOver, PeerLost, SetupError, printable

PAUSE_S = 0.1  # between two questions
SHORT_PAUSE_S = 0.02  # likewise, at first
SHARE = 0.05  # a pause as part of the time since the last news, between these two
TEST_AGAIN_S = 1.0  # between two calls of the same worker
REMIND_EVERY_S = 15.0


class Start(Place, frozen=True):
    """The answer START: a worker's place among the others."""

    # Ranks of pairs in which the first one calls; in the others the higher rank does
    calls: frozenset[tuple[int, int]] = frozenset()

    @property
    def names(self) -> list[str]:
        """Of all workers by rank, for messages."""
        return [member.called(rank) for rank, member in enumerate(self.members)]

    @property
    def places(self) -> tuple[str, ...]:
        """As Membership.places."""
        return tuple(f"{member.device} on host {member.host}" for member in self.members)

    def to_wire(self) -> Message:
        """The fields of JOIN and BEAT that tell a worker's place."""
        members = [msgspec.structs.astuple(member)[:-1] for member in self.members]  # all are workers
        place = {"generation": self.generation, "rank": self.rank, "members": members}
        return {**place, "id": self.id, "lineage": self.lineage}


Call = Callable[[Member], str]  # calls a process; returns why it does not answer, in words; empty: it does
Ranks = Callable[[], Sequence[int]]


class _Tests:
    """Calls other workers beside the wait for them, again and again."""

    def __init__(self, clock: Clock, call: Call) -> None:
        self._clock, self._call = clock, call
        self._answers: dict[str, str] = {}  # to the last call of each: why there was none
        self._due: dict[str, float] = {}  # when the next call of each is; infinite while one is under way

    def begin(self, others: Iterable[Member]) -> None:
        for other in others:
            if self._due.get(other.name, 0.0) <= self._clock.now():
                self._due[other.name] = math.inf
                self._clock.start(partial(self._test, other), f"test of {other.name}")

    def _test(self, other: Member) -> None:
        self._answers[other.name] = self._call(other)
        self._due[other.name] = self._clock.now() + TEST_AGAIN_S

    def to_wire(self) -> Message:
        """The fields of JOIN that tell what was found."""
        found = dict(self._answers)
        return {
            "reached": [one for one, why in found.items() if not why],
            "unreached": {one: why for one, why in found.items() if why},
        }


@dataclass
class Joining:
    """One process's client of the rendezvous; `name` is that of the process."""

    link: Link
    clock: Clock
    job: str  # its name, the same for all its processes
    about: Message  # fields of Join that tell of this process; the link may add others
    call: Call | None = None  # tests whether another one is reached; None: all are
    server: str = "the state server"  # that it asks, in words
    hint: str = ""  # what a reminder of the wait adds; empty: nothing, and news of the wait are logged too
    launched: str = ""  # what the launcher calls the process, as in server.messages.Launched
    _is_refused = False  # the last BEAT that was answered

    def __post_init__(self) -> None:
        self.name = f"{self.about.get('role', 'worker')}-{self.launched or secrets.token_hex(8)}"

    def wait(self, timeout_s: float, before: Start | None = None, lost: Ranks = tuple, heard: Ranks = tuple) -> Start:
        """Waits until all workers are there, `timeout_s` seconds at most; 0: for ever. Raises SetupError where the
        state server refuses this worker, PeerLost where they were not all there in time, JobOver where the job has
        ended.

        A worker that comes back tells its last place, `before`, and waits also where it is refused, since it has
        trained. `lost` returns the ranks of the workers there that are seen to be gone, `heard` of those that this one
        hears."""
        begin = changed = reminded = self.clock.now()
        tests = _Tests(self.clock, self.call) if self.call is not None else None
        waits_for = ""
        while True:
            message = {"msg_type": "JOIN", **self.about}
            if before is not None:
                message |= {**before.to_wire(), "lost": list(lost()), "heard": list(heard())}
            if tests is not None:
                message |= tests.to_wire()
            try:
                said = self._ask(message, PATIENT)
            except NoAnswer as trouble:
                said = {"reason": f"{self.server} at {self.link.address} {trouble}"}
            except Refused as refusal:
                said = {"action": "REFUSED", "reason": str(refusal)}
            waited_for, waits_for = waits_for, str(said["reason"])
            match said.get("action"):
                case "START":
                    return msgspec.convert(said, Start)
                case "OVER":
                    raise JobOver(waits_for)
                case "REFUSED" if before is None:
                    raise SetupError(waits_for)
            now = self.clock.now()
            if timeout_s and now - begin > timeout_s:
                self.leave()
                raise PeerLost(f"the job was not complete after {timeout_s:g} s (--start-timeout): {waits_for}")
            changed = now if waits_for != waited_for else changed
            if (not self.hint and now == changed) or now - reminded > REMIND_EVERY_S:
                logging.info("waiting for the others: %s%s", waits_for, self.hint)
                reminded = now
            if tests is not None:
                tests.begin(msgspec.convert(said.get("others", ()), tuple[Member, ...]))
            self.clock.sleep(min(PAUSE_S, max(SHORT_PAUSE_S, SHARE * (now - changed))))

    def beat(self, place: Start) -> str:
        """Tells that the job is running; returns the state server's call: PAUSE for others that can take part, REGROUP
        where this worker's generation is not the newest, or nothing, as where it does not answer or refuses."""
        about = {"setup": self.about.get("setup", {}), **place.to_wire()}
        try:
            said = self._ask({"msg_type": "BEAT", **about}, BRIEF)
        except NoAnswer:
            return ""
        except Refused as error:
            if not self._is_refused:
                logging.warning("warning: %s; training goes on, and no other worker can join it meanwhile", error)
            self._is_refused = True
            return ""
        self._is_refused = False
        return str(said.get("action", ""))

    def need_no_others(self) -> None:
        """From here on this process does not wait for --min-workers."""
        self.about = {**self.about, "min_workers": 1}

    def leave(self, lost: Sequence[int] = (), cause: str = "") -> str:
        """Tells, once and without patience, that this worker leaves; returns the state server's reason, or nothing. The
        cause is the loss of the workers of these ranks, or `cause`, its own error."""
        try:
            said = self._ask({"msg_type": "LEFT", "lost": list(lost), "cause": printable(cause)}, BRIEF)
        except (NoAnswer, Refused, SetupError):
            return ""
        return str(said.get("reason", ""))

    def _ask(self, message: Message, timeouts: Timeouts) -> Mapping[str, Any]:
        """The answer to a message; raises NoAnswer, or Refused where the state server refuses it."""
        whole = {"sender": self.name, "receiver": "state-server", "job": self.job, **message}
        return try_once(self.link, whole, timeouts)
