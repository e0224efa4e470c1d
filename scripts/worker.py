"""A worker of a distributed job, with its logs filed as summary.py reads them: logs/NETWORK/MODE/HOST/DEVICE/.

Becomes main.py with the same flags and, in front of them, a log folder; one that the user gives comes later and wins.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from trainer import command_line


def main_flags(arguments: Sequence[str], host: str) -> list[str]:
    """The flags for main.py; wrong ones end the process, as there."""
    return ["-ld", str(Path("logs") / command_line.parse(arguments).mode_folder / host), *arguments]


if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, "main.py", *main_flags(sys.argv[1:], socket.gethostname())])
