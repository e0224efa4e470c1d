"""The agent on a host, over ssh or srun: starts processes, forwards their output, ends with its stdin.

It reads requests as lines of JSON on stdin and answers with such lines on stdout. When stdin closes, because the
launcher or the connection is gone, or when it receives nothing for a minute, it kills all that it has started.

    {"do": "start", "name": ..., ...}   ->  {"is": "line", ...} for each line, {"is": "ended", "code": ...} at the end;
                                            {"is": "told", "told": ...}: all that the process has told of itself;
                                            {"is": "ready", "is_up": ...} when a service begins or stops to answer
    {"do": "send", "name": ..., "signal": 15}
    {"do": "network", ...}              ->  {"is": "network", "address": ..., "interface": ...}
    {"do": "ports", "count": 3}         ->  {"is": "ports", "ports": [...]}
    {"do": "checkpoints", ...}          ->  {"is": "checkpoints", "files": {...}}, names and when they were written;
                                            an error where the host does not reach the hub or scheduler
    {"do": "begin", "folder": ..., ...} ->  {"is": "begun"}; logs that change from here on are this job's
    {"do": "fetch"}                     ->  {"is": "part", "data": ...} of a tar archive, then {"is": "fetched"}
    {"do": "ping"}

A request that fails is answered with {"is": "error", "text": ...}.
"""

import base64
import gzip
import io
import json
import os
import shutil
import signal
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

from scripts.launch import host_network
from scripts.launch.forking import FORK_SERVER_LOG, ForkServer
from scripts.launch.health import Health
from scripts.launch.hosts_layout import free_ports
from scripts.launch.process import Kind, Process, Role
from scripts.launch.roles import JOB_FOLDER, ROOT, base_environment
from trainer.survival.checkpoint_rounds import written_in
from utils import EXIT_OK, EXIT_SETUP, RUN_FILE, SetupError, Status, usable_cores

POLL_S = 0.1
SILENCE_S = 60  # the launcher pings every few seconds, so a cut connection is noticed before TCP gives it up
PART_BYTES = 48 * 1024
COMPRESSION = 1  # models hardly shrink, and text shrinks at every level
ENDING = (signal.SIGALRM, signal.SIGTERM, signal.SIGHUP, signal.SIGINT)

Message = Mapping[str, Any]


def say(kind: str, **message: Any) -> None:
    """Sends a message to the launcher."""
    data = json.dumps({"is": kind, **message}).encode() + b"\n"
    while data:
        data = data[os.write(sys.stdout.fileno(), data) :]


