"""Tables of flags, and the parser of every command line: its errors are one line on stderr, with exit code 2."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, TypeVar

from utils import EXIT_SETUP

# Flags of the published programs of some modes, in whose place others are here.
_PUBLISHED = {
    "wbsp": ("--job_name", "--worker_num", "--worker_index", "--base_dir", "--port_base"),
    "sync-switch": (
        *("--num-ps", "--num-worker", "--bucket-dir", "--model", "--problem"),
        *("--hparam-set", "--hparams", "--cluster-name", "--eval-name"),
    ),
}

Same = TypeVar("Same", bound="Flags")


class Flag:
    """A flag of main.py. Its field has its long name, with _ for -."""

    help = argparse.SUPPRESS  # not shown
    names: tuple[str, ...] = ()  # the shortest first; the table that it stands in knows the last

    def __init__(
        self,
        default: Any,
        parse: Callable[[str], Any] = str,
        *short: str,
        needs: tuple[str, Any] | None = None,  # (field, value or values) without which the flag does nothing
        published: bool = False,  # the published program takes it in all modes: where it does nothing that is no error
        of_host: bool = False,  # may differ between the workers of a job; all other flags must be the same
        formerly: str = "",  # its name in version 0.6.0
        counts_in: Any = None,  # the Scope (config.py) of a flag that all modes of a kind have; None: all have it
        **more: Any,  # for argparse
    ) -> None:
        self.default, self.short, self.needs, self.published = default, short, needs, published
        self.of_host, self.formerly, self.counts_in = of_host, formerly, counts_in
        self.arguments = {"type": parse, **more}

    def means(self, help: str) -> Any:
        """Says what the flag is for. A % in it would have to be doubled."""
        self.help = help
        return self


class Flags(SimpleNamespace):
    """A table of flags, each a class attribute, and a value for each, which does not change: `staleness: int =
    Flag(3).means("...")`."""

    FLAGS: ClassVar[dict[str, Flag]] = {}

    def __init_subclass__(cls) -> None:
        inherited = [each for base in reversed(cls.__mro__[1:]) for each in vars(base).get("FLAGS", {}).items()]
        own = {name: value for name, value in vars(cls).items() if isinstance(value, Flag)}
        cls.FLAGS = {**dict(inherited), **own}
        for name, its in own.items():
            its.names = (*its.short, "--" + name.replace("_", "-"))
            setattr(cls, name, its.default)

    def __init__(self, **values: Any) -> None:
        """`values`: of flags, by field; the others have their defaults. Raises TypeError for an unknown one."""
        if unknown := values.keys() - self.FLAGS.keys():
            raise TypeError(f"there is no flag {', '.join(unknown)}")
        super().__init__(**{name: values.get(name, getattr(type(self), name)) for name in self.FLAGS})

    def values_by_name(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.FLAGS}

    def but(self: Same, **changes: Any) -> Same:
        """A copy with other values."""
        return type(self)(**{**self.values_by_name(), **changes})

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{name} does not change: `but` makes a copy")


class FlagParser(argparse.ArgumentParser):
    """Takes flags by their whole names; the error of an unknown one says which was meant, or where it belongs."""

    def __init__(
        self, *args: Any, elsewhere: Mapping[str, str] | None = None, doc: str | None = None, **more: Any
    ) -> None:
        """`elsewhere`: flags that others take -> what to do with them here; `doc`: a description that is shown with its
        lines as they are; the other arguments are for argparse."""
        if doc is not None:
            more = {"description": doc, "formatter_class": argparse.RawDescriptionHelpFormatter, **more}
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
        import difflib

        near = difflib.get_close_matches(word, (*self.flags, *self.elsewhere), n=1, cutoff=0.7)
        meant = f"did you mean {near[0]}?" if near else f"{self.prog} --help shows what it takes"
        self.error(f"unknown argument {word}: {self.elsewhere.get(word) or next(theirs, meant)}")

    def error(self, message: str) -> NoReturn:
        told = message.replace("expected one argument", "give it a value; one that begins with - behind =")
        self.exit(EXIT_SETUP, f"{self.prog}: error: {' '.join(told.split())}\n")
