"""The option --run NAME: LOG_BASE/NAME is a log tree of its own, which summary.py reads with `-b LOG_BASE/NAME`."""

from __future__ import annotations

import argparse

from config import NETWORKS, NO_NETWORK
from flag_values import text_like
from utils import EARLIER, SEED_FOLDER

# Folders of a log tree that belong to no run.
TAKEN = (*NETWORKS, NO_NETWORK, EARLIER, "figures", "trials")

_name = text_like(
    "[A-Za-z0-9][A-Za-z0-9._-]{0,63}",
    "cannot name a run; use 1 to 64 letters, digits, '.', '_' and '-', with a letter or digit first",
)


def run_name(text: str) -> str:
    """Parses the name of a run; it must differ from the other folders of the log tree."""
    if (name := _name(text)) in TAKEN or SEED_FOLDER.fullmatch(name):
        raise argparse.ArgumentTypeError(f"{text!r} has a meaning of its own in a log tree; choose another name")
    return name


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    parser.add_argument(
        "--run",
        type=run_name,
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="files the run in LOG_BASE/NAME, a log tree of its own",
    )


def run_of(given: argparse.Namespace) -> str:
    """The given name; empty if there is none."""
    return str(getattr(given, "run", ""))
