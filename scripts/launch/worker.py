"""A worker of a distributed job, with its logs filed as summary.py reads them: logs/NETWORK/MODE/HOST/DEVICE/.

Becomes main.py with the same flags and, in front of them, a log folder, and where the logs of the run before are moved.
A log folder that the user gives wins, and is main.py's own: it is emptied.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.launch.run_option import add_run, run_of
from trainer import command_line
from utils import EARLIER


def main_flags(arguments: Sequence[str], host: str) -> list[str]:
    """The flags for main.py; wrong ones end the process, as there."""
    parser = argparse.ArgumentParser(prog="scripts/worker.sh", add_help=False, allow_abbrev=False)
    add_run(parser)
    own, flags = parser.parse_known_args(arguments)
    base = Path("logs") / (run := run_of(own))
    folder = str(base / command_line.parse(flags).mode_folder / host)
    given = command_line.parse(["-ld", folder, *flags])
    if given.log_dir == folder:
        return ["-ld", folder, "--earlier", str(base / EARLIER), *flags]
    if run:
        parser.error(f"--run {run} files the run below logs, and -ld {given.log_dir} says otherwise: leave one out")
    return flags


if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "main.py", *main_flags(sys.argv[1:], socket.gethostname())])
