"""The four messages of the journal paper, and three of this project's own, with the bounds of their fields.

Source: Li et al., IEEE TSC 15(4), 2022, doi 10.1109/TSC.2020.3044043. Fields that the paper does not have (a title,
limits, totals, an evaluation) are optional. `wire.py` reads messages from JSON, `receiver.py` from forms; only these
check the bounds. JOIN, BEAT and LEFT are those of the rendezvous, and also come to the scheduler (rendezvous/).
"""

from __future__ import annotations

import enum
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, get_args

from msgspec import Meta, Struct, to_builtins

from server.errors import BadMessage
from server.policies import POLICIES
from server.row import Action, Activity, Decision, Device, check_text

STATE_SERVER = "state-server"

MAX_WORKERS = 100_000
MAX_MEMBERS = 1_000  # workers that sum among themselves: each is connected with each other
MAX_SETUP = 1_000  # flags and variables that processes compare
MAX_SECONDS = 1e6
MAX_COUNT = 10**9
MAX_SUM = 10**15  # of samples or steps since a job began
MAX_ELAPSED_S = 1e9
MAX_REASON = 200  # characters of a reason
MAX_GENERATION = 10**6
MAX_CAUSE = 1_000  # characters of an error that ended a worker
MAX_POINTS = 400  # of a curve
MAX_EVENTS, MAX_TEXT = 50, 200  # events in a message, characters of a text
MAX_VALUE = 10_000  # characters of a flag's value


def _whole(minimum: int, maximum: int) -> Meta:
    return Meta(ge=minimum, le=maximum, description=f"a whole number from {minimum} to {maximum}")


def _number(minimum: float, maximum: float) -> Meta:
    return Meta(ge=minimum, le=maximum, description=f"a number from {minimum:g} to {maximum:g}")


def _text(letters: str, description: str) -> Meta:
    return Meta(pattern=rf"\A{letters}\Z", description=description)


def _many(most: int, what: str) -> Meta:
    return Meta(max_length=most, description=f"at most {most} {what}")


Name = Annotated[str, _text(r"[A-Za-z0-9._-]{1,64}", "1 to 64 characters out of A-Z, a-z, 0-9, '.', '_' and '-'")]
Address = Annotated[
    str, _text(r"[A-Za-z0-9._:-]{1,64}", "an IPv4 or IPv6 address or a host's name, of 1 to 64 characters")
]
Id = Annotated[str, _text(r"[0-9a-f]{0,16}", "at most 16 digits from 0 to f")]
MetricName = Annotated[
    str,
    _text(r"(?=\S)[A-Za-z0-9 _.@()%/+-]{1,40}(?<=\S)", "1 to 40 characters out of A-Z, a-z, 0-9, ' ' and '_.-@()%/+'"),
]
NumWorkers = Annotated[int, _whole(1, MAX_WORKERS)]
NumServers = Annotated[int, _whole(0, MAX_WORKERS)]
NumMembers = Annotated[int, _whole(1, MAX_MEMBERS)]
Rank = Annotated[int, _whole(0, MAX_WORKERS - 1)]
MemberRank = Annotated[int, _whole(0, MAX_MEMBERS - 1)]
Generation = Annotated[int, _whole(1, MAX_GENERATION)]
Port = Annotated[int, _whole(1, 65535)]
Count = Annotated[int, _whole(0, MAX_COUNT)]
Positive = Annotated[int, _whole(1, MAX_COUNT)]
Sum = Annotated[int, _whole(0, MAX_SUM)]
Seconds = Annotated[float, _number(0, MAX_SECONDS)]
Elapsed = Annotated[float, _number(0, MAX_ELAPSED_S)]
Share = Annotated[float, _number(0, 1)]
Finite = Annotated[
    float, Meta(ge=-sys.float_info.max, le=sys.float_info.max, description="a finite number, or leave it out")
]
Anchor = Annotated[Count | Literal["auto"], Meta(description=f"a whole number from 0 to {MAX_COUNT}, or auto")]
Role = Annotated[Literal["scheduler", "server", "worker"], Meta(description="one of scheduler, server, worker")]
PolicyName = Annotated[str, _text(f"({'|'.join(POLICIES)})", f"one of {', '.join(POLICIES)}")]
Ranks = Annotated[tuple[Rank, ...], Meta(max_length=MAX_WORKERS, description="a list of ranks of this job")]
_RANKS = f"a list of ranks from 0 to {MAX_MEMBERS - 1}, each once"
MemberRanks = Annotated[tuple[MemberRank, ...], Meta(max_length=MAX_MEMBERS, description=_RANKS)]
Numbers = Annotated[tuple[Count, ...], _many(MAX_MEMBERS, "whole numbers")]
Names = Annotated[tuple[Name, ...], _many(MAX_WORKERS, "names")]
Reasons = Annotated[dict[Name, str], _many(MAX_WORKERS, f"texts of {MAX_TEXT} printable characters at most, by name")]
Setup = Annotated[dict[str, str], _many(MAX_SETUP, f"texts of {MAX_VALUE} printable characters at most, by name")]
Accuracies = Annotated[
    tuple[tuple[Count, Elapsed, Share], ...], _many(MAX_POINTS, "lists of round, seconds and accuracy from 0 to 1")
]
Values = Annotated[
    tuple[tuple[Count, Elapsed, Finite], ...], _many(MAX_POINTS, "lists of round, seconds and a finite number")
]
Events = Annotated[
    tuple[tuple[Count, Elapsed, str, str], ...], _many(MAX_EVENTS, "lists of round, seconds, kind and text")
]


