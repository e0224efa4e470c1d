"""One process of a job: what to start, and the running process, which dies with the one that started it.

RemoteProcess in scripts/launch/host_connection.py has the same interface; on its host scripts/launch/remote.py starts
it as one of these.
"""

import contextlib
import dataclasses
import enum
import json
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trainer.runtime.own_process import die_with
from utils import EXIT_INCOMPLETE, EXIT_OK, LEFT, LOG_TIME_FORMAT, Status, launchers_pipe

DONE = (EXIT_OK, EXIT_INCOMPLETE)  # exit codes


class Kind(enum.Enum):
    """What the supervisor expects of a process."""

    WORKER = "worker"  # ends by itself; the job is done when all have
    SERVER = "server"  # ends by itself once the workers have (scheduler, parameter server)
    HUB = "hub"  # likewise; where the workers go on without a lost one, it is started again alone, as a service is
    SERVICE = "service"  # does not end by itself (state server, connection to a host)


@dataclass(frozen=True)
class Role:
    """One process of a job."""

    name: str
    kind: Kind
    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path  # working directory
    log: Path  # gets both output streams; on the launcher's machine
    title: str = ""  # for messages, where the name says too little
    show_all: bool = False  # on the console; else only warnings and errors
    is_ready: Callable[[], bool] | None = None  # a service answers; the workers start once all that they need do
    page: str = ""  # URL for the user, once it is ready
    is_for_page: bool = False  # and for nothing else: without it the job goes on
    host: str = ""  # empty: this machine; else command, variables and folder are that host's
    node: str = ""  # name of its host in the layout, also where that is this machine
    appends: bool = False  # to the log of the process that it replaces

    @property
    def label(self) -> str:
        return f"{self.name} ({self.title})" if self.title else self.name


class RunningProcess(ABC):
    """A role that was started, here or on another host."""

    # What the supervisor notes; times of the monotonic clock.
    started_at = 0.0
    ended_at: float | None = None
    is_back = False  # it was started again alone
    is_up, has_answered = False, False  # a service: it answers, it has done so
    is_frozen = False  # a service that was killed since it does not answer

    def __init__(self, role: Role) -> None:
        self.role = role

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that killed it."""

    @property
    @abstractmethod
    def status(self) -> Status:
        """What it has told of itself."""

    @property
    def is_done(self) -> bool:
        """Whether it has ended because the job was done."""
        return self.exit_code in DONE and self.status.get("ended") != LEFT

    @property
    def has_left(self) -> bool:
        """Whether it has ended, and the job goes on."""
        return self.exit_code in DONE and self.status.get("ended") == LEFT

    def is_answering(self) -> bool:
        """Whether it is a service that answers now."""
        return self.role.is_ready is not None and self.role.is_ready()

    @abstractmethod
    def new_lines(self) -> list[str]:
        """The whole lines that it has written since the last call."""

    @abstractmethod
    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the process and its children."""

    @abstractmethod
    def reap(self) -> None:
        """Waits for the end of a process that was killed or has ended."""


STARTED_AGAIN = "=== started again: "  # and the time: stands between the logs of two processes


def open_log(role: Role) -> IO[bytes]:
    """Opens the log of a process that starts."""
    log = role.log.open("ab" if role.appends else "wb", buffering=0)
    if role.appends:
        with contextlib.suppress(OSError):  # the disk is full: the process may run all the same
            log.write(f"{STARTED_AGAIN}{time.strftime(LOG_TIME_FORMAT)}\n".encode())
    return log


def spawn(
    role: Role, stdin: int, stdout: int | IO[bytes], stderr: int | IO[bytes], pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
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
        pass_fds=pass_fds,
    )


class AdoptedChild:
    """A child of this process that another process has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        if self.returncode is None:
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


Child = subprocess.Popen[bytes] | AdoptedChild


def begin(role: Role, log: IO[bytes], pipe: int) -> Child:
    """Starts a role's command, which writes to its log, and tells of itself in the pipe."""
    role = dataclasses.replace(role, environment={**role.environment, **launchers_pipe(pipe)})
    return spawn(role, subprocess.DEVNULL, log, subprocess.STDOUT, [pipe])


def code_of(child: Child) -> int | None:
    """Exit code of a child, without reaping it; None while it runs; negative: the signal that killed it."""
    if child.returncode is not None:  # it was waited for
        return child.returncode
    ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


class Process(RunningProcess):
    """A role that runs here. It is reaped at the end only, so that its id cannot become another process's."""

    def __init__(self, role: Role, begin: Callable[[Role, IO[bytes], int], Child] = begin) -> None:
        super().__init__(role)
        self._status: Status = {}
        pipe, its = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._pipe = os.fdopen(pipe, "rb", buffering=0)
        with os.fdopen(its, "wb"), open_log(role) as log:
            begins_at = log.tell()
            self._child = begin(role, log, its)
        self._log = role.log.open("rb")
        self._log.seek(begins_at)
        self._partial = b""

    @property
    def exit_code(self) -> int | None:
        return code_of(self._child)

    @property
    def status(self) -> Status:
        if not self._pipe.closed:  # a line arrives in one piece
            for line in (self._pipe.read(1 << 16) or b"").splitlines():
                with contextlib.suppress(ValueError, TypeError):  # a job file can write to any descriptor
                    self._status |= json.loads(line)
        return self._status

    def new_lines(self) -> list[str]:
        *lines, self._partial = (self._partial + self._log.read()).split(b"\n")
        return [line.decode(errors="replace").rstrip() for line in lines]

    def send(self, number: signal.Signals) -> None:
        os.killpg(self._child.pid, number)

    def reap(self) -> None:
        self._child.wait()
        self._status = self.status  # the last of it
        self._pipe.close()
        self._log.close()
