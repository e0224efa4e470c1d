"""One process of a job: what to start, and the process itself, which dies with the one that started it.

A process on another host (scripts/launch/link.py) has the same face; there scripts/launch/remote.py starts it as one of
these.
"""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from utils import EXIT_FORCED, LOG_TIME_FORMAT

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36
_libc = ctypes.CDLL(None)


class Kind(enum.Enum):
    """What the supervisor expects of a process."""

    WORKER = "worker"  # ends by itself; the job is done when all have
    SERVER = "server"  # ends by itself once the workers have (scheduler, parameter server)
    SERVICE = "service"  # never ends by itself (state server, connection to a host)


@dataclass(frozen=True)
class Role:
    """One process of the job."""

    name: str
    kind: Kind
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path  # it runs in
    log: Path  # gets its output, both streams; on the machine of the one who launches
    title: str = ""  # what the user calls it, where the name alone says too little
    show_all: bool = False  # on the console; else only warnings and errors
    is_ready: Callable[[], bool] | None = None  # the workers start after it says yes
    page: str = ""  # address that people open in a browser, once it is ready
    host: str = ""  # where it runs, if not on this machine: its command, variables and folder are that host's
    appends: bool = False  # to the log of the process before it, whose place it takes

    @property
    def label(self) -> str:
        """Name and title, for messages."""
        return f"{self.name} ({self.title})" if self.title else self.name


class Running(Protocol):
    """A role that was started, here or on another host."""

    role: Role
    ended_at: float | None  # noted by the supervisor

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""

    def new_lines(self) -> list[str]:
        """What it wrote since the last call, whole lines only."""

    def send(self, number: signal.Signals) -> None:
        """A signal to the process and whatever it started."""

    def reap(self) -> None:
        """Waits for the end of a process that was killed or has ended."""


STARTED_AGAIN = "=== started again: "  # between what two processes have written, and when


def open_log(role: Role) -> IO[bytes]:
    """The log of a process that starts, behind that of the one before it where there was one."""
    log = role.log.open("ab" if role.appends else "wb")
    if role.appends:
        log.write(f"{STARTED_AGAIN}{time.strftime(LOG_TIME_FORMAT)}\n".encode())
        log.flush()
    return log


def last_lines(log: Path) -> list[str]:
    """What the process that was started last has written."""
    _, is_again, text = log.read_text(errors="replace").rpartition(STARTED_AGAIN)
    return text.splitlines()[1 if is_again else 0 :]


def die_with(parent: int) -> None:
    """Even `kill -9` of the parent ends this process from now on: Linux kills it when the thread that forked ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_FORCED)


def name_process(name: str) -> None:
    """What `ps -o comm` and `top` call this process: the first 15 characters."""
    _libc.prctl(_PR_SET_NAME, name.encode()[:15])


def show_command(words: Sequence[str]) -> None:
    """What `ps` and /proc/PID/cmdline say that this process was started with; cut to the room of what it was."""
    numbers = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(numbers[45]), int(numbers[46])  # arg_start and arg_end of proc(5)
    text = b"".join(word.encode() + b"\0" for word in words)[: end - begin - 1]
    ctypes.memmove(begin, text.ljust(end - begin, b"\0"), end - begin)


def adopt(yes: bool) -> None:
    """Whether this process becomes the parent of what its children leave behind; without it, that is process 1."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def spawn(role: Role, stdin: int, stdout: int | IO[bytes], stderr: int | IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts a role's command as a child that dies with this process."""
    parent = os.getpid()

    return subprocess.Popen(
        role.command,
        cwd=role.folder,
        env=dict(role.environment),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        start_new_session=True,  # Ctrl-C on the terminal is for the supervisor alone
        preexec_fn=lambda: die_with(parent),
    )


class Child(Protocol):
    """A child of this process, as subprocess.Popen is one."""

    pid: int
    returncode: int | None  # None until it was waited for

    def wait(self) -> int:
        """Waits for its end; returns the exit code, or the negative signal that killed it."""


def begin(role: Role, log: IO[bytes]) -> Child:
    """Starts a role's command, which writes to its log."""
    return spawn(role, subprocess.DEVNULL, log, subprocess.STDOUT)


def code_of(child: Child) -> int | None:
    """Exit code of a child, which stays a zombie; None while it runs; negative: the signal that killed it."""
    if child.returncode is not None:  # it was waited for
        return child.returncode
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class Process:
    """A role that runs here. Its zombie is kept until the end, so that its id cannot become somebody else's."""

    def __init__(self, role: Role, begin: Callable[[Role, IO[bytes]], Child] = begin) -> None:
        """
        Args:
            begin: makes the child, given its log.
        """
        self.role = role
        with open_log(role) as log:
            begins_at = log.tell()
            self._child = begin(role, log)
        self._log = role.log.open("rb")
        self._log.seek(begins_at)
        self._partial = b""
        self.ended_at: float | None = None

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""
        return code_of(self._child)

    def new_lines(self) -> list[str]:
        """What it wrote since the last call, whole lines only."""
        *lines, self._partial = (self._partial + self._log.read()).split(b"\n")
        return [line.decode(errors="replace").rstrip() for line in lines]

    def send(self, number: signal.Signals) -> None:
        """A signal to the process and whatever it started."""
        os.killpg(self._child.pid, number)

    def reap(self) -> None:
        """Waits for the end of a process that was killed or has ended."""
        self._child.wait()
        self._log.close()