class Call(str, enum.Enum):
    """What a process that has joined does next: ask again in a while, connect with the others, come back at the end of
    the round since others wait, come back at once since its generation is not the newest one, or end: the job has, or
    it cannot begin."""

    WAIT = "WAIT"
    START = "START"
    PAUSE = "PAUSE"
    REGROUP = "REGROUP"
    OVER = "OVER"
    REFUSED = "REFUSED"


class Status(Struct, frozen=True):
    """Progress of one worker."""

    rank: Rank  # k, from 0
    local_iteration: Count = 0  # i_k, local steps done in this round
    round: Positive | None = None  # r_k, from 1; None from a published worker: the round that it is known to be in
    computation_time: Seconds | None = None  # c_k, seconds of the last local step; None while not known
    transmission_time: Seconds | None = None  # m_k, seconds to push one model update; None where nothing was measured
    timestamp: Finite | None = None  # checked and not used: clocks of hosts differ


class Total(Struct, frozen=True):
    """A worker's work since its job began."""

    steps: Sum  # local steps
    samples: Sum  # samples that it has trained on
    computing: Elapsed  # seconds of these steps, without any wait


class Limits(Struct, frozen=True):
    """When a job will end, as far as that is known: after a number of rounds, after seconds, at a test accuracy, at a
    value of another metric. None: not by this."""

    rounds: Positive | None = None
    seconds: Elapsed | None = None
    accuracy: Share | None = None
    target: Finite | None = None


class Metric(Struct, frozen=True):
    """What a job's evaluations measure, where that is not the accuracy."""

    name: MetricName
    more_is_better: bool


class Incoming(Struct, frozen=True, tag_field="msg_type", tag=str.upper, kw_only=True):
    """A message to the state server; its tag is the class's name in capitals."""

    receiver: Annotated[Literal["state-server"], Meta(description=f"one of {STATE_SERVER}")] = "state-server"
    token: str = ""  # of the HTTP request, whatever the JSON says


class Settings(Struct, frozen=True):
    """What all workers of a job tell alike."""

    num_workers: NumWorkers  # N
    policy: PolicyName  # name of the rule
    epsilon: Seconds = 0.5  # seconds; read by the preprint's policy only
    resumed: Annotated[int, _whole(0, 1)] = 0  # 1: the job is running already; read by a server that is new to it
    title: str = ""  # what the page calls the algorithm; empty: as the policy says
    limits: Limits = Limits()  # when the job will end
    # Samples of each worker's batch at first, of a job whose rule decides on batch sizes
    batch_size: Positive | None = None
    generation: Generation = 1  # of the job's workers, which grows when workers are lost or come
    metric: Metric | None = None  # of its evaluations; None: accuracy
    anchor: Anchor = 0  # local steps of the straggler in a round; read by ESync's policies (anchor.py)

    def __post_init__(self) -> None:
        check_text("title", self.title, 80)
        self.check_kind(self.limits.accuracy, self.limits.target, ("accuracy", "target"))

    def check_kind(self, share: object, value: object, names: tuple[str, str]) -> None:
        """Raises BadMessage where a field for accuracies is given, and the job has another metric, or the reverse."""
        if self.metric is None and value is not None:
            raise BadMessage(f"field {names[1]!r} is for a job with a metric; give {names[0]!r}", names[1])
        if self.metric is not None and share is not None:
            raise BadMessage(f"field {names[0]!r} is for a job without a metric; give {names[1]!r}", names[0])


class Reset(Incoming, frozen=True):
    """Starts a job: round 1 and an empty record for each rank."""

    sender: Name  # name of the worker that starts it
    job: Name  # its id
    settings: Settings  # the other fields of the JSON object


class PublishedReset(Reset, frozen=True):
    """`POST /init/`: the published interface, whose workers name no job."""


