"""A host at the end of an ssh connection, as the launcher sees it: processes start and end there, and logs come home.

scripts/launch/remote.py is at the other end. Nothing here waits for the host unless its docstring says so.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import os
import select
import shlex
import shutil
import signal
import subprocess
import tarfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from scripts.launch import host_network
from scripts.launch.hosts_file import Host
from scripts.launch.process import Kind, Role, code_of, open_log, spawn
from trainer.run_logs.earlier_runs import config_in, is_same_run, set_aside, written
from utils import EXIT_SETUP, SetupError

PING_EVERY_S = 5.0
CONNECT_S = 15  # ssh's own limit for a host that does not answer
ANSWER_S = 60.0
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
    """The command that starts the launcher's hand on a host; without ssh where the address is this machine's own.

    Args:
        ssh: the program and the user's own options.
        host: to log in to.
        folder: of the project there.
    """
    options = [word for option in SSH_OPTIONS for word in ("-o", option)]
    where = [*(("-p", host.port) if host.port else ()), *(("-l", host.user) if host.user else ()), host.address]
    # `~/` is for the shell there, so it must not be in quotes; a relative folder begins at home as well.
    quoted = shlex.quote(folder.removeprefix("~/"))
    script = (
        f"cd {quoted} 2>/dev/null || {{ echo error: no folder {quoted} here: put the project there >&2; exit 2; }}; "
        f"[ -x scripts/remote.sh ] || {{ echo error: folder {quoted} has no scripts/remote.sh: "
        "put this version of the project there >&2; exit 2; }; exec scripts/remote.sh"
    )
    if not host.user and not host.port and host_network.is_here(host.address):
        return ["sh", "-c", f"cd; {script}"]  # from home, as ssh does
    return [*ssh, *options, *where, f"exec sh -c {shlex.quote(script)}"]


class Link:
    """A connection to a host. For the supervisor it is a service: without it nothing there goes on."""

    def __init__(
        self, host: Host, command: Sequence[str], log: Path, meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        """
        Args:
            host: at the other end.
            command: ssh and its arguments.
            log: gets what ssh says.
            meanwhile: called while an answer is waited for; the other hosts must hear from the launcher too.
        """
        self.host = host
        self._meanwhile = meanwhile
        self.is_silent = False  # it did not confirm a kill, so far
        self._is_broken = False  # not all that it answered was taken: what comes next would be taken for something else
        self._is_hung_up = False
        self._warmth: dict[str, Any] | None = None  # what it has answered to `warm`
        self.ended_at: float | None = None
        self.role = Role(
            name=f"the connection to {host.name}",
            kind=Kind.SERVICE,
            command=command,
            environment=os.environ,
            folder=Path.cwd(),
            log=log,
            host=host.name,
        )
        with log.open("wb") as errors:
            self._child = spawn(self.role, subprocess.PIPE, subprocess.PIPE, errors)
        assert self._child.stdin and self._child.stdout
        self._to, self._from = self._child.stdin.fileno(), self._child.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._outgoing, self._partial = b"", b""
        self._pinged_at = time.monotonic()
        self._answers: list[dict[str, Any]] = []
        self._hello: dict[str, Any] | None = None
        self._processes: dict[str, RemoteProcess] = {}

    # ----------------------------------------------------------------------------------------------- messages

    def send_message(self, **message: Any) -> None:
        """Tells the host something. A connection that is gone is noticed elsewhere."""
        if self._is_hung_up:
            return
        self._outgoing += json.dumps(message).encode() + b"\n"
        with contextlib.suppress(BrokenPipeError, BlockingIOError):
            while self._outgoing:
                self._outgoing = self._outgoing[os.write(self._to, self._outgoing) :]

    def pump(self) -> bool:
        """Takes in what has come; returns whether the connection is still there."""
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
            return  # what a login script prints
        if kind in ("line", "ended", "ready"):
            if process := self._processes.get(message["name"]):
                process.take(message)
        elif kind in ("warm", "cold"):
            self._warmth = message
        else:
            self._answers.append(message)

    def answer(self) -> dict[str, Any] | None:
        """The next of what the host answers; None: it has not come yet. Waits for the end of a connection that is gone.

        Raises:
            SetupError: the host says that something cannot be done, or the connection is gone.
        """
        is_there = self.pump()
        if self._answers:
            answer = self._answers.pop(0)
            if answer["is"] == "error":
                raise SetupError(f"{self.host.where}: {self.host.name}: {answer['text']}")
            if answer["is"] == "hello":
                self._hello = answer
            return answer
        if not is_there:
            raise SetupError(f"{self.host.where}: {self.host.name}: {self._why_gone()}")
        return None

    def answers(self) -> Iterator[dict[str, Any]]:
        """Waits for what the host answers, message by message.

        Raises:
            SetupError: as `answer`, or the host is silent.
        """
        last = time.monotonic()
        while True:
            while (answer := self.answer()) is not None:
                yield answer
                last = time.monotonic()
            if time.monotonic() > last + ANSWER_S:
                self._is_broken = True
                raise SetupError(f"{self.host.where}: {self.host.name} did not answer within {ANSWER_S:g} s")
            self._meanwhile()
            select.select([self._from], [], [], 0.2)

    def hello(self) -> dict[str, Any]:
        """What the host says of itself, first of all. Waits for it.

        Raises:
            SetupError: as `answers`.
        """
        return self._hello or next(self.answers())

    def ask(self, **message: Any) -> dict[str, Any]:
        """Tells the host something and waits for its answer.

        Raises:
            SetupError: as `answers`.
        """
        self.send_message(**message)
        return next(self.answers())

    def warm(self, folder: str, forks: Sequence[str], imports: bool) -> None:
        """Lets the host get ready for a start, whatever runs there: `is_warm` says when it is.

        Args:
            folder: of the host's logs there.
            forks: what workers read: dataset and folder.
            imports: what workers need; else it is enough that the host is connected.
        """
        self._warmth = None if imports else {"is": "warm"}
        if imports:
            self.send_message(do="warm", folder=folder, forks=list(forks))

    def is_warm(self) -> bool:
        """Whether it is ready: processes can be forked there, or never will be. Waits as `answer`.

        Raises:
            SetupError: it cannot be, or the connection is gone.
        """
        if self._hello is None and self.answer() is None:
            return False
        if not self.pump():
            raise SetupError(f"{self.host.where}: {self.host.name}: {self._why_gone()}")
        if self._warmth is not None and self._warmth["is"] == "cold":
            raise SetupError(f"{self.host.where}: {self.host.name}: {self._warmth['text']}")
        return self._warmth is not None

    @property
    def is_sound(self) -> bool:
        """Whether another start may use it."""
        return self.exit_code is None and not self.is_silent and not self._is_broken

    def _why_gone(self) -> str:
        self._child.wait()
        lines = [line.strip() for line in self.role.log.read_text(errors="replace").splitlines() if line.strip()]
        lines = lines or ["no reason was given"]
        said = next((line for line in lines if line.startswith("error: ")), lines[-1])
        if self._child.returncode == EXIT_SETUP:
            return said.removeprefix("error: ")
        if self._child.returncode != SSH_FAILED:
            return f"the launcher's hand there ended with exit code {self._child.returncode}: {said}"
        target = self.host.address if not self.host.user else f"{self.host.user}@{self.host.address}"
        advice = next((text for pattern, text in _ADVICE.items() if pattern in " ".join(lines).lower()), "")
        return f"ssh: {said}" + (f" ({advice.format(target=target)})" if advice else "")

    # ---------------------------------------------------------------------------------------------- processes

    def start(self, role: Role, there: Path, service: tuple[str, int] | None) -> RemoteProcess:
        """Starts a role on the host.

        Args:
            role: what to start.
            there: the folder of its log on the host, where a second copy of it is.
            service: address and port at which it will answer, where it is a service.
        """
        process = self._processes[role.name] = RemoteProcess(self, role)
        self.send_message(
            do="start",
            name=role.name,
            command=list(role.command),
            environment=dict(role.environment),
            folder=str(role.folder),
            log=str(there / role.log.name),
            appends=role.appends,
            service=service,
        )
        return process

    def is_ready(self, name: str) -> bool:
        """Whether a service on the host answers."""
        self.pump()
        return name in self._processes and self._processes[name].is_ready

    def forget(self) -> None:
        """The processes so far are of another start."""
        self._processes = {}

    def unconfirmed(self) -> list[str]:
        """The processes that nobody saw end."""
        return [name for name, process in self._processes.items() if process.exit_code is None]

    @property
    def exit_code(self) -> int | None:
        """Of ssh; None while the connection is there."""
        self.pump()
        return code_of(self._child)

    def new_lines(self) -> list[str]:
        """None: a connection has nothing to say."""
        return []

    def send(self, number: signal.Signals) -> None:
        """A signal to ssh."""
        os.killpg(self._child.pid, number)

    def hang_up(self) -> None:
        """Ends the connection, and with it whatever still runs on the host. The host has no more to do then."""
        assert self._child.stdin
        self._is_hung_up = True
        self._child.stdin.close()

    def reap(self) -> None:
        """Waits for the end of a connection that was hung up. Its log stays where there is something in it."""
        try:
            self._child.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._child.wait()
        with contextlib.suppress(OSError):
            if not self.role.log.stat().st_size:
                self.role.log.unlink()

    # ------------------------------------------------------------------------------------------------- logs

    def fetch_logs(self, home: Path, earlier: Path) -> None:
        """Brings the logs that the job left on the host. Waits for them.

        A worker's logs come as a whole, in the place of those that were there.

        Args:
            home: the host's folder in the log tree of this machine.
            earlier: where those of another run are moved.

        Raises:
            SetupError: they did not come. What was there before is left as it was.
            OSError: they cannot be written.
        """
        arriving = home.with_name(f".{home.name}-arriving")
        shutil.rmtree(arriving, ignore_errors=True)
        arriving.mkdir(parents=True)
        try:
            archive = arriving / "logs.tar.gz"
            self._receive(archive)
            if archive.stat().st_size:
                _unpack(archive, arriving)
            archive.unlink()
            for path in arriving.iterdir():
                home.mkdir(exist_ok=True)
                _take_place(path, home / path.name, earlier)
        finally:
            shutil.rmtree(arriving, ignore_errors=True)

    def _receive(self, archive: Path) -> None:
        self._is_broken = True  # until the end has come
        self.send_message(do="fetch")
        with archive.open("wb") as file:
            for answer in self.answers():
                if answer["is"] == "fetched":
                    break
                file.write(base64.b64decode(answer["data"]))
        self._is_broken = False


def _take_place(path: Path, place: Path, earlier: Path) -> None:
    """A worker's folder, or a file, takes the place of what the same worker left before; other files stay there."""
    if not (path.is_dir() and place.is_dir()):
        path.replace(place)
        return
    comes, there = config_in(path), config_in(place)
    if comes.get("resume") or is_same_run(comes.get("earlier", ""), there.get("earlier", "")):
        for old in written(place):
            old.unlink()
    else:
        set_aside(written(place), earlier)
    for new in [new for new in path.rglob("*") if new.is_file()]:
        target = place / new.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        new.replace(target)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpacks plain files into a folder and nowhere else.

    Raises:
        SetupError: the archive is damaged, or holds something else.
        OSError: a file cannot be written.
    """
    try:
        with gzip.open(archive) as unpacked, tarfile.open(fileobj=unpacked, mode="r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                content = tar.extractfile(member) if member.isfile() else None
                if content is None or name.is_absolute() or ".." in name.parts:
                    raise SetupError(f"the archive of logs holds {member.name!r}, which is no log")
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                with (folder / name).open("wb") as file:
                    shutil.copyfileobj(content, file)
            while unpacked.read(1 << 20):  # the checksum is behind the last file
                pass
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise SetupError(f"the archive of logs cannot be read ({error}): copy them by hand") from None


class RemoteProcess:
    """A role on another host, with the face of scripts.process.Process."""

    def __init__(self, link: Link, role: Role) -> None:
        self.role = role
        self.ended_at: float | None = None
        self._link = link
        self._log = open_log(role)
        self._lines: list[str] = []
        self._code: int | None = None
        self.is_ready = False

    def take(self, message: Mapping[str, Any]) -> None:
        """What the host tells of this process."""
        if message["is"] == "line":
            self._lines.append(message["text"])
            self._log.write(f"{message['text']}\n".encode())
            self._log.flush()
        elif message["is"] == "ready":
            self.is_ready = True
        else:
            self._code, self._link.is_silent = message["code"], False

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and when nobody can know: then the connection has ended."""
        self._link.pump()
        return self._code

    def new_lines(self) -> list[str]:
        """What it wrote since the last call, whole lines only."""
        self._link.pump()
        lines, self._lines = self._lines, []
        return lines

    def send(self, number: signal.Signals) -> None:
        """A signal to the process and whatever it started."""
        self._link.send_message(do="send", name=self.role.name, signal=int(number))

    def reap(self) -> None:
        """Waits for the end of a process that was killed or has ended; not for a host that cannot be reached."""
        give_up = time.monotonic() + KILL_S
        while self.exit_code is None and self._link.exit_code is None and not self._link.is_silent:
            self._link.is_silent = time.monotonic() > give_up
            time.sleep(0.05)
        self._log.close()
