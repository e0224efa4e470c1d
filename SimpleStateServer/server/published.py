"""The published HTTP interface (form-encoded POST), translated into messages."""

from collections.abc import Mapping

from msgspec import Struct

from server.errors import BadMessage
from server.messages import Count, NumWorkers, PolicyName, PublishedReset, Query, Report, Seconds, Settings, Status
from server.wire import convert, need_round

_WIRE_NAMES = {
    "rank": "r",
    "local_iteration": "k",
    "round": "t",
    "computation_time": "c",
    "transmission_time": "m",
    "timestamp": "te",
}


class _Init(Struct, kw_only=True):
    num_workers: NumWorkers = 6
    epsilon: Seconds = 0.5
    policy: PolicyName


class _Apply(Status, frozen=True, kw_only=True):
    local_iteration: Count  # in the journal's messages it may be left out, here not


def init(form: Mapping[str, str], job: str, policy: str) -> PublishedReset:
    """`POST /init/`: num_workers (6), epsilon (0.5 s), and as an addition policy.

    Args:
        form: the fields as sent; an empty form stands for the defaults.
        job: a new id for the job, since a published worker knows none.
        policy: the default.

    Raises:
        BadMessage: a value is not allowed, or none of the fields is one of these: the sender meant something else.
    """
    known = _Init.__struct_fields__
    if form and not form.keys() & {*known}:
        raise BadMessage(
            f"the form has none of the fields {', '.join(known)}, but {', '.join(form)[:80]!r}; "
            "send one of them, or an empty body for the defaults"
        )
    found: _Init = convert({"policy": policy, **form}, _Init, strict=False)
    return PublishedReset("published", job, Settings(found.num_workers, found.policy, found.epsilon))


def apply(form: Mapping[str, str]) -> Query:
    """`POST /apply/`: r, k, c, te, and as an addition m, the seconds that a push takes."""
    status = _status(form, _Apply)
    return Query(f"worker-{status.rank}", None, status)


def reset(form: Mapping[str, str]) -> Report:
    """`POST /reset/`: r, t, te. The worker has pulled and is in round t."""
    status = _status({name: text for name, text in form.items() if name in ("r", "t", "te")}, Status)
    need_round(status)
    return Report(f"worker-{status.rank}", None, status)


def renamed(problem: BadMessage) -> BadMessage:
    """The error with the field's name in the published interface."""
    field = problem.field or ""
    name = _WIRE_NAMES.get(field, field)
    return BadMessage(str(problem).replace(f"field {field!r}", f"field {name!r}"), name or None)


def _status(form: Mapping[str, str], kind: type[Status]) -> Status:
    values = {name: form[wire_name] for name, wire_name in _WIRE_NAMES.items() if wire_name in form}
    found: Status = convert(values, kind, strict=False)
    return found
