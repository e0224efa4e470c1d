"""The four messages of the journal paper, as the handlers get them, and three of this project's own.

Source: Li et al., IEEE TSC 15(4), 2022, doi 10.1109/TSC.2020.3044043. What can be said beside the paper's fields (a
title, limits, totals, an evaluation) is optional. `wire.py` makes these of JSON, `published.py` of forms. By JOIN, BEAT
and LEFT the workers of a job without a parameter server find each other, again and again (membership.py).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

STATE_SERVER = "state-server"

MAX_WORKERS = 100_000
MAX_MEMBERS = 1_000  # workers that sum among themselves: each is connected with each other
MAX_SECONDS = 1e6
MAX_COUNT = 10**9
MAX_SUM = 10**15  # of samples or steps since a job began
MAX_ELAPSED_S = 1e9
MAX_REASON = 200  # characters of a reason
MAX_GENERATION = 10**6
MAX_CAUSE = 1_000  # characters of an error that ended a worker
MAX_ACCURACIES = 400  # points of an accuracy curve


class MessageType(str, enum.Enum):
    """RESET starts a job, REPORT enters a round, QUERY asks what to do next; JOIN asks for the other workers, BEAT
    whether more of them wait, LEFT says that this one is gone; RESPONSE is the answer to each."""

    RESET = "RESET"
    REPORT = "REPORT"
    QUERY = "QUERY"
    JOIN = "JOIN"
    BEAT = "BEAT"
    LEFT = "LEFT"
    RESPONSE = "RESPONSE"


INCOMING = tuple(kind.value for kind in MessageType if kind is not MessageType.RESPONSE)  # to the state server


class Action(str, enum.Enum):
    """What a worker does next: another local step, or the aggregation."""

    TRAIN = "TRAIN"
    SYNC = "SYNC"


ACTIONS = tuple(action.value for action in Action)


class Call(str, enum.Enum):
    """What a worker that has joined does next: ask again in a while, connect with the others, come back at the end of
    the round since others wait, or end: the job has."""

    WAIT = "WAIT"
    START = "START"
    PAUSE = "PAUSE"
    OVER = "OVER"


class Doing(str, enum.Enum):
    """What a worker says that it does: computes local steps, evaluates the model, or has left the job in order."""

    TRAINING = "training"
    EVALUATING = "evaluating"
    ENDED = "ended"


DOINGS = tuple(doing.value for doing in Doing)


@dataclass(frozen=True, slots=True)
class Device:
    """Where a worker runs, for people who watch the job."""

    host: str = ""
    device: str = ""


@dataclass(frozen=True, slots=True)
class Status:
    """Progress of one worker.

    Attributes:
        rank: k, from 0.
        local_iteration: i_k, local steps done in this round.
        round: r_k, from 1; None from a published worker, which means the round that it is known to be in.
        computation_time: c_k, seconds of the last local step; None while not known.
        transmission_time: m_k, seconds to push one model update; None where nothing was measured.
    """

    rank: int
    local_iteration: int = 0
    round: int | None = None
    computation_time: float | None = None
    transmission_time: float | None = None


@dataclass(frozen=True, slots=True)
class Total:
    """What a worker has done since its job began.

    Attributes:
        steps: local steps.
        samples: samples that it has trained on.
        computing: seconds of these steps, without any wait.
    """

    steps: int
    samples: int
    computing: float


@dataclass(frozen=True, slots=True)
class Limits:
    """When a job will end, as far as that is known; None: not by this.

    Attributes:
        rounds: after so many.
        seconds: after so long.
        accuracy: at this test accuracy.
    """

    rounds: int | None = None
    seconds: float | None = None
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """Starts a job: round 1 and an empty record for each rank.

    Attributes:
        sender: name of the worker that starts it.
        job: its id.
        num_workers: N.
        policy: name of the rule.
        epsilon: seconds; read by the preprint's policy only.
        resumed: the job is in full swing, and it is this server that is new to it.
        title: what the page calls the algorithm; empty: as the policy says.
        limits: when the job will end.
        published: it came from `POST /init/`, whose workers name no job.
        batch_size: samples of each worker's batch at first, of a job whose rule decides on batch sizes.
        generation: of the job's workers, where some were lost or have come since it began: the job goes on with these.
    """

    sender: str
    job: str
    num_workers: int
    policy: str
    epsilon: float
    resumed: bool = False
    title: str = ""
    limits: Limits = Limits()
    published: bool = False
    batch_size: int | None = None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """What REPORT and QUERY have in common.

    Attributes:
        sender: name of the worker; the answer goes to it.
        job: id of the worker's job; None from a published worker, which means the one that `/init/` began.
        status: the worker's progress.
        device: where it runs, when it says so.
        samples: samples of one local step, when it says so.
        accuracy: its latest test accuracy, when it has one.
        elapsed: seconds since its job began, when it says so.
        total: what it has done since then, when it says so.
        way: how the job goes on where that changes: "BSP" or "ASP" under Sync-Switch.
        generation: in which the worker has its rank.
    """

    sender: str
    job: str | None
    status: Status
    device: Device | None = None
    samples: int | None = None
    accuracy: float | None = None
    elapsed: float | None = None
    total: Total | None = None
    way: str | None = None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Report(WorkerMessage):
    """A worker has pulled the model and enters a round, or says what it does in it.

    Attributes:
        doing: what it does now.
        decision: what somebody else has decided, who is where the uploads are, and why: what this worker does after the
            steps of the round, or, where it tells of none yet, what ended the round before.
        accuracies: (round, seconds since the job began, test accuracy) of all that it has measured, for a server that
            was restarted; None from who does not evaluate.
    """

    doing: Doing = Doing.TRAINING
    decision: tuple[Action, str] | None = None
    accuracies: tuple[tuple[int, float, float], ...] | None = None


@dataclass(frozen=True, slots=True)
class Query(WorkerMessage):
    """A worker has done a local step and asks for its next action."""


@dataclass(frozen=True, slots=True)
class Member:
    """A worker among those that sum among themselves.

    Attributes:
        name: the sender of its messages, drawn when its process started.
        address: host at which it listens to the others.
        port: likewise.
        device: where it runs.
    """

    name: str
    address: str
    port: int
    device: Device = Device()


@dataclass(frozen=True, slots=True)
class Place:
    """A worker's place among those that sum among themselves.

    Attributes:
        generation: how many times workers of this job have started.
        rank: of the worker.
        members: all of them, by rank.
    """

    generation: int
    rank: int
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A worker is there, and asks for the others of its job. It asks again until it is told to start.

    Attributes:
        job: the name that the user gave it.
        num_workers: N, of the workers that begin it.
        min_workers: with so many left it goes on; None: it ends with the first worker that is lost.
        patience: seconds after which a worker that does not come back as the others do counts as lost.
        before: the place from which this worker comes; None where it had none yet.
        lost: ranks of the workers there that it has seen to be gone.
    """

    member: Member
    job: str
    num_workers: int
    min_workers: int | None = None
    patience: float = 0.0
    before: Place | None = None
    lost: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Beat:
    """A job is at work: rank 0 says so, and hears whether somebody waits to take part in it.

    Attributes:
        before: this worker's place.
    """

    sender: str
    job: str
    before: Place


