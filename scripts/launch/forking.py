"""Starts a job's processes by fork where that saves their import of MXNet (scripts/launch/fork_server.py).

Standard library only. All workers of a job on this machine are forked from one fork server, so they cost one import. On
several hosts, a job that survives has a fork server on each for what is started again; the first processes there are
started afresh while it imports. So is every process that is started while the server is not ready,
or after it was killed. The state server imports no MXNet and is always started afresh; scheduler, parameter server and
hub import little or nothing of it, and do not wait for the import.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

from scripts.launch.process import AdoptedChild, Child, Kind, Process, Role, begin, open_log, spawn
from scripts.launch.roles import ROOT, base_environment
from trainer.runtime.own_process import adopt

FORK_SERVER_LOG = "fork-server.log"
NAME = "fork server"  # also what `ps -o comm` shows once it is ready
ANSWER_S = 10.0
IMPORT_S = 15.0  # the longest wait for the import; where it takes longer, fresh starts show why
ROOM = " " * 4096  # for the commands of forked processes, in place of the server's own (process.show_command)
PROGRAM = (sys.executable, str(ROOT / "main.py"))


class ForkServer:
    """A server that forks processes, which become children of this process.

    It is started by the first start that can be a fork, and again when it has died.

    Args:
        warm: what it reads and imports: the workers' dataset (empty: they read their data themselves), its folder, and
            modules, by commas.
        log: gets the server's messages.
        patience_s: how long the start of a worker waits for the server's import, which saves the worker its own.
    """

    def __init__(self, warm: Sequence[str], log: Path, patience_s: float = 0.0) -> None:
        program = [sys.executable, "-m", "scripts.launch.fork_server"]
        self._role = Role(
            name=NAME,
            kind=Kind.SERVICE,
            # The log is an argument only so that `ps`, and tests that look for leftovers, can tell servers apart.
            command=[*program, str(os.getpid()), *warm, str(log), ROOM],
            environment=base_environment(os.environ),
            folder=ROOT,
            log=log,
        )
        self._server: subprocess.Popen[bytes] | None = None
        self._partial, self._is_ready = b"", False
        self._patience_s = patience_s

    def start(self, role: Role) -> Process:
        """Starts a role, by fork if that is possible now. Raises OSError if it cannot be started."""
        return Process(role, self._begin)

    def close(self) -> None:
        """Ends the server; the processes that it has started live on."""
        if self._server is not None:
            self._server.kill()
            self._server.communicate()  # closes the pipes, too
            self._server = None

    def _begin(self, role: Role, log: IO[bytes], pipe: int) -> Child:
        # A forked MXNet computes in one thread, whatever MXSetNumOMPThreads is told: ResNet-18 with two thirds of
        # the speed that two threads have.
        can_be_forked = tuple(role.command[:2]) == PROGRAM and role.environment.get("OMP_NUM_THREADS") == "1"
        patience_s = self._patience_s if role.environment.get("DMLC_ROLE", "worker") == "worker" else 0.0
        if not can_be_forked or not self._can_fork(patience_s):
            return begin(role, log, pipe)
        message = {
            "name": role.name,
            "arguments": list(role.command[2:]),
            "environment": dict(role.environment),
            "folder": str(role.folder),
            "log": str(role.log),
            "pipe": f"/proc/{os.getpid()}/fd/{pipe}",
        }
        assert self._server and self._server.stdin
        adopt(True)
        try:
            self._server.stdin.write(json.dumps(message).encode() + b"\n")
            self._server.stdin.flush()
            answer = self._started()
        except (BrokenPipeError, EOFError):  # it died before the fork: a forked process reports itself first
            return begin(role, log, pipe)
        finally:
            adopt(False)
        return AdoptedChild(answer["pid"]) if answer["is"] == "started" else begin(role, log, pipe)

    def _started(self) -> dict[str, Any]:
        """The answer to a start. A server that does not answer is killed, so that the answer cannot come later."""
        assert self._server
        try:
            return self._answer(ANSWER_S)
        except TimeoutError:
            self._server.kill()
            return self._answer(ANSWER_S)

    def _can_fork(self, patience_s: float) -> bool:
        """Whether the server, which is started where none runs, is ready, or becomes so in time."""
        if self._server is None or self._server.poll() is not None:
            self.close()
            self._partial, self._is_ready = b"", False
            try:
                with open_log(self._role) as log:
                    self._server = spawn(self._role, subprocess.PIPE, subprocess.PIPE, log)
            except OSError:  # a fresh start will show why
                return False
        if not self._is_ready:
            with contextlib.suppress(TimeoutError, EOFError):
                self._is_ready = self._answer(patience_s)["is"] == "ready"
        return self._is_ready

    def _answer(self, patience_s: float) -> dict[str, Any]:
        """The server's next message. Raises EOFError if the server has died without one, TimeoutError if there was none
        in time."""
        assert self._server and self._server.stdout
        pipe, until = self._server.stdout.fileno(), time.monotonic() + patience_s
        while b"\n" not in self._partial:
            ready = wait([pipe], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError(f"the fork server did not answer within {patience_s:g} s; its log: {self._role.log}")
            data = os.read(pipe, 1 << 16)
            if not data:
                raise EOFError
            self._partial += data
        line, _, self._partial = self._partial.partition(b"\n")
        return dict(json.loads(line))
