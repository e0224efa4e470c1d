"""What Linux is told of this process: when it ends, whom it adopts, and what `ps` shows. Standard library only."""

import ctypes
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from utils import EXIT_FORCED

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None)


def die_with(parent: int) -> None:
    """Makes Linux kill this process when the thread of the parent that forked it ends, also by `kill -9`."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_FORCED)


def adopt(yes: bool) -> None:
    """Makes this process, in place of process 1, the parent of its children's orphans; or no longer."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def name_process(name: str) -> None:
    """Sets the name that `ps -o comm` and `top` show: the first 15 characters."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15])


def show_command(words: Sequence[str]) -> None:
    """Sets the command that `ps` and /proc/PID/cmdline show, cut to the length of the original one."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(numbers[45]), int(numbers[46])  # arg_start and arg_end of proc(5)
    text = b"".join(word.encode() + b"\0" for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)
