"""What flags may hold: parsers for argparse, which turn a text into a value or say what is allowed."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from typing import Any


def at_least(minimum: float, kind: type = int) -> Callable[[str], Any]:
    """Makes a parser for a finite number that is not below `minimum`."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not math.isfinite(value) or value < minimum:
            raise argparse.ArgumentTypeError(f"{text} is out of range; give {minimum} or more")
        return value

    parse.__name__ = kind.__name__  # argparse names it in "invalid int value"
    return parse


def above_zero(text: str) -> float:
    """Parses a finite number above 0."""
    value = float(text)
    if not math.isfinite(value) or value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is out of range; give a number above 0")
    return value


above_zero.__name__ = "float"


def accuracy(text: str) -> float:
    """Parses an accuracy that can be reached: above 0, up to 1."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is out of range; give a number above 0, up to 1")
    return value


accuracy.__name__ = "float"


def fraction(text: str) -> float:
    """Parses a number from 0 to 1."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is out of range; give a number from 0 to 1")
    return value


fraction.__name__ = "float"


def zero_or_one(text: str) -> int:
    """Parses 0 or 1."""
    if text not in ("0", "1"):
        raise argparse.ArgumentTypeError(f"{text!r} is not 0 or 1")
    return int(text)


def switch_order(text: str) -> str:
    """Parses the phases of Sync-Switch."""
    if not re.fullmatch("[01]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no order of phases; give 1 for BSP and 0 for ASP, such as 10")
    return text


def port(text: str) -> str:
    """Parses a port, which stays a text."""
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; give a number from 1 to 65535")
    return text


def device_name(text: str) -> str:
    """Parses the name of a log folder; it may be empty."""
    if text and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise argparse.ArgumentTypeError(f"{text!r} cannot name a folder; use letters, digits, '.', '_' and '-'")
    return text
