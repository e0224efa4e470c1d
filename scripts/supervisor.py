"""Runs the processes of one job, here or on several hosts, and leaves none behind whatever happens.

Standard library only. One thread, one loop that looks at every process five times a second; so a process that dies is
noticed within a second, and nothing here can block on a process that does not answer.

    RUNNING --signal--> STOPPING: the workers got SIGTERM and end with their round
       |                   |
       +--workers done-----+--> SETTLING: the parameter servers end by themselves --> everything is stopped

A failure, a second signal or a wait that was too long ends any of these states: everything is killed.
"""

from __future__ import annotations

import enum
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from scripts.process import Kind, Process, Role, Running
from utils import EXIT_FORCED, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP

POLL_S = 0.2
SAME_SIGNAL_S = 1.0  # `timeout` and some shells deliver one Ctrl-C twice

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# The last ones are ssh's words for a connection that is gone.
_ERROR = re.compile(r"error|exception|check failed|abort|not responding|closed by|broken pipe", re.IGNORECASE)
_LOG_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d )[a-z]+[\w .-]* \| ")
_RANK = re.compile(r"[\d :-]+ worker (\d+)\b[\w .-]* \| ")
# Also the test accuracies, whichever worker evaluates.
_WORTH_SHOWING = re.compile(r"\berror\b|\bwarning\b|Error:|, accuracy \d", re.IGNORECASE)

_TOO_EARLY = "stopped before every worker had begun"


class Waits(NamedTuple):
    """Seconds that the supervisor waits before it kills."""

    # For the workers to end after a signal; and, since those of a distributed job leave together, for the others after
    # one of them has ended.
    grace_s: float = 60.0
    settle_s: float = 15.0  # for the servers to end by themselves after the workers
    lead_s: float = 5.0  # by which a server that ends as it should may be seen to do so before its workers are
    ready_s: float = 60.0  # for a service to accept connections


class Outcome(NamedTuple):
    """How a job ended."""

    exit_code: int  # utils.EXIT_*
    was_stopped: bool  # by a signal
    failed_log: Path | None = None  # of the process that ended the job, where one did


class _State(enum.Enum):
    RUNNING = enum.auto()
    STOPPING = enum.auto()
    SETTLING = enum.auto()


