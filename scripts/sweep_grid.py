"""The points of a sweep: modes and values of main.py's flags, and the command of each run. Imports no MXNet."""

import argparse
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import simulate
from algorithms import ENTRIES, OWNERS
from config import FIELDS, modes_of, names_of, one_of
from flag_parser import FlagParser
from scripts.launch import local_cluster, slurm
from utils import SetupError

LOCAL, VIRTUAL, SLURM = BACK_ENDS = "local", "virtual", "slurm"
PROGRAMS = {LOCAL: ("scripts/local_cluster.sh",), SLURM: ("scripts/slurm.sh", "--wait")}
# Fields of Config that scripts/local_cluster.sh takes as options of its own, before `--`.
FASTEST = "--fastest"  # one of theirs, which may have several values
LAUNCHER_OPTIONS = ("network", "job", "exchange", "data_dir", "page")
NETWORK_WITHOUT_N = "lenet"  # as in the launchers
OWN = {"mode": "--modes", "seed": "--seeds"}  # fields that the sweep sets

Flags = Mapping[str, tuple[str, ...]]  # the words behind the flag of a field


@dataclass(frozen=True)
class Point:
    """One job of a sweep, which runs with several seeds."""

    mode: str
    # The flags that have several values in the sweep, as the user names them, each with this point's
    values: tuple[tuple[str, str], ...]
    options: tuple[str, ...]  # of the back end, such as `--cluster demo`
    flags: Flags  # all of main.py's

    @property
    def name(self) -> str:
        """Its folder."""
        return "-".join([self.mode, *(re.sub(r"[^A-Za-z0-9.]+", "-", f"{f.lstrip('-')} {v}") for f, v in self.values)])

    @property
    def title(self) -> str:
        """For tables and figures."""
        return " ".join([ENTRIES[self.mode].title, *(f"{flag} {value}" for flag, value in self.values)])

    def command(self, on: str, seed: int) -> list[str]:
        """The command of a run, without a place for its logs."""
        flags = {**self.flags, "seed": (str(seed),)}
        if board := self.flags.get("tensorboard"):
            flags["tensorboard"] = (str(Path(board[0]).resolve() / self.name / f"seed-{seed}"),)
        return command(on, self.mode, self.options, flags)


def command(on: str, mode: str, options: Sequence[str], flags: Flags) -> list[str]:
    """The command of a run by simulate.py or a launcher, without a place for its logs."""
    words = {field: [names_of(field)[-1], *values] for field, values in flags.items()}
    if on == VIRTUAL:
        return ["simulate.py", "-m", mode, *options, *itertools.chain.from_iterable(words.values())]
    own = [word for field in LAUNCHER_OPTIONS for word in words.pop(field, ())]
    if words.pop("split_by_class", [""])[-1] == "1":
        own.append("--split-by-class")
    rest = itertools.chain.from_iterable(words.values())
    return [*PROGRAMS[on], "-m", mode, *options, *own, "--", *rest]


def mode_folder(words: Sequence[str], base: Path) -> str:
    """NETWORK/MODE, where a command files its run in a log tree; checks its flags as the run will. Raises SetupError if
    they are wrong; of wrong values the parser ends the process with exit code 2."""
    program, *own = words
    cut = own.index("--") if "--" in own else len(own)
    arguments = [*own[:cut], "--log-base", str(base), *own[cut:]]
    if program == "simulate.py":
        _, (run,) = simulate.parse(arguments)
        return str(Path(run.job.config.log_dir).parent.relative_to(base))
    if program != "scripts/slurm.sh":
        return str(local_cluster.parse(arguments).mode_folder)
    request = slurm.parse(arguments)
    if request.is_array:
        raise SetupError("--array: a sweep makes the jobs of all seeds: leave it out, and give --seeds")
    return str(slurm.job_of(request).mode_folder)


# -------------------------------------------------------------------------------------------------- the command line


