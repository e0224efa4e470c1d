"""Parsers of flag values for argparse, of all programs here; their errors say what is allowed.

A schedule of step sizes is a text of parts joined by +:

    warmup:10000             grows linearly from 0 to 1 over the first 10,000 samples
                             (Goyal et al., "Accurate, large minibatch SGD", 2017, arXiv:1706.02677)
    step:300000,450000x0.1   piecewise constant: a tenth after 300,000 samples, a hundredth after 450,000; each may
                             have a factor of its own, as in step:300000x0.1,450000x0.5
    cosine:600000            falls from 1 at the end of the warm-up to 0 at 600,000 samples, along a half cosine
                             (Loshchilov and Hutter, "SGDR", ICLR 2017, arXiv:1608.03983, without restarts);
                             cosine:600000x0.01 ends at a hundredth
    constant                 1

Samples are counted from the beginning, with those of the warm-up and of the step itself. E epochs of a data set are E
times its training samples.
"""

import argparse
import ipaddress
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

from rates import CONSTANT, Ramp, RateSchedule

SCHEDULES = "constant, or warmup:SAMPLES, step:SAMPLES,SAMPLESxFACTOR and cosine:SAMPLES joined by +"
RAMPS = "a number from 0 to below 1, or two of them and the samples from one to the other, such as 0..0.9:50000"


