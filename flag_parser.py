"""The parser of every program's command line: its errors are one line on stderr, with exit code 2."""

import argparse
import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from utils import EXIT_SETUP

# Flags of the published programs of some modes, in whose place others are here.
_PUBLISHED = {
    "wbsp": ("--job_name", "--worker_num", "--worker_index", "--base_dir", "--port_base"),
    "sync-switch": (
        *("--num-ps", "--num-worker", "--bucket-dir", "--model", "--problem"),
        *("--hparam-set", "--hparams", "--cluster-name", "--eval-name"),
    ),
}


class FlagParser(argparse.ArgumentParser):
    """Takes flags by their whole names; the error of an unknown one says which was meant, or where it belongs."""

    def __init__(self, *args: Any, elsewhere: Mapping[str, str] | None = None, **more: Any) -> None:
        """`elsewhere`: flags that others take -> what to do with them here; the other arguments are for argparse."""
        super().__init__(*args, **{**more, "allow_abbrev": False})
        self.elsewhere = elsewhere or {}
        # What begins with it is a value, and not a flag. That of argparse knows -1, but neither -1,2 nor -1e-3.
        self._negative_number_matcher = re.compile(r"-\.?\d|-(inf|nan)$")

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
        theirs = (
            f"it is of {mode}'s published program, whose commands are others here, such as scripts/local_cluster.sh -m "
            f"{mode}; docs/other-programs.md has a table"
            for mode, flags in _PUBLISHED.items()
            if word in flags
        )
        near = difflib.get_close_matches(word, (*self.flags, *self.elsewhere), n=1, cutoff=0.7)
        meant = f"did you mean {near[0]}?" if near else f"{self.prog} --help shows what it takes"
        self.error(f"unknown argument {word}: {self.elsewhere.get(word) or next(theirs, meant)}")

    def error(self, message: str) -> NoReturn:
        told = message.replace("expected one argument", "give it a value; one that begins with - behind =")
        self.exit(EXIT_SETUP, f"{self.prog}: error: {' '.join(told.split())}\n")