def split_flags(words: Sequence[str]) -> tuple[tuple[str, ...], dict[str, list[tuple[str, ...]]]]:
    """The options that are the back end's own, and by field of Config the values that its flag is to take in turn.
    Raises SetupError if a flag is one that the sweep sets."""
    fields = {name: field for field in FIELDS for name in names_of(field)}
    fields |= {its.formerly: field for field, its in FIELDS.items() if its.formerly}
    left, options, found = [word for word in words if word != "--"], [], dict[str, list[tuple[str, ...]]]()
    while left:
        word = left.pop(0)
        flag, is_joined, joined = word.partition("=")
        field = fields.get(flag)
        if field is None:
            options.append(word)
            continue
        if field in OWN:
            raise SetupError(f"{flag} is set by the sweep: give {OWN[field]}")
        taken = [joined] if is_joined else []
        most = {"+": len(left), "?": 1, None: 1}[FIELDS[field].arguments.get("nargs")]
        while not is_joined and len(taken) < most and left and not re.match("-+[A-Za-z]", left[0]):
            taken.append(left.pop(0))
        found[field] = [(each,) for each in _alternatives(field, taken[0])] if len(taken) == 1 else [tuple(taken)]
    return tuple(options), found


def _numbers(options: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """The options without --fastest, and its values."""
    own = FlagParser(add_help=False, allow_abbrev=False)
    own.add_argument(FASTEST, default="")
    given, others = own.parse_known_args(options)
    return tuple(others), [*filter(None, given.fastest.split(","))]


def _alternatives(field: str, text: str) -> list[str]:
    """The values of a list with commas; a text that is itself a value of the flag is one."""
    arguments: Mapping[str, Any] = FIELDS[field].arguments

    def is_value(each: str) -> bool:
        try:
            value = arguments["type"](each)
        except (ValueError, argparse.ArgumentTypeError):
            return False
        return "choices" not in arguments or value in arguments["choices"]

    parts = [*dict.fromkeys(text.split(","))]
    return parts if not is_value(text) and all(map(is_value, parts)) else [text]


def _modes_of(field: str) -> tuple[str, ...]:
    """As `modes_of`; --page is left out where the workers ask the state server."""
    return tuple(mode for mode in modes_of(field) if field != "page" or not OWNERS[mode].needs_state_server)


def counts(field: str, mode: str) -> bool:
    """Whether a flag does something in a mode: one that needs the flag of a preset belongs to that preset alone."""
    if OWNERS[mode].name not in _modes_of(field):
        return False
    needs = FIELDS[field].needs
    having = [name for name, entry in ENTRIES.items() if needs in entry.values or field in entry.given]
    return not having or mode in having


def points(modes: Sequence[str], words: Sequence[str]) -> list[Point]:
    """The points of a sweep, each with the flags that count in its mode.

    `words`: the back end's options and main.py's flags, of which some have several values, with commas. Raises
    SetupError if a flag counts in none of the modes, or two points would have the same folder.
    """
    options, flags = split_flags(words)
    if "network" not in flags and "job" not in flags:
        flags = {"network": [(NETWORK_WITHOUT_N,)], **flags}
    for field in flags:
        if not any(counts(field, mode) for mode in modes):
            raise SetupError(
                f"{names_of(field)[0]} does nothing in mode {one_of(modes)}: it counts in mode "
                f"{one_of(_modes_of(field))}; leave it out, or add a mode (--modes)"
            )
    options, numbers = _numbers(options)
    found = []
    for mode in modes:
        its = {field: values for field, values in flags.items() if counts(field, mode)}
        takes = [[FASTEST, k] for k in numbers if ENTRIES[mode].workers.takes_number] or [[]]
        for on, chosen in itertools.product(takes, itertools.product(*its.values())):
            of_point = dict(zip(its, chosen, strict=True))
            values = [(names_of(field)[0], of_point[field][0]) for field in its if len(its[field]) > 1]
            values = [(FASTEST, on[1]), *values] if len(takes) > 1 else values
            found.append(Point(mode, tuple(values), (*options, *on), of_point))
    names = [point.name for point in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise SetupError(f"two points of the sweep would have the folder {twice[0]}: leave one of their values out")
    return found