@dataclass(frozen=True, slots=True)
class Left:
    """A worker has left its job, or does not wait for it any more.

    Attributes:
        sender: name of the worker.
        lost: ranks whose connections have ended, where it leaves for that.
        cause: the error for which it leaves, where there is one of its own.
    """

    sender: str
    job: str
    lost: tuple[int, ...] = ()
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """The state server's answer; it has an action only where the message was a QUERY or a JOIN.

    Attributes:
        batch_size: samples of the worker's batches from the next round on, where the job's rule decides on that and
            knows what it must.
        place: where the action is START.
    """

    receiver: str
    job: str
    reason: str
    action: Action | Call | None = None
    batch_size: int | None = None
    place: Place | None = None

    def to_wire(self, server: str) -> dict[str, Any]:
        """The answer as the JSON object that is sent.

        Args:
            server: drawn when this server started, so that a worker knows a restarted one.
        """
        wire: dict[str, Any] = {
            "msg_type": MessageType.RESPONSE.value,
            "sender": STATE_SERVER,
            "receiver": self.receiver,
            "job": self.job,
        }
        if self.action is not None:
            wire["action"] = self.action.value
        if self.batch_size is not None:
            wire["batch_size"] = self.batch_size
        if self.place is not None:
            members = [
                [member.name, member.address, member.port, member.device.host, member.device.device]
                for member in self.place.members
            ]
            wire |= {"generation": self.place.generation, "rank": self.place.rank, "members": members}
        wire["reason"] = self.reason
        wire["server"] = server
        return wire
