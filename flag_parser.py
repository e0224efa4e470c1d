"""The parser of every program's command line: its errors are one line on stderr, with exit code 2."""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from utils import EXIT_SETUP


class FlagParser(argparse.ArgumentParser):
    """Takes flags by their whole names; the error of an unknown one says which was meant, or where it belongs."""

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **more: Any) -> None:
        """`elsewhere`: flags that others take -> what to do with them here; the other arguments are for argparse."""
        super().__init__(*args, **{**more, "allow_abbrev": False})
        self.elsewhere = elsewhere or {}

    @property
    def flags(self) -> tuple[str, ...]:
        """All names of all flags."""
        return tuple(self._option_string_actions)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.refuse(unknown)
        return given

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """Ends the process because of words that the program does not take."""
        flags = (word.partition("=")[0] for word in unknown if word.startswith("-"))
        word = next(flags, unknown[0])
        near = difflib.get_close_matches(word, (*self.flags, *self.elsewhere), n=1, cutoff=0.7)
        meant = f"did you mean {near[0]}?" if near else f"{self.prog} --help shows what it takes"
        self.error(f"unknown argument {word}: {self.elsewhere.get(word, meant)}")

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_SETUP, f"{self.prog}: error: {' '.join(message.split())}\n")
