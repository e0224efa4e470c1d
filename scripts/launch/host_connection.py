"""The launcher's connection to a host over ssh, and the processes there; scripts/launch/remote.py is the other end.

Nothing here waits for the host unless its docstring says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from scripts.launch import host_network
from scripts.launch.health import Health
from scripts.launch.hosts_file import Host
from scripts.launch.process import Kind, Role, RunningProcess, code_of, open_log, spawn
from utils import EXIT_SETUP, SetupError, Status

PING_EVERY_S = 5.0
CONNECT_S = 15  # ssh's own limit for a host that does not answer
ANSWER_S = 60.0
SILENT_S = 5.0  # after which a host counts as lost when all are started again
KILL_S = 10.0
SSH_FAILED = 255

# Nothing is asked on the terminal. ssh notices within half a minute that a connection is cut.
SSH_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "LogLevel=ERROR",
)
_ADVICE = {
    "permission denied": "none of your keys lets you in; ssh-copy-id {target} puts one there",
    "host key verification failed": "its key is unknown or another one; connect once by hand: ssh {target}",
}


def ssh_command(ssh: Sequence[str], host: Host, folder: str) -> list[str]:
    """The command that starts the agent on a host; without ssh where the address is this machine's own. `ssh` is the
    program with the user's options, `folder` that of the project there."""
    options = [word for option in SSH_OPTIONS for word in ("-o", option)]
    where = [*(("-p", host.port) if host.port else ()), *(("-l", host.user) if host.user else ()), host.address]
    script = agent_script(folder)
    if not host.user and not host.port and host_network.is_here(host.address):
        return ["sh", "-c", f"cd; {script}"]  # from home, as ssh does
    return [*ssh, *options, *where, f"exec sh -c {shlex.quote(script)}"]


def agent_script(folder: str) -> str:
    """The commands of a shell on a host, at home, that start the agent in the project's folder there."""
    # The shell there would expand `~/` only without quotes; a relative folder begins at home as well.
    quoted = shlex.quote(folder.removeprefix("~/"))
    return (
        f"cd {quoted} 2>/dev/null || {{ echo error: no folder {quoted} here: put the project there >&2; exit 2; }}; "
        f"[ -x scripts/remote.sh ] || {{ echo error: folder {quoted} has no scripts/remote.sh: "
        "put this version of the project there >&2; exit 2; }; exec scripts/remote.sh"
    )


