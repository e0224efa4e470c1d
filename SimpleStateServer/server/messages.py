"""The four messages of the journal paper, and how they look on the wire.

Source: Li et al., IEEE TSC 15(4), 2022, doi 10.1109/TSC.2020.3044043. Everything that comes in is checked here, before
anything is changed; the only check left to the handlers is that a rank belongs to the running job.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

STATE_SERVER = "state-server"

MAX_WORKERS = 100_000
MAX_SECONDS = 1e6
MAX_COUNT = 10**9

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_REQUIRED: Any = object()


class MessageType(str, enum.Enum):
    """RESET starts a job, REPORT enters a round, QUERY asks what to do next, RESPONSE is the answer to each."""

    RESET = "RESET"
    REPORT = "REPORT"
    QUERY = "QUERY"
    RESPONSE = "RESPONSE"


class Action(str, enum.Enum):
    """What a worker does next: another local step, or the aggregation."""

    TRAIN = "TRAIN"
    SYNC = "SYNC"


class BadMessage(Exception):
    """A message that cannot be understood. `field` names the part that is wrong, where one is."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.field = field


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
class Reset:
    """Starts a job: round 1 and an empty record for each rank.

    Attributes:
        sender: name of the worker that starts it.
        job: its id.
        num_workers: N.
        policy: name of the rule.
        epsilon: seconds; read by the preprint's policy only.
        resumed: the job is in full swing, and it is this server that is new to it.
    """

    sender: str
    job: str
    num_workers: int
    policy: str
    epsilon: float
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """What REPORT and QUERY have in common.

    Attributes:
        sender: name of the worker; the answer goes to it.
        job: id of the worker's job; None from a published worker, which means the running one.
        status: the worker's progress.
        device: where it runs, when it says so.
        samples: samples of one local step, when it says so.
        accuracy: its latest test accuracy, when it has one.
    """

    sender: str
    job: str | None
    status: Status
    device: Device | None = None
    samples: int | None = None
    accuracy: float | None = None


@dataclass(frozen=True, slots=True)
class Report(WorkerMessage):
    """A worker has pulled the model and enters a round."""


@dataclass(frozen=True, slots=True)
class Query(WorkerMessage):
    """A worker has done a local step and asks for its next action."""


@dataclass(frozen=True, slots=True)
class Response:
    """The state server's answer; it has an action only where the message was a QUERY."""

    receiver: str
    job: str
    reason: str
    action: Action | None = None

    def to_wire(self) -> dict[str, Any]:
        """The answer as the JSON object that is sent."""
        wire: dict[str, Any] = {
            "msg_type": MessageType.RESPONSE.value,
            "sender": STATE_SERVER,
            "receiver": self.receiver,
            "job": self.job,
        }
        if self.action is not None:
            wire["action"] = self.action.value
        wire["reason"] = self.reason
        return wire


class Fields:
    """Takes checked values out of one object of a message.

    Args:
        values: the object, as parsed.
        wire_names: name on the wire of each field that has another one there than here; errors name that one.

    Every method raises BadMessage, which names the field, its value and what is allowed. A null counts as missing.
    """

    def __init__(self, values: Mapping[str, Any], wire_names: Mapping[str, str] | None = None) -> None:
        self._values = values
        self._wire_names = wire_names or {}

    def _take(self, field: str, default: Any, allowed: str) -> Any:
        value = self._values.get(self._wire_names.get(field, field))
        if value is not None:
            return value
        if default is _REQUIRED:
            name = self._wire_names.get(field, field)
            raise BadMessage(f"field {name!r} is missing; give {allowed}", name)
        return default

    def wrong(self, field: str, value: Any, allowed: str) -> BadMessage:
        """The error for a value that is not allowed, to be raised by the caller."""
        name = self._wire_names.get(field, field)
        shown = repr(value)
        if len(shown) > 80:
            shown = f"{shown[:77]}..."
        return BadMessage(f"field {name!r} is {shown}; give {allowed}", name)

    def whole(self, field: str, minimum: int, maximum: int, default: Any = _REQUIRED) -> Any:
        """A whole number in a range."""
        allowed = f"a whole number from {minimum} to {maximum}"
        value = self._take(field, default, allowed)
        if value is default:
            return value
        if type(value) is not int or not minimum <= value <= maximum:
            raise self.wrong(field, value, allowed)
        return value

    def number(self, field: str, minimum: float, maximum: float, default: Any = _REQUIRED) -> Any:
        """A finite number in a range, as float."""
        allowed = f"a number from {minimum:g} to {maximum:g}"
        value = self._take(field, default, allowed)
        if value is default:
            return value
        if type(value) not in (int, float) or not minimum <= value <= maximum:  # false for NaN as well
            raise self.wrong(field, value, allowed)
        return float(value)

    def finite(self, field: str) -> None:
        """Checks a field that is accepted and not used: when it is there, it is a finite number."""
        value = self._values.get(self._wire_names.get(field, field))
        try:
            fits = value is None or (type(value) in (int, float) and math.isfinite(value))
        except OverflowError:  # a whole number beyond any float
            fits = False
        if not fits:
            raise self.wrong(field, value, "a finite number, or leave it out")

    def name(self, field: str, default: Any = _REQUIRED) -> Any:
        """A short name without spaces."""
        allowed = "1 to 64 characters out of A-Z, a-z, 0-9, '.', '_' and '-'"
        value = self._take(field, default, allowed)
        if value is default:
            return value
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise self.wrong(field, value, allowed)
        return value

    def choice(self, field: str, choices: Collection[str], default: Any = _REQUIRED) -> Any:
        """One of some words."""
        allowed = f"one of {', '.join(choices)}"
        value = self._take(field, default, allowed)
        if not isinstance(value, str) or value not in choices:
            raise self.wrong(field, value, allowed)
        return value

    def text(self, field: str, default: str) -> str:
        """Printable text of at most 255 characters, such as a host's full name."""
        value = self._take(field, default, "")
        if not isinstance(value, str) or len(value) > 255 or not value.isprintable():
            raise self.wrong(field, value, "at most 255 printable characters")
        return value

    def object(self, field: str, default: Any = _REQUIRED) -> Any:
        """Another object, as Fields."""
        value = self._take(field, default, "a JSON object")
        if value is default:
            return value
        if not isinstance(value, dict):
            raise self.wrong(field, value, "a JSON object")
        return Fields(value)


