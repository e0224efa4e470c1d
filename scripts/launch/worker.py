"""A worker of a distributed job that files its logs where summary.py reads them: logs/NETWORK/MODE/HOST/DEVICE/.

It becomes main.py with the same flags, preceded by the log folder and the folder for older logs. With the user's own
log folder, main.py empties that instead.
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from flag_parser import FlagParser
from scripts.launch.run_option import add_run
from trainer import command_line
from utils import EARLIER


def main_flags(arguments: Sequence[str], host: str) -> list[str]:
    """The flags for main.py; wrong ones end the process, as in main.py."""
    parser = FlagParser(prog="scripts/worker.sh", add_help=False)
    add_run(parser)
    own, flags = parser.parse_known_args(arguments)
    base = Path("logs") / own.run
    program = command_line.Program("scripts/worker.sh", flags=parser.flags)
    folder = str(base / command_line.parse(flags, program=program).mode_folder / host)
    given = command_line.parse(["-ld", folder, *flags])
    if given.log_dir == folder:
        return ["-ld", folder, "--earlier", str(base / EARLIER), *flags]
    if own.run:
        parser.error(f"--run {own.run} files the run below logs, and -ld {given.log_dir} says otherwise: leave one out")
    return flags


if __name__ == "__main__":
    start.run(
        lambda: os.execv(sys.executable, [sys.executable, "main.py", *main_flags(sys.argv[1:], socket.gethostname())])
    )
