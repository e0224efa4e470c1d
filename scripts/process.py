"""One process of a job: what to start, and the process itself, which dies with the one that started it."""

from __future__ import annotations

import ctypes
import enum
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from utils import EXIT_FORCED

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


class Kind(enum.Enum):
    """What the supervisor expects of a process."""

    WORKER = "worker"  # ends by itself; the job is done when all have
    SERVER = "server"  # ends by itself once the workers have (scheduler, parameter server)
    SERVICE = "service"  # never ends by itself (state server)


@dataclass(frozen=True)
class Role:
    """One process of the job."""

    name: str
    kind: Kind
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path  # it runs in
    log: Path  # gets its output, both streams
    title: str = ""  # what the user calls it, where the name alone says too little
    show_all: bool = False  # on the console; else only warnings and errors
    is_ready: Callable[[], bool] | None = None  # the workers start after it says yes

    @property
    def label(self) -> str:
        """Name and title, for messages."""
        return f"{self.name} ({self.title})" if self.title else self.name


class Process:
    """A role that was started. Its zombie is kept until the end, so that its id cannot become somebody else's."""

    def __init__(self, role: Role) -> None:
        self.role = role
        parent = os.getpid()

        def die_with_parent() -> None:
            # Even `kill -9` of the supervisor ends its processes: Linux sends this when the thread that forked ends.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(EXIT_FORCED)

        with role.log.open("wb") as log:
            self._child = subprocess.Popen(
                role.command,
                cwd=role.folder,
                env=dict(role.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C on the terminal is for the supervisor alone
                preexec_fn=die_with_parent,
            )
        self._log = role.log.open("rb")
        self._partial = b""
        self.ended_at: float | None = None  # noted by the supervisor

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        ended = os.waitid(os.P_PID, self._child.pid, flags)
        if ended is None:
            return None
        return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status

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