class WorkerMessage(Incoming, frozen=True):
    """The fields that REPORT and QUERY have in common."""

    sender: Name  # name of the worker; the answer goes to it
    job: Name  # id of the worker's job
    status: Status  # the worker's progress
    settings: Settings | None = None  # of the job, which begins if it is not known; None: a RESET has told them
    lost: Ranks = ()  # the others go on without these workers
    device: Device | None = None  # where it runs
    samples: Count | None = None  # samples of one local step
    accuracy: Share | None = None  # its latest test accuracy
    value: Finite | None = None  # of the job's metric, where that is another one
    evaluated: Count | None = None  # after which round it was measured; None: after the one before this message's
    elapsed: Elapsed | None = None  # seconds since its job began
    total: Total | None = None  # its work since then
    way: str | None = None  # the mode that a Sync-Switch job is in: "BSP" or "ASP"
    loss: Finite | None = None  # mean of its last batches'
    events: Events = ()  # new ones, as (round, seconds since the job began, kind, text). Others may tell the same
    # (round, seconds since the job began, test accuracy) of evaluations: new ones, or all for a server that is new to
    # the worker; None from workers that do not evaluate
    accuracies: Accuracies | None = None
    values: Values | None = None  # likewise, of another metric

    def __post_init__(self) -> None:
        check_text("way", self.way, 16)
        if self.settings is not None and self.status.rank >= self.settings.num_workers:
            raise BadMessage.of_field("rank", self.status.rank, f"0 to {self.settings.num_workers - 1}")
        for *_, kind, text in self.events:
            check_text("events", kind, 16)
            check_text("events", text, MAX_TEXT)


class Report(WorkerMessage, frozen=True):
    """A worker has pulled the model and enters a round, or tells its state in the round."""

    doing: Activity = Activity.TRAINING  # its activity
    # Made by the server part on the hub: this worker's action after the steps of the round, or, before the
    # first step, the action that ended the round before
    decision: Decision | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decision is not None:
            check_text("reason", self.decision.reason, MAX_REASON)


class Query(WorkerMessage, frozen=True):
    """A worker has done a local step and asks for its next action."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.status.local_iteration > 0 and self.status.computation_time is None:
            raise BadMessage.of_field("computation_time", None, f"a number from 0 to {MAX_SECONDS:g}")


class Launched(NamedTuple):
    """What the name of a process that a launcher has started says. A launcher numbers its processes from 0, and starts
    one in another's place only once that has ended."""

    launcher: str  # drawn when it started
    number: int

    @classmethod
    def of(cls, name: str) -> Launched | None:
        """Of a process's name; None: no launcher has started it."""
        _, *found = name.split("-")
        return cls(found[0], int(found[1])) if len(found) == 2 and found[1].isdecimal() else None