def reset_settings(fields: Fields, policies: Collection[str], **defaults: Any) -> dict[str, Any]:
    """What a RESET says about the job: `num_workers`, `policy` and `epsilon`."""
    return {
        "num_workers": fields.whole("num_workers", 1, MAX_WORKERS, defaults.get("num_workers", _REQUIRED)),
        "policy": fields.choice("policy", policies, defaults.get("policy", _REQUIRED)),
        "epsilon": fields.number("epsilon", 0, MAX_SECONDS, defaults.get("epsilon", _REQUIRED)),
    }


def status(fields: Fields, needs_round: bool = True) -> Status:
    """The status object of a REPORT or QUERY. Its timestamp is checked and not used: clocks of hosts differ."""
    fields.finite("timestamp")
    return Status(
        rank=fields.whole("rank", 0, MAX_WORKERS - 1),
        local_iteration=fields.whole("local_iteration", 0, MAX_COUNT, 0),
        round=fields.whole("round", 1, MAX_COUNT, _REQUIRED if needs_round else None),
        computation_time=fields.number("computation_time", 0, MAX_SECONDS, None),
        transmission_time=fields.number("transmission_time", 0, MAX_SECONDS, None),
    )


def check_query(status: Status, fields: Fields) -> None:
    """A worker that has done a step knows how long it took."""
    if status.local_iteration > 0 and status.computation_time is None:
        fields.number("computation_time", 0, MAX_SECONDS)  # raises: it is missing


def parse(body: bytes, policies: Collection[str]) -> Reset | Report | Query:
    """Reads one message off the wire.

    Args:
        body: UTF-8 JSON, one object.
        policies: names that a RESET may choose from.

    Raises:
        BadMessage: it is none of the three messages that are sent to the state server, or a field is wrong.
    """
    fields = Fields(_json_object(body))
    incoming = (MessageType.RESET.value, MessageType.REPORT.value, MessageType.QUERY.value)
    msg_type = fields.choice("msg_type", incoming)
    sender = fields.name("sender")
    fields.choice("receiver", (STATE_SERVER,), STATE_SERVER)
    job = fields.name("job")
    if msg_type == MessageType.RESET:
        settings = reset_settings(fields, policies, epsilon=0.5)
        return Reset(sender, job, **settings, resumed=bool(fields.whole("resumed", 0, 1, 0)))

    progress_fields = fields.object("status")
    progress = status(progress_fields)
    if msg_type == MessageType.QUERY:
        check_query(progress, progress_fields)
    device = fields.object("device", None)
    kind = Query if msg_type == MessageType.QUERY else Report
    return kind(
        sender,
        job,
        progress,
        device=device and Device(device.text("host", ""), device.text("device", "")),
        samples=fields.whole("samples", 0, MAX_COUNT, None),
        accuracy=fields.number("accuracy", 0, 1, None),
    )


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
    except UnicodeDecodeError as error:
        raise BadMessage(f"the body is not UTF-8: {error.reason} at byte {error.start}") from None
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadMessage(f"the body is a JSON {type(value).__name__}; give an object")
    return value


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number that JSON has")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise BadMessage(f"field {twice[:64]!r} is given more than once; give it once", twice[:64])
    return values
