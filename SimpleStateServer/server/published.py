"""The published HTTP interface (form-encoded POST), translated into the four messages."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from server.fields import BadMessage, Fields
from server.messages import MAX_COUNT, Query, Report, Reset
from server.wire import check_query, reset_settings, status

_INIT_FIELDS = ("num_workers", "epsilon", "policy")
_WIRE_NAMES = {
    "rank": "r",
    "local_iteration": "k",
    "round": "t",
    "computation_time": "c",
    "transmission_time": "m",
    "timestamp": "te",
}


def init(form: Mapping[str, str], job: str, policies: Collection[str], policy: str) -> Reset:
    """`POST /init/`: num_workers (6), epsilon (0.5 s), and as an addition policy.

    Args:
        form: the fields as sent; none stands for the defaults.
        job: a new id for the job, since a published worker knows none.
        policies: the names that `policy` may have.
        policy: the one that is taken where the form names none.

    Raises:
        BadMessage: a value is not allowed, or there are fields and none is one of these: the sender meant something.
    """
    if form and not form.keys() & set(_INIT_FIELDS):
        raise BadMessage(
            f"the form has none of the fields {', '.join(_INIT_FIELDS)}, but {', '.join(form)[:80]!r}; "
            "send one of them, or an empty body for the defaults"
        )
    settings = reset_settings(_fields(form), policies, num_workers=6, policy=policy, epsilon=0.5)
    return Reset("published", job, **settings, published=True)


def apply(form: Mapping[str, str]) -> Query:
    """`POST /apply/`: r, k, c, te, and as an addition m, the seconds that a push takes."""
    fields = _fields(form)
    fields.whole("local_iteration", 0, MAX_COUNT)  # in the journal's messages it may be left out, here not
    progress = status(fields, needs_round=False)
    check_query(progress, fields)
    return Query(f"worker-{progress.rank}", None, progress)


def reset(form: Mapping[str, str]) -> Report:
    """`POST /reset/`: r, t, te. The worker has pulled and is in round t."""
    progress = status(_fields({name: text for name, text in form.items() if name in ("r", "t", "te")}))
    return Report(f"worker-{progress.rank}", None, progress)


def wire_name(field: str | None) -> str | None:
    """The published name of a field, for errors that the handlers find."""
    return _WIRE_NAMES.get(field or "", field)


def _fields(form: Mapping[str, str]) -> Fields:
    return Fields({name: _typed(text) for name, text in form.items()}, _WIRE_NAMES)


def _typed(text: str) -> Any:
    """A form knows only text; what looks like a number becomes one, and the field's own check says whether it fits."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