class Member(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A process of a job: a worker among those that sum among themselves, or one that MXNet connects."""

    name: Name  # the sender of its messages, drawn when its process started
    address: Address  # host at which it listens to the others
    port: Port  # likewise
    host: str  # where it runs
    device: str  # likewise
    role: Role = "worker"

    def __post_init__(self) -> None:
        check_text("host", self.host)
        check_text("device", self.device)

    @property
    def place(self) -> str:
        """Where it listens, as "10.0.0.1:4711"."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    def called(self, rank: int | None = None) -> str:
        """For messages, such as "worker 2 (gpu0 on host b, 10.0.0.3:4711)"."""
        where = " on ".join(filter(None, (self.device, self.host and f"host {self.host}")))
        of_rank = "" if rank is None else f" {rank}"
        return f"{self.role}{of_rank} ({', '.join(filter(None, (where, self.place)))})"


_MEMBERS = f"1 to {MAX_MEMBERS} lists of name, address, port, host and device"
Members = Annotated[tuple[Member, ...], Meta(min_length=1, max_length=MAX_MEMBERS, description=_MEMBERS)]


class Place(Struct, frozen=True):
    """A worker's place among those that sum among themselves."""

    generation: Generation  # how many times workers of this job have started
    rank: MemberRank  # of the worker
    members: Members  # all of them, by rank
    # Of the generation: drawn when it began, since two could have one number; empty from a scheduler, which has one
    id: Id = ""
    lineage: Id = ""  # the id of the job's first generation

    def __post_init__(self) -> None:
        if self.rank >= len(self.members):
            raise BadMessage.of_field("rank", self.rank, f"a whole number from 0 to {len(self.members) - 1}")


class Join(Incoming, frozen=True):
    """A process is ready and asks for the others of its job; it repeats this until it is told to start."""

    sender: Name
    job: Name  # the name that the user gave it
    num_workers: NumWorkers  # N, of the workers that begin it
    address: Address  # host at which the process listens to the others
    port: Port  # likewise
    device: Device = Device()
    # The least number of workers with which the job continues; None: it ends with the first loss
    min_workers: NumMembers | None = None
    patience: Seconds = 0.0  # seconds after which a worker that does not come back as the others do counts as lost
    # With `rank` and `members`, the place from which this worker comes; 0: it had none yet
    generation: Annotated[int, _whole(0, MAX_GENERATION)] = 0
    rank: MemberRank | None = None
    members: Members | None = None
    lost: MemberRanks = ()  # ranks of the workers there that it has seen to be gone
    heard: MemberRanks = ()  # ranks of those there whose heartbeats it hears
    # Names of the workers that have answered its call since it left that place; None: it calls none, and reaches all
    reached: Names | None = None
    unreached: Reasons = {}  # those that have not, by name, and why
    id: Id = ""  # of the generation in `generation`
    lineage: Id = ""  # likewise
    # Numbers of the processes that this one's launcher had started before it, and had not seen end (Launched)
    living: Numbers = ()
    role: Role = "worker"
    num_servers: NumServers = 0  # parameter servers, of a job that MXNet connects; 0: it has none
    interface: str = ""  # the network card that chose the address; empty: none was given
    setup: Setup = {}  # what must be the same in all processes: flag or other key, and value

    def __post_init__(self) -> None:
        _check_unique("lost", self.lost)
        _check_unique("heard", self.heard)
        _check_setup(self.setup)
        check_text("interface", self.interface)
        for why in self.unreached.values():
            check_text("unreached", why, MAX_TEXT)
        if not self.num_servers and self.num_workers > MAX_MEMBERS:
            raise BadMessage.of_field("num_workers", self.num_workers, f"a whole number from 1 to {MAX_MEMBERS}")
        if self.generation and self.before is None:  # else Place has checked the rank
            missing = "rank" if self.rank is None else "members"
            raise BadMessage.of_field(missing, None, f"the place in generation {self.generation}")

    @property
    def member(self) -> Member:
        return Member(self.sender, self.address, self.port, self.device.host, self.device.device, self.role)

    @property
    def before(self) -> Place | None:
        if self.rank is None or self.members is None or not self.generation:
            return None
        return Place(self.generation, self.rank, self.members, self.id, self.lineage)


class Beat(Incoming, frozen=True):
    """A worker of a running job asks whether others wait to take part in it."""

    sender: Name
    job: Name
    generation: Generation  # with `rank` and `members`, this worker's place
    rank: MemberRank
    members: Members
    setup: Setup = {}  # as in Join, for a server that was restarted
    id: Id = ""  # of that generation
    lineage: Id = ""  # likewise

    def __post_init__(self) -> None:
        assert self.before  # Place checks the rank
        _check_setup(self.setup)

    @property
    def before(self) -> Place:
        return Place(self.generation, self.rank, self.members, self.id, self.lineage)


class Left(Incoming, frozen=True):
    """A process has left its job, or does not wait for it any more."""

    sender: Name  # name of the process
    job: Name
    lost: MemberRanks = ()  # ranks whose connections have ended, where it leaves for that
    cause: str = ""  # the error for which it leaves, where there is one of its own

    def __post_init__(self) -> None:
        check_text("cause", self.cause, MAX_CAUSE)
        _check_unique("lost", self.lost)


def _check_setup(setup: dict[str, str]) -> None:
    for key, value in setup.items():
        check_text("setup", key)
        check_text("setup", value, MAX_VALUE)


def _check_unique(field: str, ranks: tuple[int, ...]) -> None:
    if len({*ranks}) != len(ranks):
        raise BadMessage.of_field(field, list(ranks), _RANKS)


Message = Reset | Report | Query | Join | Beat | Left
BY_TYPE: dict[str, type[Incoming]] = {str(kind.__struct_config__.tag): kind for kind in get_args(Message)}


@dataclass(frozen=True, slots=True)
class Response:
    """The state server's answer; it has an action only where the message was a QUERY, a JOIN or a BEAT."""

    receiver: str
    job: str
    reason: str
    action: Action | Call | None = None
    # Samples of the worker's batches from the next round on; None while the job's rule decides none
    batch_size: int | None = None
    place: Place | None = None  # where the action is START
    # Those that this one is to call for a test, where the action is WAIT
    others: tuple[Member, ...] = ()
    # Ranks of pairs in which the first one calls, where the action is START; in others the higher rank does
    calls: tuple[tuple[int, int], ...] = ()

    def to_wire(self, server: str) -> dict[str, Any]:
        """The answer as the JSON object that is sent. `server`: drawn when this server started, so that a worker knows
        a restarted one."""
        told = {name: value for name, value in to_builtins(self).items() if value not in (None, ())}
        return {"msg_type": "RESPONSE", "sender": STATE_SERVER, "server": server, **told.pop("place", {}), **told}