class HostConnection(RunningProcess):
    """A connection to a host. For the supervisor it is a service, which all processes of the host need."""

    def __init__(
        self, host: Host, command: Sequence[str], log: Path, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """`command` is ssh and its arguments; `log` gets what ssh prints. `meanwhile` is called during a wait for an
        answer, so that the other hosts get their pings."""
        self.host = host
        self._meanwhile = meanwhile
        self.is_silent = False  # a kill is not confirmed
        self._is_hung_up = False
        role = Role(
            name=f"the connection to {host.name}",
            kind=Kind.SERVICE,
            command=command,
            environment=os.environ,
            folder=Path.cwd(),
            log=log,
            host=host.name,
        )
        super().__init__(role)
        with log.open("wb") as errors:
            self._child = spawn(self.role, subprocess.PIPE, subprocess.PIPE, errors)
        assert self._child.stdin and self._child.stdout
        self._to, self._from = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._outgoing, self._partial = b"", b""
        self._pinged_at = time.monotonic()
        self._answers: list[dict[str, Any]] = []
        self._num_late = 0  # answers that are not waited for any longer
        self._processes: dict[str, RemoteProcess] = {}

    # ----------------------------------------------------------------------------------------------- messages

    def send_message(self, **message: Any) -> None:
        """Sends a message; `pump` and `exit_code` show whether the connection is gone."""
        if self._is_hung_up:
            return
        self._outgoing += json.dumps(message).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            while self._outgoing:
                self._outgoing = self._outgoing[os.write(self._to, self._outgoing) :]

    def pump(self) -> bool:
        """Reads what has arrived, and pings when due; returns whether the connection is still there."""
        now = time.monotonic()
        if now > self._pinged_at + PING_EVERY_S:
            self._pinged_at = now
            self.send_message(do="ping")
        while True:
            try:
                data = os.read(self._from, 1 << 20)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            kind = message["is"]
        except (ValueError, TypeError, KeyError):
            return  # the output of a login script
        if kind in ("line", "told", "ended", "ready"):
            if process := self._processes.get(message["name"]):
                process.receive(message)
        elif self._num_late:
            self._num_late -= 1
        else:
            self._answers.append(message)

    def answer(self) -> dict[str, Any] | None:
        """The next answer; None: it has not arrived yet. Waits for the end of a connection that is gone. Raises
        SetupError if the host cannot do what was asked, or the connection is gone."""
        is_there = self.pump()
        if self._answers:
            answer = self._answers.pop(0)
            if answer["is"] == "error":
                raise self._error(answer["text"])
            return answer
        if not is_there:
            raise self._error(self._why_gone())
        return None

    def give_up_answer(self) -> None:
        """The next answer is not waited for any longer, and is not taken for that to a later request."""
        self._num_late += not self._answers
        del self._answers[:1]

    def _error(self, text: str) -> SetupError:
        return SetupError(f"{self.host.where}: {self.host.name}: {text}")

    def answers(self) -> Iterator[dict[str, Any]]:
        """Waits for answers, and yields each. Raises SetupError as `answer`, or if the host does not answer."""
        last = time.monotonic()
        while True:
            while (answer := self.answer()) is not None:
                yield answer
                last = time.monotonic()
            if time.monotonic() > last + ANSWER_S:
                self.give_up_answer()
                raise SetupError(f"{self.host.where}: {self.host.name} did not answer within {ANSWER_S:g} s")
            self._meanwhile()
            wait([self._from], 0.2)

    def ask(self, **message: Any) -> dict[str, Any]:
        """Sends a request and waits for the answer. Raises SetupError as `answers`."""
        self.send_message(**message)
        return next(self.answers())

    def _said(self) -> str:
        """The line of ssh, or of the agent, that says why the connection is gone; empty if there is none."""
        log = self.role.log.read_text(errors="replace") if self.role.log.exists() else ""  # see `reap`
        lines = ["", *(line.strip() for line in log.splitlines() if line.strip())]
        return next((line for line in lines if line.startswith("error: ")), lines[-1])

    def _why_gone(self) -> str:
        self._child.wait()
        said = self._said() or "no reason was given"
        if self._child.returncode == EXIT_SETUP:
            return said.removeprefix("error: ")
        if self._child.returncode != SSH_FAILED:
            return f"the agent there ended with exit code {self._child.returncode}: {said}"
        target = self.host.address if not self.host.user else f"{self.host.user}@{self.host.address}"
        advice = next((text for pattern, text in _ADVICE.items() if pattern in said.lower()), "")
        return f"ssh: {said}" + (f" ({advice.format(target=target)})" if advice else "")

    # ---------------------------------------------------------------------------------------------- processes

    def start(self, role: Role, there: Path) -> RemoteProcess:
        """Starts a role on the host. `there` is a folder on the host for a second copy of the log."""
        process = self._processes[role.name] = RemoteProcess(self, role)
        self.send_message(
            do="start",
            name=role.name,
            command=list(role.command),
            environment=dict(role.environment),
            folder=str(role.folder),
            log=str(there / role.log.name),
            appends=role.appends,
            service=role.is_ready.place if isinstance(role.is_ready, Health) else None,
        )
        return process

    def unconfirmed(self) -> list[str]:
        """The names of the processes that are not known to have ended."""
        return [name for name, process in self._processes.items() if process.exit_code is None]

    @property
    def exit_code(self) -> int | None:
        """ssh's exit code; None while the connection is there."""
        self.pump()
        return code_of(self._child)

    @property
    def status(self) -> Status:
        return {"error": self._said()}

    def new_lines(self) -> list[str]:
        return []

    def send(self, number: signal.Signals) -> None:
        os.killpg(self._child.pid, number)

    def hang_up(self) -> None:
        """Ends the connection, and with it all processes on the host."""
        assert self._child.stdin
        self._is_hung_up = True
        self._child.stdin.close()

    def reap(self) -> None:
        """Waits for the end of a connection that was hung up, and removes an empty log."""
        give_up = time.monotonic() + KILL_S
        while self.exit_code is None and time.monotonic() < give_up:  # reads what keeps the agent from ending
            time.sleep(0.02)
        if self.exit_code is None:
            self.send(signal.SIGKILL)
        self._child.wait()
        with contextlib.suppress(OSError):
            if not self.role.log.stat().st_size:
                self.role.log.unlink()


class RemoteProcess(RunningProcess):
    """A role on another host; a RunningProcess like process.Process."""

    def __init__(self, connection: HostConnection, role: Role) -> None:
        super().__init__(role)
        self._connection = connection
        self._log = open_log(role)
        self._lines: list[str] = []
        self._code: int | None = None
        self._status: Status = {}
        self._is_answering = False

    def receive(self, message: Mapping[str, Any]) -> None:
        if message["is"] == "line":
            self._lines.append(message["text"])
            self._log.write(f"{message['text']}\n".encode())
        elif message["is"] == "told":
            self._status = message["told"]
        elif message["is"] == "ready":
            self._is_answering = message["is_up"]
        else:
            self._code, self._connection.is_silent = message["code"], False

    @property
    def status(self) -> Status:
        return self._status

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and when it is unknown, since the connection has ended."""
        self._connection.pump()
        return self._code

    def is_answering(self) -> bool:
        """As its host has told."""
        self._connection.pump()
        return self._is_answering

    def new_lines(self) -> list[str]:
        self._connection.pump()
        lines, self._lines = self._lines, []
        return lines

    def send(self, number: signal.Signals) -> None:
        self._connection.send_message(do="send", name=self.role.name, signal=int(number))

    def reap(self) -> None:
        """Waits for the end of a process that was killed or has ended, unless its host does not confirm it."""
        give_up = time.monotonic() + KILL_S
        while self.exit_code is None and self._connection.exit_code is None and not self._connection.is_silent:
            self._connection.is_silent = time.monotonic() > give_up
            time.sleep(0.05)
        self._log.close()
