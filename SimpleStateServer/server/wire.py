"""Reads messages from JSON and checks them against the bounds of messages.py. One check is left to the handlers: that a
rank belongs to its job.

Unknown fields are ignored, and a null counts as a missing field. A field that is given twice is refused.
"""

import enum
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

import msgspec

from server.errors import BadMessage
from server.messages import BY_TYPE, Member, Message, Reset, Status, WorkerMessage


def parse(body: bytes | bytearray, token: str = "") -> Message:
    """Reads one message, `token` is that of its request: UTF-8 JSON, one object, in which no name comes twice; NaN and
    infinities are no JSON. Otherwise as `understand`."""
    try:
        value = _JSON.decode(body.decode())
    except (ValueError, RecursionError) as error:  # also where it is not UTF-8
        raise BadMessage(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadMessage(f"the body is a JSON {type(value).__name__}; give an object")
    return understand({**value, "token": token})


def understand(message: Mapping[str, Any]) -> Message:
    """Checks one message. Raises BadMessage if it is none of the messages to the state server, or a field is wrong."""
    msg_type = message.get("msg_type")
    kind = BY_TYPE.get(msg_type) if isinstance(msg_type, str) else None
    if kind is None:
        raise BadMessage.of_field("msg_type", msg_type, f"one of {', '.join(BY_TYPE)}")
    if kind is Reset:
        message = {**message, "settings": message}
    found: Message = convert(message, kind)
    if isinstance(found, WorkerMessage) and found.status.round is None:  # only the published `/apply/` has none
        raise BadMessage.of_field("round", None, _allowed(Status, "round"))
    return found


def convert(values: Mapping[str, Any], kind: Any) -> Any:
    """The object of a class that these fields give. Raises BadMessage, which names the field, its value and what is
    allowed."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError:
        try:
            return msgspec.convert(_without_nulls(values), kind)
        except msgspec.ValidationError as error:
            raise _refusal(str(error), values, kind) from None
        except RecursionError:
            raise BadMessage("the message is nested too deeply") from None


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    return {name: _without_nulls(part) for name, part in value.items() if part is not None}


def _refusal(error: str, values: Any, kind: Any) -> BadMessage:
    """The error of msgspec, such as "Expected `int` >= 0 - at `$.status.rank`", with the value and what is allowed."""
    text, _, path = error.partition("`$")
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", path)
    missing = re.search(r"missing required field `(\w+)`", text)
    if missing:
        steps.append((missing[1], ""))
    field, allowed = "", ""
    for name, index in steps:
        values = values[int(index)] if index else values.get(name)
        if index and kind is Member and not isinstance(values, list):
            name = Member.__struct_fields__[int(index)]
        if name:
            field, allowed = name, _allowed(kind, name)
            kind = _class_in(get_type_hints(kind, include_extras=True)[name]) or kind
    return BadMessage.of_field(field, values, allowed)


def _class_in(hint: Any) -> Any:
    """The class of messages.py in a hint such as `Device | None` or `tuple[Member, ...]`."""
    if isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or is_dataclass(hint)):
        return hint
    return next(filter(None, map(_class_in, get_args(hint))), None)


def _allowed(kind: Any, field: str) -> str:
    hint = get_type_hints(kind, include_extras=True)[field]
    for part in (hint, *get_args(hint)):
        if hasattr(part, "__metadata__"):
            return str(part.__metadata__[-1].description)
        if isinstance(part, type) and issubclass(part, enum.Enum):
            return f"one of {', '.join(one.value for one in part)}"
    return "a JSON object" if _class_in(hint) else "printable characters"


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number that JSON has")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise BadMessage(f"field {twice[:64]!r} is given more than once; give it once", twice[:64])
    return values


_JSON = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_unique)
