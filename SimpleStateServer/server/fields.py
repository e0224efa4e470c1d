"""Takes checked values out of JSON and forms. What is wrong is named: the field, its value, what is allowed."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from server.messages import MAX_MEMBERS

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
REQUIRED: Any = object()


class BadMessage(Exception):
    """A message that cannot be understood. `field` names the part that is wrong, where one is."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.field = field


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

    def _value(self, field: str) -> Any:
        return self._values.get(self._wire_names.get(field, field) if self._wire_names else field)

    def wrong(self, field: str, value: Any, allowed: str) -> BadMessage:
        """The error for a value that is not allowed, to be raised by the caller. A null counts as missing."""
        name = self._wire_names.get(field, field)
        if value is None:
            return BadMessage(f"field {name!r} is missing; give {allowed}", name)
        shown = repr(value)
        if len(shown) > 80:
            shown = f"{shown[:77]}..."
        return BadMessage(f"field {name!r} is {shown}; give {allowed}", name)

    # Every query comes through here: an error's words are put together only where there is an error.

    def whole(self, field: str, minimum: int, maximum: int, default: Any = REQUIRED) -> Any:
        """A whole number in a range."""
        value = self._value(field)
        if type(value) is int and minimum <= value <= maximum:
            return value
        if value is None and default is not REQUIRED:
            return default
        raise self.wrong(field, value, f"a whole number from {minimum} to {maximum}")

    def number(self, field: str, minimum: float, maximum: float, default: Any = REQUIRED) -> Any:
        """A finite number in a range, as float."""
        value = self._value(field)
        if type(value) in (int, float) and minimum <= value <= maximum:  # false for NaN as well
            return float(value)
        if value is None and default is not REQUIRED:
            return default
        raise self.wrong(field, value, f"a number from {minimum:g} to {maximum:g}")

    def finite(self, field: str) -> None:
        """Checks a field that is accepted and not used: when it is there, it is a finite number."""
        value = self._value(field)
        try:
            fits = value is None or (type(value) in (int, float) and math.isfinite(value))
        except OverflowError:  # a whole number beyond any float
            fits = False
        if not fits:
            raise self.wrong(field, value, "a finite number, or leave it out")

    def name(self, field: str, default: Any = REQUIRED) -> Any:
        """A short name without spaces."""
        value = self._value(field)
        if isinstance(value, str) and _NAME.fullmatch(value):
            return value
        if value is None and default is not REQUIRED:
            return default
        raise self.wrong(field, value, "1 to 64 characters out of A-Z, a-z, 0-9, '.', '_' and '-'")

    def choice(self, field: str, choices: Collection[str], default: Any = REQUIRED) -> Any:
        """One of some words."""
        value = self._value(field)
        if isinstance(value, str) and value in choices:
            return value
        if value is None and default is not REQUIRED:
            return default
        raise self.wrong(field, value, f"one of {', '.join(choices)}")

    def text(self, field: str, default: Any, longest: int = 255) -> Any:
        """Printable text, such as a host's full name."""
        value = self._value(field)
        if value is None:
            return default
        if not isinstance(value, str) or len(value) > longest or not value.isprintable():
            raise self.wrong(field, value, f"at most {longest} printable characters")
        return value

    def object(self, field: str, default: Any = REQUIRED) -> Any:
        """Another object, as Fields."""
        value = self._value(field)
        if isinstance(value, dict):
            return Fields(value)
        if value is None and default is not REQUIRED:
            return default
        raise self.wrong(field, value, "a JSON object")

    def ranks(self, field: str) -> tuple[int, ...]:
        """A list of ranks, each once; none where it is missing."""
        value = self._value(field)
        if value is None:
            return ()
        if (
            not isinstance(value, list)
            or len(value) > MAX_MEMBERS
            or any(type(rank) is not int or not 0 <= rank < MAX_MEMBERS for rank in value)
            or len({*value}) != len(value)
        ):
            raise self.wrong(field, value, f"a list of ranks from 0 to {MAX_MEMBERS - 1}, each once")
        return tuple(value)

    def members(self, field: str) -> list[tuple[str, str, int, str, str]]:
        """A list of workers, at least one: name, address, port, host, device, as RESPONSE tells of them."""
        value = self._value(field)
        allowed = f"1 to {MAX_MEMBERS} lists of name, address, port, host and device"
        if not isinstance(value, list) or not 0 < len(value) <= MAX_MEMBERS:
            raise self.wrong(field, value, allowed)
        found = []
        for each in value:
            if not isinstance(each, list) or len(each) != 5:
                raise self.wrong(field, each, allowed)
            one = Fields(dict(zip(("name", "address", "port", "host", "device"), each, strict=True)))
            found.append(
                (one.name("name"), one.name("address"), one.whole("port", 1, 65535),
                 one.text("host", ""), one.text("device", ""))
            )  # fmt: skip
        return found

    def rows(
        self, field: str, longest: int, minima: Sequence[float], maxima: Sequence[float]
    ) -> tuple[Any, ...] | None:
        """A list of at most `longest` lists of numbers, each in its range; the first number of each is whole. None
        where it is missing."""
        value = self._value(field)
        if value is None:
            return None
        allowed = f"at most {longest} lists of {len(minima)} numbers from {list(minima)} to {list(maxima)}"
        if not isinstance(value, list) or len(value) > longest:
            raise self.wrong(field, value, allowed)
        for row in value:
            if (
                not isinstance(row, list)
                or len(row) != len(minima)
                or any(type(number) not in (int, float) for number in row)
                or type(row[0]) is not int
                or not all(least <= number <= most for least, number, most in zip(minima, row, maxima, strict=True))
            ):
                raise self.wrong(field, row, allowed)
        return tuple(tuple(row) for row in value)


def json_object(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Names may not come twice, and NaN and infinities are no JSON.

    Raises:
        BadMessage: it is something else.
    """
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
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise BadMessage(f"field {twice[:64]!r} is given more than once; give it once", twice[:64])
    return values
