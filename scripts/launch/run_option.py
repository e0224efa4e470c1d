"""The option --run NAME: LOG_BASE/NAME is a log tree of its own, which summary.py reads with `-b LOG_BASE/NAME`."""

import argparse

import flag_values
from config import is_taken


def run_name(text: str) -> str:
    """Parses the name of a run; it must differ from the other folders of the log tree."""
    if is_taken(name := flag_values.run_name(text)):
        raise argparse.ArgumentTypeError(f"{text!r} has a meaning of its own in a log tree; choose another name")
    return name


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    parser.set_defaults(run="")
    parser.add_argument(
        "--run",
        type=run_name,
        default=argparse.SUPPRESS,  # which the help does not show
        metavar="NAME",
        help="files the run in LOG_BASE/NAME, a log tree of its own",
    )