def number(allowed: Callable[[Any], bool], words: str, kind: type = float) -> Callable[[str], Any]:
    """Makes a parser for a finite number that is `allowed`; `words` describe those for the error."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not math.isfinite(value) or not allowed(value):
            raise argparse.ArgumentTypeError(f"{text} is out of range; give {words}")
        return value

    parse.__name__ = kind.__name__  # argparse names it in "invalid int value"
    return parse


def at_least(minimum: float, kind: type = int) -> Callable[[str], Any]:
    """Makes a parser for a finite number of at least `minimum`."""
    return number(lambda value: value >= minimum, f"{minimum} or more", kind)


def several(parse: Callable[[str], Any], words: str) -> Callable[[str], tuple[Any, ...]]:
    """Makes a parser for a list with commas of values for `parse`; `words` describe it for the error."""

    def parse_all(text: str) -> tuple[Any, ...]:
        try:
            return tuple(map(parse, text.split(",")))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no list of {words}") from None

    return parse_all


def seeds(text: str) -> tuple[int, ...]:
    """Parses whole numbers from 0 on with commas, and ranges of them: 0,1,2 or 0..4."""
    found: dict[int, None] = {}
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]+)(\.\.([0-9]+))?", part)
        if not match or int(match[1]) > int(match[3] or match[1]):
            words = "give whole numbers with commas, such as 0,1,2 or 0..4"
            raise argparse.ArgumentTypeError(f"{text!r} is no list of seeds; {words}")
        found |= dict.fromkeys(range(int(match[1]), int(match[3] or match[1]) + 1))
    return tuple(found)


above_zero = number(lambda value: value > 0, "a number above 0")
accuracy = number(lambda value: 0 < value <= 1, "a number above 0, up to 1")
finite = number(lambda value: True, "a finite number")
fraction = number(lambda value: 0 <= value <= 1, "a number from 0 to 1")
below_one = number(lambda value: 0 <= value < 1, "a number from 0 to below 1")


def text_like(pattern: str, complaint: str) -> Callable[[str], str]:
    """Makes a parser for a text that matches `pattern` as a whole; the error is the text with `complaint`."""

    def parse(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise argparse.ArgumentTypeError(f"{text!r} {complaint}")
        return text

    return parse


def parse_schedule(text: str) -> RateSchedule:
    """Reads a schedule. Raises ValueError if the text is no schedule; the message says what is allowed."""
    if text == "constant":
        return CONSTANT
    parts: dict[str, str] = {}
    for part in text.split("+"):
        kind, _, numbers = part.partition(":")
        if kind not in ("warmup", "step", "cosine") or kind in parts:
            raise ValueError(f"{text!r} is no schedule of step sizes; give {SCHEDULES}")
        parts[kind] = numbers
    if "step" in parts and "cosine" in parts:
        raise ValueError(f"{text!r} has both steps and a cosine: give one of them")
    warmup = _samples(parts["warmup"], text) if "warmup" in parts else 0
    if "step" in parts:
        return RateSchedule(warmup, _drops(parts["step"], text))
    if "cosine" not in parts:
        return RateSchedule(warmup)
    end, _, floor = parts["cosine"].partition("x")
    schedule = RateSchedule(warmup, cosine=_samples(end, text), floor=_factor(floor or "0", text))
    if schedule.cosine <= warmup:
        raise ValueError(f"{text!r}: the cosine ends before the warm-up does; its samples count from the beginning")
    return schedule


def _drops(numbers: str, text: str) -> tuple[tuple[int, float], ...]:
    """Reads the drops; one without a factor has that of the next one."""
    drops: list[tuple[int, float]] = []
    factor = ""
    for drop in reversed(numbers.split(",")):
        after, _, own = drop.partition("x")
        factor = own or factor
        drops.insert(0, (_samples(after, text), _factor(factor, text)))
    if any(later <= earlier for (earlier, _), (later, _) in itertools.pairwise(drops)):
        raise ValueError(f"{text!r}: each number of samples must be above the one before it")
    return tuple(drops)


def _samples(number: str, text: str) -> int:
    if not re.fullmatch(r"\d+(\.\d+)?(e\d{1,2})?", number, re.ASCII) or not float(number).is_integer():
        raise ValueError(f"{text!r}: {number!r} is no number of samples; give {SCHEDULES}")
    if float(number) < 1:
        raise ValueError(f"{text!r}: {number!r} is no number of samples above 0")
    return int(float(number))


def _factor(number: str, text: str) -> float:
    value = _number(number)
    if not 0 <= value < 1:
        raise ValueError(
            f"{text!r}: {number!r} is no factor from 0 to below 1 (exponent: two digits at most); give {SCHEDULES}"
        )
    return value


def _number(text: str) -> float:
    """A plain number; NaN, which is in no range, for other texts."""
    return float(text) if re.fullmatch(r"\d*\.?\d+(e-?\d{1,2})?", text, re.ASCII) else math.nan


def parse_ramp(text: str) -> Ramp:
    """Reads a momentum: 0.9, or 0..0.9:50000 for one that grows from 0 to 0.9 over 50,000 samples. Raises ValueError if
    the text is no momentum; the message says what is allowed."""
    first, dots, rest = text.partition("..")
    last, colon, over = rest.partition(":") if dots else (first, "", "")
    values = _number(first), _number(last)
    if not all(0 <= value < 1 for value in values) or bool(dots) != bool(colon):
        raise ValueError(f"{text!r} is no momentum; give {RAMPS}")
    return Ramp(*values, _samples(over, text) if dots else 0)


def _checked_by(parse: Callable[[str], Any]) -> Callable[[str], str]:
    """Makes a parser for a text that `parse` accepts; the error is that of its ValueError."""

    def check(text: str) -> str:
        try:
            parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        return text

    return check


rate_schedule = _checked_by(parse_schedule)
momentum_ramp = _checked_by(parse_ramp)
switch_order = text_like("[01]+", "is no order of phases; give 1 for BSP and 0 for ASP, such as 10")
device_name = text_like("([A-Za-z0-9][A-Za-z0-9._-]*)?", "cannot name a folder; use letters, digits, '.', '_' and '-'")
run_name = text_like(
    "[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    "cannot name a run; use 1 to 64 letters, digits, '.', '_' and '-', with a letter or digit first",
)
job_name = text_like("[A-Za-z0-9._-]{1,64}", "cannot name a job; use 1 to 64 letters, digits, '.', '_' and '-'")


def whole(pattern: str, complaint: str) -> Callable[[str], int]:
    """Makes a parser for a whole number whose digits match the pattern."""
    check = text_like(pattern, complaint)
    return lambda text: int(check(text))


def or_auto(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Makes a parser for what `parse` takes, or the word auto."""

    def parse_or_auto(text: str) -> Any:
        return text if text == "auto" else parse(text)

    parse_or_auto.__name__ = parse.__name__  # as in `number`
    return parse_or_auto


_seconds = text_like(
    r"[0-9]{1,9}(\.[0-9]*)?|\.[0-9]+", "is not a number of seconds below 1000000000, such as 2.5, or auto"
)
zero_or_one = whole("[01]", "is not 0 or 1")
zero_one_or_auto = or_auto(whole("[01]", "is not 0, 1 or auto"))
steps_or_auto = or_auto(whole("[0-9]{1,4}", "is not 0 to 9999 or auto"))
above_zero_or_auto = or_auto(above_zero)
seconds_or_auto = or_auto(lambda text: float(_seconds(text)))


def host(text: str) -> str:
    """Checks a host's name or address; brackets around an IPv6 address are left out."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        return str(ipaddress.ip_address(bare))
    except ValueError:
        complaint = "is no host; give a name or an address, such as 10.1.1.34 or ::1 (its port is a flag of its own)"
        return text_like(r"[\w-]+(\.[\w-]+)*\.?", complaint)(bare)


def port(text: str) -> str:
    """Checks a port, which stays a text."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number from 1 to 65535")
    return text


def phase_momentum(text: str) -> str:
    """Checks a momentum or "same", which stays a text."""
    return text if text == "same" else momentum_ramp(text)