class _Finished(Exception):
    """Leaves the loop; everything that still runs is killed."""

    def __init__(self, exit_code: int, message: str = "", failed_log: Path | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.failed_log = failed_log


class Supervisor:
    """Runs roles until all workers are done, a signal asks to stop, or something goes wrong."""

    def __init__(
        self,
        roles: Sequence[Role],
        say: Callable[[str], None],
        waits: Waits,
        start: Callable[[Role], Running] = Process,
        links: Sequence[Running] = (),
        leave_together: bool = False,
    ) -> None:
        """
        Args:
            roles: started in this order, but workers last, once every service is ready.
            say: prints a line for the user.
            waits: how long to be patient.
            start: starts a role.
            links: services that run already, without which nothing can be started; they are watched, and left alone.
            leave_together: the workers do, also where no server is among the roles.
        """
        self._roles = roles
        self._waits = waits
        self._say = say
        self._start_role = start
        self._links = links
        self._leave_together = leave_together or any(role.kind is Kind.SERVER for role in roles)
        self._processes: list[Running] = []
        self._ranks: dict[str, str] = {}  # name of a process elsewhere -> the rank that it reports
        self._ended: dict[str, float] = {}  # name -> when it was seen to have ended as it should
        self._said: set[str] = set()
        self._signals: list[tuple[float, str]] = []
        self._state = _State.RUNNING
        self._since = time.monotonic()

    def run(self) -> Outcome:
        """Runs the job, in the main thread. Every process has ended when this returns or raises."""
        obeyed = [number for number in _STOP_SIGNALS if not _is_nohup(number)]
        before = {number: signal.signal(number, self._on_signal) for number in obeyed}
        try:
            self._start(Kind.SERVICE, Kind.SERVER)
            self._wait_until_ready()
            for role in self._roles:
                if role.page:
                    self._say(f"the job's status page: {role.page}")
            self._start(Kind.WORKER)
            while True:
                self._step()
                time.sleep(POLL_S)
        except _Finished as end:
            if str(end):
                self._say(str(end))
            return Outcome(end.exit_code, bool(self._signals), end.failed_log)
        finally:
            self._kill_all()
            for number, handler in before.items():
                signal.signal(number, handler)

    # ------------------------------------------------------------------------------------------------- start

    def _start(self, *kinds: Kind) -> None:
        for role in self._roles:
            if role.kind in kinds:
                try:
                    self._processes.append(self._start_role(role))
                except OSError as error:
                    raise _Finished(EXIT_SETUP, f"error: {role.label} cannot be started: {error}") from None

    def _wait_until_ready(self) -> None:
        waiting = [role for role in self._roles if role.is_ready]
        while waiting:
            self._step()
            waiting = [role for role in waiting if role.is_ready and not role.is_ready()]
            if waiting and time.monotonic() > self._since + self._waits.ready_s:
                role, wait_s = waiting[0], self._waits.ready_s
                raise _Finished(
                    EXIT_PEER_LOST, f"error: {role.label} did not answer within {wait_s:g} s; its log: {role.log}"
                )
            if waiting:
                time.sleep(POLL_S)

    # -------------------------------------------------------------------------------------------------- loop

    def _step(self) -> None:
        """Looks once at everything. Raises _Finished when the job is over."""
        now = time.monotonic()
        self._forward()
        self._note_ends(now)
        self._obey_signals(now)
        if self._state is _State.SETTLING:
            self._settle(now)
        else:
            self._await_workers(now)

    def _enter(self, state: _State, now: float) -> None:
        self._state, self._since = state, now

    def _of(self, kind: Kind) -> list[Running]:
        return [process for process in self._processes if process.role.kind is kind]

    def _note_ends(self, now: float) -> None:
        watched = [*self._links, *self._processes]
        new = [process for process in watched if process.ended_at is None and process.exit_code is not None]
        # Of several, EXIT_PEER_LOST is a consequence: name the cause.
        for process in sorted(new, key=lambda process: process.exit_code == EXIT_PEER_LOST):
            process.ended_at = now
            role, code = process.role, process.exit_code
            if self._state is _State.SETTLING:
                if code != EXIT_OK:
                    self._say(f"warning: {role.label} {_how(code)} at the very end; its log: {role.log}")
            elif code != EXIT_OK or role.kind is Kind.SERVICE:
                self._fail(process)

    def _await_workers(self, now: float) -> None:
        for server in self._of(Kind.SERVER):
            if server.ended_at is not None and now > server.ended_at + self._waits.lead_s:
                self._fail(server)
        ended_at = [worker.ended_at for worker in self._of(Kind.WORKER) if worker.ended_at is not None]
        left = [worker for worker in self._of(Kind.WORKER) if worker.ended_at is None]
        grace_s = self._waits.grace_s
        if ended_at and not left:
            self._enter(_State.SETTLING, now)
        elif self._state is _State.STOPPING and now > self._since + grace_s:
            self._give_up(left, EXIT_FORCED, f"{grace_s:g} s after they were asked to")
        elif self._leave_together and ended_at and now > min(ended_at) + grace_s:
            self._give_up(left, EXIT_PEER_LOST, f"{grace_s:g} s after the first worker")

    def _settle(self, now: float) -> None:
        left = [server.role.label for server in self._of(Kind.SERVER) if server.ended_at is None]
        settle_s = self._waits.settle_s
        if left and now <= self._since + settle_s:
            return
        if left:
            self._say(f"warning: {', '.join(left)} did not end by itself within {settle_s:g} s and was killed")
        self._forward()
        raise _Finished(EXIT_OK)

    def _fail(self, process: Running) -> None:
        role, code = process.role, process.exit_code
        if self._state is _State.STOPPING and code in (EXIT_FORCED, -signal.SIGTERM):
            raise _Finished(EXIT_FORCED, _TOO_EARLY)
        self._forward()
        lines = role.log.read_text(errors="replace").splitlines()
        reason = next((f", says: {line.strip()}" for line in reversed(lines) if _ERROR.search(line)), "")
        reason = reason if lines else ", is empty: is the disk full?"
        log = f" Its log, {role.log}{reason}" if lines or process not in self._links else ""  # ssh may say nothing
        raise _Finished(
            EXIT_SETUP if code == EXIT_SETUP else EXIT_PEER_LOST,
            f"error: {role.label} {_how(code)}; stopping the job.{log}",
            role.log,
        )

    def _give_up(self, left: list[Running], exit_code: int, when: str) -> None:
        names = ", ".join(process.role.label for process in left)
        raise _Finished(exit_code, f"error: {names} did not end within {when}; killing what is left")

    # ----------------------------------------------------------------------------------------------- signals

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append((time.monotonic(), signal.Signals(number).name))

    def _obey_signals(self, now: float) -> None:
        if not self._signals:
            return
        first, name = self._signals[0]
        if any(at > first + SAME_SIGNAL_S for at, _ in self._signals):
            raise _Finished(EXIT_FORCED, "a second signal: everything is killed at once")
        if self._state is not _State.RUNNING:
            return
        grace_s, workers = self._waits.grace_s, self._of(Kind.WORKER)
        self._say(f"{name}: the workers end with this round, within {grace_s:g} s; once more kills them at once")
        self._enter(_State.STOPPING, now)
        if not workers:
            raise _Finished(EXIT_FORCED, _TOO_EARLY)
        for worker in workers:
            worker.send(signal.SIGTERM)

    # ------------------------------------------------------------------------------------------------ output

    def _forward(self) -> None:
        for process in self._processes:
            role = process.role
            for line in process.new_lines():
                when, text = parse_log_line(line)
                rank = self._rank(role, line)
                show_all = role.show_all or rank == "0"
                # Of workers elsewhere nobody knows yet who is the first; they say what they wait for.
                is_waiting = bool(role.host) and role.kind is Kind.WORKER and not rank
                # What is so for every role alike is said once.
                if show_all or ((is_waiting or _WORTH_SHOWING.search(text)) and text not in self._said):
                    self._said.add(text)
                    self._say(f"{when}{role.name}{rank and f' rank {rank}'} | {text}")

    def _rank(self, role: Role, line: str) -> str:
        """The rank of a worker on another host, once it has said so. On this machine the ports make it, and the name
        has it."""
        reported = _RANK.match(line)
        if reported and role.host and role.kind is Kind.WORKER:
            self._ranks[role.name] = reported[1]
        return self._ranks.get(role.name, "")

    # --------------------------------------------------------------------------------------------------- end

    def _kill_all(self) -> None:
        for process in self._processes:
            process.send(signal.SIGKILL)
        for process in self._processes:
            process.reap()


def _is_nohup(number: signal.Signals) -> bool:
    return number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def _how(code: int | None) -> str:
    if not code:
        return "ended before the workers"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def parse_log_line(line: str) -> tuple[str, str]:
    """Date and time (may be empty) and text of a line of a log; utils.setup_logging writes the role between them."""
    logged = _LOG_LINE.match(line)
    return (logged[1], line[logged.end() :]) if logged else ("", line)


def console(line: str) -> None:
    """Prints a line. A console that is gone (a closed terminal, `| head`) must not end the job."""
    try:
        print(line, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
