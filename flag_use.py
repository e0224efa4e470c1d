"""Whether a flag that was given does anything in the chosen mode. Config says where each one counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from utils import SetupError

if TYPE_CHECKING:
    from config import Config


def check_given(config: Config, given: Collection[str], warn: Callable[[str], None]) -> None:
    """Makes sure that every flag that was given does something.

    Args:
        given: fields of the flags on the command line.
        warn: gets a line for each published one that does nothing: existing scripts have them.

    Raises:
        SetupError: one of this project's own does nothing.
    """
    fields = {field.name: field for field in dataclasses.fields(config)}
    for field in (fields[name] for name in given):
        about, value = field.metadata, getattr(config, field.name)
        text = " ".join([about["names"][0], *map(str, value if isinstance(value, tuple) else (value,))])
        if config.mode not in about["modes"]:
            where = _words(about["modes"])
            if not about["published"]:
                raise SetupError(
                    f"{text} belongs to mode {where}, not to {config.mode}: leave it out, or change the mode (-m)"
                )
            counts = [fields[name] for name in about["instead"] if config.mode in fields[name].metadata["modes"]]
            rather = "".join(f"; in mode {config.mode} {each.metadata['names'][0]} counts" for each in counts)
            warn(f"{text} does nothing in mode {config.mode}: it counts in mode {where}{rather}")
        elif about["needs"] is not None and getattr(config, about["needs"][0]) != about["needs"][1]:
            other, needed = fields[about["needs"][0]].metadata["names"][0], about["needs"][1]
            raise SetupError(f"{text} does nothing without {other} {needed}: leave it out, or give both")


def _words(names: Sequence[str]) -> str:
    """`a`, or `a, b or c`."""
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))