class Agent:
    """The processes of a job on this host, and their logs."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}
        self._told: dict[Process, Status] = {}  # what the launcher knows
        self._ended: set[Process] = set()
        self._logs: HostLogs | None = None
        self._forks: ForkServer | None = None

    def do(self, message: Message) -> None:
        """Does what the launcher asks. Raises SetupError or OSError if it cannot be done here."""
        match message["do"]:
            case "start":
                self._start(message)
            case "send":
                if message["name"] in self._processes:
                    number = signal.Signals(message["signal"])
                    is_ignored = number is signal.SIGTERM and signal.getsignal(number) is signal.SIG_IGN
                    self._processes[message["name"]].send(signal.SIGINT if is_ignored else number)
            case "network":
                address, interface = host_network.find(message["address"], message["interface"], message["toward"])
                say("network", address=address, interface=interface)
            case "ports":
                say("ports", ports=free_ports(message["count"]))
            case "checkpoints":
                if message.get("toward"):
                    host_network.check_way(*message["toward"])
                say("checkpoints", files=written_in(Path(message["folder"])))
            case "begin":
                folder = ROOT / message["folder"]  # in the log tree; a relative one is the project's
                folder.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(folder / JOB_FOLDER, ignore_errors=True)
                for name, text in message["files"].items():
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / name).write_bytes(text.encode(errors="surrogateescape"))
                self._logs = HostLogs(folder, message["devices"])
                if message.get("forks"):  # it starts processes from now on where it can
                    self._forks = ForkServer(message["forks"], folder / FORK_SERVER_LOG)
                say("begun")
            case "fetch":
                if self._logs:
                    self._logs.send()
                say("fetched")
            case "ping":
                pass
            case other:
                raise SetupError(f"this host's project does not know {other!r}: update it to the launcher's version")

    def _start(self, message: Message) -> None:
        role = Role(
            name=message["name"],
            kind=Kind.WORKER,
            command=message["command"],
            environment=base_environment(os.environ, threads=None) | message["environment"],
            folder=Path(message["folder"]),
            log=Path(message["log"]),
            is_ready=Health(*message["service"]) if message["service"] else None,
            appends=message["appends"],
        )
        if before := self._processes.pop(role.name, None):  # it is replaced
            before.send(signal.SIGKILL)
            before.reap()
        try:
            self._processes[role.name] = self._forks.start(role) if self._forks else Process(role)
        except OSError as error:
            say("line", name=role.name, text=f"error: it cannot be started: {error}")
            say("ended", name=role.name, code=EXIT_SETUP)

    def look(self) -> None:
        """Reports what the processes have written since the last call, and which are ready or have ended."""
        for name, process in self._processes.items():
            if process in self._ended:
                continue
            if (is_up := process.is_answering()) is not process.is_up:
                process.is_up = is_up
                say("ready", name=name, is_up=is_up)
            code, lines = process.exit_code, process.new_lines()  # in this order: these are its last
            if process.status != self._told.get(process, {}):
                self._told[process] = process.status.copy()
                say("told", name=name, told=process.status)
            for line in lines:
                say("line", name=name, text=line)
            if code is not None:
                self._ended.add(process)
                say("ended", name=name, code=code)

    def kill(self) -> None:
        """Kills all processes, also the children of those that have ended (a zombie keeps its group)."""
        for process in self._processes.values():
            process.send(signal.SIGKILL)
        if self._forks:
            self._forks.close()


class HostLogs:
    """This host's folder in the log tree, and which of its logs are this job's."""

    def __init__(self, folder: Path, devices: list[str]) -> None:
        """`devices` are the names of the workers' folders. What is in `folder` now is an earlier job's."""
        self.folder = folder
        self._runs = [folder / device / RUN_FILE for device in devices]
        self._before = dict(_signatures([*folder.iterdir(), *self._runs]))

    def _changed(self) -> Iterator[Path]:
        """A worker that begins empties its folder and writes run.json: then all files in it are this job's."""
        for path, signature in _signatures([*self.folder.iterdir(), *self._runs]):
            if self._before.get(path) == signature or path.suffix == ".log":  # the launcher has the processes' lines
                continue
            if path.parent == self.folder:
                yield path
            else:
                yield from (file for file in sorted(path.parent.rglob("*")) if file.is_file())

    def send(self) -> None:
        """Sends this job's logs, named relative to the folder."""
        with (
            io.BufferedWriter(_Parts(), PART_BYTES) as parts,
            gzip.GzipFile(fileobj=parts, mode="wb", compresslevel=COMPRESSION) as packed,
            tarfile.open(fileobj=packed, mode="w|", bufsize=PART_BYTES) as archive,
        ):
            for path in self._changed():
                if not path.name.startswith("."):
                    archive.add(path, arcname=str(path.relative_to(self.folder)), recursive=False)


def _signatures(paths: Iterable[Path]) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Inode and time of each file: they differ once it is written again."""
    for path in paths:
        if path.is_file():
            status = path.stat()
            yield path, (status.st_ino, status.st_mtime_ns)


class _Parts(io.RawIOBase):
    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        part = data[:PART_BYTES]  # the caller decides how much comes at once, and that differs between Pythons
        say("part", data=base64.b64encode(part).decode())
        # Pings are not read meanwhile; but data that leaves, however slowly, shows as well that the launcher is there.
        signal.alarm(SILENCE_S)
        return len(part)


def _leave(*_: object) -> NoReturn:
    sys.exit(EXIT_OK)


def serve(agent: Agent) -> None:
    """Does what the launcher asks until stdin closes."""
    partial = b""
    say("hello", python=sys.executable, root=str(ROOT), cores=len(usable_cores()))
    signal.alarm(SILENCE_S)
    while True:
        ready = wait([sys.stdin.fileno()], POLL_S)
        if ready:
            data = os.read(sys.stdin.fileno(), 1 << 16)
            if not data:
                return
            signal.alarm(SILENCE_S)
            *lines, partial = (partial + data).split(b"\n")
            for line in lines:
                try:
                    agent.do(json.loads(line))
                except (SetupError, OSError) as error:
                    say("error", text=str(error))
        agent.look()


def main() -> int:
    """Serves one launcher; what was started here ends with it."""
    # A signal interrupts everything, also a write to a connection that is not read.
    for number in ENDING:
        if number != signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:  # see SignalWatch
            signal.signal(number, _leave)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # scripts/common.sh
    agent = Agent()
    try:
        serve(agent)
    except BrokenPipeError:
        pass
    finally:
        for number in ENDING:
            signal.signal(number, signal.SIG_IGN)
        agent.kill()
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
