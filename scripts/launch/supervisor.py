"""Runs the processes of one job, here or on several hosts, and leaves none behind whatever happens.

Standard library only. One thread, one loop that looks at every process ten times a second; so a process that dies is
noticed within a second, and nothing here can block on a process that does not answer.

    RUNNING --signal--> STOPPING: the workers got SIGTERM and end with their round, also where others are to take part
       |                   |
       +--workers done-----+--> SETTLING: the parameter servers end by themselves --> everything is stopped

A failure, a second signal or a wait that was too long ends any of these states: everything is killed. Where the job is
to survive (scripts/launch/survival.py), a failure while it is RUNNING kills all but the services, and starts all again;
a service that has died, or a worker without which the others go on, is started again alone, while the others run; or,
where nobody takes it back or its host is gone, it is left out.
"""

from __future__ import annotations

import enum
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

from scripts.launch.console import Forwarder, has_ended_for, has_trained
from scripts.launch.exit_reports import death_of, failure_of, how_it_ended
from scripts.launch.process import Kind, Process, Role, Running
from scripts.launch.restarts import Whom
from scripts.launch.stop_signals import StopSignals
from scripts.launch.survival import Survival
from utils import EXIT_FORCED, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, LEFT, STOPPED, SetupError

POLL_S = 0.1
CAUSE_S = 0.5  # the longest that the end of a killed process may be seen after that of the peer which has noticed it

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
    # Where the workers may change:
    has_trained: bool = False  # each worker, a round at least
    changes: bool = False  # the workers have ended for others to take part, or were lost meanwhile and are to survive


class Change(Protocol):
    """Somebody who may want other workers to take part."""

    def look(self, all_train: Callable[[], bool]) -> bool:
        """Called in each step: whether the workers are to end with their round now, which they can where all train."""


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


class _StartAgain(Exception):
    """Leaves the loop; all but the services that run and answer are killed and started again."""

    def __init__(self, wait_s: float, failed: Sequence[Running]) -> None:
        super().__init__()
        self.wait_s = wait_s
        self.failed = failed


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
        survival: Survival | None = None,
        change: Change | None = None,
        begins: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            roles: started in this order, but workers last, once every service is ready.
            say: prints a line for the user.
            waits: how long to be patient.
            start: starts a role.
            links: services that run already, without which nothing can be started on their hosts; they are watched, and
                left alone.
            leave_together: the workers do, also where no server is among the roles.
            survival: says what is done when a process has died; None: the job ends.
            change: other workers may take part then, in a job that goes on from a checkpoint of this one.
            begins: called once, when a worker has begun to train.
        """
        self._roles = roles
        self._waits = waits
        self._say = say
        self._start_role = start
        self._links = links
        self._leave_together = leave_together or any(role.kind is Kind.SERVER for role in roles)
        if survival is not None and survival.others_go_on:
            self._leave_together = False  # one may be let go, and the others go on
        self._survival = survival
        self._change = change
        self._begins = begins
        self._has_begun = False
        self._is_changing = False
        self._console = Forwarder(say)
        self._processes: list[Running] = []
        self._signals = StopSignals()
        self._state = _State.RUNNING
        self._since = self._started_at = time.monotonic()
        self._left_out: list[Running] = []  # processes without which the others go on
        self._due: list[tuple[float, Running]] = []  # processes that are started again alone, and when
        self._service_was_away = False  # since the last start of all

    def run(self) -> Outcome:
        """Runs the job, in the main thread. Every process has ended when this returns or raises."""
        with self._signals:
            try:
                pages = [role.page for role in self._roles if role.page]
                again: _StartAgain | None = None
                while True:
                    try:
                        if again is not None:
                            self._clear(again)
                            pages = []
                        self._run(pages)
                    except _StartAgain as another:
                        again = another
            except _Finished as end:
                if str(end):
                    self._say(str(end))
                return self._outcome(end)
            finally:
                _kill([*self._processes, *self._left_out])

    def _outcome(self, end: _Finished) -> Outcome:
        how = Outcome(end.exit_code, bool(self._signals.first), end.failed_log)
        if self._change is None:  # nobody asks what else the logs say
            return how
        workers = [worker.role for worker in self._of(Kind.WORKER)]
        if end.exit_code == EXIT_OK:
            has_way = any(has_ended_for(reason, role) for reason in (STOPPED, LEFT) for role in workers)
        else:
            has_way = self._survival is not None
        return how._replace(
            has_trained=bool(workers) and all(map(has_trained, workers)), changes=self._is_changing and has_way
        )

    # ------------------------------------------------------------------------------------------------- start

    def _run(self, pages: Sequence[str]) -> NoReturn:
        """Starts what does not run, and looks at it until the job is over."""
        self._service_was_away = False
        self._enter(_State.RUNNING, time.monotonic())
        self._start(Kind.SERVICE, Kind.SERVER)
        self._wait_until_ready()
        for page in pages:
            self._say(f"the job's status page: {page}")
        self._start(Kind.WORKER)
        while True:
            self._step()
            time.sleep(POLL_S)

    def _start(self, *kinds: Kind) -> None:
        running = [process.role.name for process in self._processes]
        for role in self._roles:
            if role.kind in kinds and role.name not in running:
                self._start_one(role)

    def _start_one(self, role: Role) -> None:
        try:
            self._processes.append(self._start_role(role))
        except OSError as error:
            raise _Finished(EXIT_SETUP, f"error: {role.label} cannot be started: {error}") from None
        self._started_at = time.monotonic()

    def _wait_until_ready(self) -> None:
        waiting = [role for role in self._roles if role.is_ready]
        while waiting:
            self._step()
            waiting = [role for role in waiting if role.is_ready and not role.is_ready()]
            if waiting and time.monotonic() > self._since + self._waits.ready_s:
                names = [role.name for role in waiting]
                silent = [process for process in self._processes if process.role.name in names]
                how = f"{waiting[0].label} did not answer within {self._waits.ready_s:g} s"
                log = f" Its log: {waiting[0].log}"
                self._end(how, log, silent, _Finished(EXIT_PEER_LOST, f"error: {how}.{log}", waiting[0].log))
            if waiting:
                time.sleep(POLL_S)

    def _clear(self, again: _StartAgain) -> None:
        """Kills what is left but the services, and waits as long as it was decided."""
        kept = [
            process for process in self._of(Kind.SERVICE) if process.exit_code is None and process not in again.failed
        ]
        ending = [process for process in self._processes if process not in kept]
        self._due = []
        _kill(ending)
        self._look_for_hosts_that_are_gone(ending)
        self._processes = kept
        until = time.monotonic() + again.wait_s
        while time.monotonic() < until:
            self._step()
            time.sleep(POLL_S)
        assert self._survival is not None
        try:
            self._roles = self._survival.roles()
        except SetupError as error:
            raise _Finished(EXIT_PEER_LOST, f"error: {error}") from None

    def _look_for_hosts_that_are_gone(self, killed: Sequence[Running]) -> None:
        """Of a process there nobody sees the end: it ends within a minute, since it has lost its launcher."""
        gone = [link.role.host for link in self._links if link.ended_at is not None]
        unseen = [process for process in killed if process.exit_code is None and process.role.host not in gone]
        if not unseen:
            return
        hosts = {process.role.host for process in unseen}
        links = [link for link in self._links if link.role.host in hosts]
        for link in links:
            if link.exit_code is None:
                _kill([link])
            link.ended_at = time.monotonic()
        how = f"nobody saw the end of {', '.join(process.role.label for process in unseen)}"
        end = _Finished(EXIT_PEER_LOST, f"error: {how}: nothing is started again")
        if not links:
            raise end
        self._end(how, "", links, end)

    def _start_due(self, now: float) -> None:
        """Starts the processes again whose time has come, while the others run; workers once the services answer."""
        for at, process in [(at, process) for at, process in self._due if now >= at]:
            if process.role.kind is Kind.WORKER and now < at + self._waits.ready_s and not self._services_answer():
                continue
            self._due = [each for each in self._due if each[1] is not process]
            self._processes.remove(process)
            _kill([process])
            assert self._survival is not None
            self._start_one(self._survival.alone(process.role))

    def _services_answer(self) -> bool:
        return all(role.is_ready() for role in self._roles if role.is_ready)

    # -------------------------------------------------------------------------------------------------- loop

    def _step(self) -> None:
        """Looks once at everything. Raises _Finished when the job is over, _StartAgain when it begins again."""
        now = time.monotonic()
        self._console.forward(self._processes)
        if self._console.has_begun and not self._has_begun:
            self._has_begun = True
            self._begins()
        self._note_ends(now)
        self._obey_signals(now)
        if self._state is _State.SETTLING:
            self._settle(now)
        else:
            self._start_due(now)
            self._await_workers(now)

    def _enter(self, state: _State, now: float) -> None:
        self._state, self._since = state, now

    def _of(self, kind: Kind) -> list[Running]:
        return [process for process in self._processes if process.role.kind is kind]

    def _note_ends(self, now: float) -> None:
        new = self._newly_ended(now + CAUSE_S)
        for process in new:
            process.ended_at = now
        failed = [process for process in new if process.exit_code != EXIT_OK or process.role.kind is Kind.SERVICE]
        if self._state is not _State.SETTLING:
            links = [process for process in failed if process in self._links]
            if links:
                self._fail(links)  # which may leave out all that ran there
            others = [process for process in failed if process in self._processes]
            if self._survival is not None and not self._survival.takes_back:
                services = [process for process in others if process.role.kind is Kind.SERVICE]
                others = [process for process in others if process not in services]
                if services:
                    self._fail(services)
            if others:
                self._fail(others)
            return
        for process in failed:
            role, code = process.role, process.exit_code
            if code != EXIT_OK:
                self._say(f"warning: {role.label} {how_it_ended(code)} at the very end; its log: {role.log}")

    def _newly_ended(self, until: float) -> list[Running]:
        """The processes whose end is not noted yet. Where all of these have only lost a peer, it waits so long for the
        cause: the system closes the connections of a process that was killed some time before it tells of its end."""
        while True:
            watched = [*self._links, *self._processes]
            new = [process for process in watched if process.ended_at is None and process.exit_code is not None]
            has_cause = not new or any(process.exit_code != EXIT_PEER_LOST for process in new)
            if has_cause or self._state is not _State.RUNNING or time.monotonic() > until:
                return new
            time.sleep(POLL_S / 2)

    def _await_workers(self, now: float) -> None:
        for server in self._of(Kind.SERVER):
            if server.ended_at is not None and now > server.ended_at + self._waits.lead_s:
                if self._others_are_done(server):
                    self._enter(_State.SETTLING, now)
                    return
                self._fail([server])
        due = [process for _, process in self._due if process.role.kind is Kind.WORKER]
        workers = [worker for worker in self._of(Kind.WORKER) if worker not in due]
        ended_at = [worker.ended_at for worker in workers if worker.ended_at is not None]
        left = [worker for worker in self._of(Kind.WORKER) if worker.ended_at is None]
        grace_s = self._waits.grace_s
        died_at = min((worker.ended_at or now for worker in due), default=0.0)
        if ended_at and not left and max(ended_at) >= died_at:
            self._due = []  # the others have come to the end of the job meanwhile
            self._enter(_State.SETTLING, now)
        elif self._state is _State.STOPPING and now > self._since + grace_s:
            self._stay(left, EXIT_FORCED, f"{grace_s:g} s after they were asked to")
        elif self._leave_together and ended_at and now > min(ended_at) + grace_s:
            self._stay(left, EXIT_PEER_LOST, f"{grace_s:g} s after the first worker")

    def _others_are_done(self, server: Running) -> bool:
        """Whether the workers that are still there are frozen ones, without which the others went on to the end."""
        if self._survival is None or self._survival.takes_back or server.exit_code != EXIT_OK:
            return False
        left = ", ".join(worker.role.label for worker in self._of(Kind.WORKER) if worker.ended_at is None)
        self._say(f"warning: {left} did not end with the others; killed")
        return True

    def _stay(self, left: Sequence[Running], exit_code: int, when: str) -> None:
        """Workers do not end when they should."""
        how = f"{', '.join(process.role.label for process in left)} did not end within {when}"
        self._end(how, "", left, _Finished(exit_code, f"error: {how}; killing what is left"))

    def _settle(self, now: float) -> None:
        left = [server.role.label for server in self._of(Kind.SERVER) if server.ended_at is None]
        settle_s = self._waits.settle_s
        if left and now <= self._since + settle_s:
            return
        if left:
            self._say(f"warning: {', '.join(left)} did not end by itself within {settle_s:g} s and was killed")
        self._console.forward(self._processes)
        raise _Finished(EXIT_OK)

    # ---------------------------------------------------------------------------------------------- failures

    def _fail(self, failed: Sequence[Running]) -> None:
        """Processes have ended that should not."""
        first, how, log, says_why = failure_of(failed, self._links)
        if self._state is _State.STOPPING and first.exit_code in (EXIT_FORCED, -signal.SIGTERM):
            raise _Finished(EXIT_FORCED, _TOO_EARLY)
        self._console.forward(self._processes)
        code = EXIT_SETUP if first.exit_code == EXIT_SETUP else EXIT_PEER_LOST
        end = _Finished(code, f"error: {how}; stopping the job.{log}", first.role.log)
        self._end(how, log, failed, end, says_why)

    def _on_host_of(self, link: Running) -> list[Running]:
        """The processes on the host to which a connection leads; none where it is no connection."""
        return [process for process in self._processes if link in self._links and process.role.host == link.role.host]

    def _end(self, how: str, log: str, failed: Sequence[Running], end: _Finished, says_why: bool = False) -> None:
        """Ends the job, unless it is to survive.

        Args:
            how: the processes have failed, in words.
            log: where more is said.
            failed: they have ended, or do not answer.
            end: of a job that is not to survive.
            says_why: the log does.
        """
        if self._survival is None or self._state is not _State.RUNNING:
            raise end
        deaths = [death_of(process, self._on_host_of(process), process in self._links) for process in failed]
        now = time.monotonic()
        try:
            workers = self._of(Kind.WORKER)
            gone = [*failed, *(other for process in failed for other in self._on_host_of(process))]
            anybody_left = not workers or any(self._may_go_on(worker) for worker in workers if worker not in gone)
            decision = self._survival.after(deaths, now - self._started_at, self._service_was_away, anybody_left)
        except SetupError as error:
            raise _Finished(EXIT_PEER_LOST, f"error: {how}, and {error}") from None
        if decision.whom is Whom.NOBODY:
            why = decision.text and f": {decision.text}"
            raise _Finished(end.exit_code, f"error: {how}; stopping the job{why}.{log}", end.failed_log)
        self._say(f"{how}: {decision.text}.{log if says_why else ''}")
        if decision.whom is Whom.LEFT_OUT:
            self._console.forward(gone)
            self._left_out += [process for process in self._processes if process in gone]
            self._processes = [process for process in self._processes if process not in gone]
            self._due = [(at, process) for at, process in self._due if process not in gone]
            return
        if decision.whom is Whom.ALL:
            raise _StartAgain(decision.wait_s, failed)
        self._service_was_away = True
        self._due += [(now + decision.wait_s, process) for process in failed]

    def _may_go_on(self, worker: Running) -> bool:
        """Whether a worker that was not lost is reason enough to go on."""
        assert self._survival is not None
        if worker.exit_code is None or not self._survival.others_go_on:
            return True
        # One that was frozen may wake up when the others are done.
        is_done = worker.exit_code == EXIT_OK and not has_ended_for(LEFT, worker.role)
        return is_done and not self._survival.takes_back

    # ----------------------------------------------------------------------------------------------- signals

    def _obey_signals(self, now: float) -> None:
        if not self._signals.first:
            self._look_for_change(now)
            return
        if self._signals.is_repeated:
            raise _Finished(EXIT_FORCED, "a second signal: everything is killed at once")
        if self._is_changing:
            self._is_changing = False
            self._say(f"{self._signals.first}: the job does not go on with others")
        if self._state is not _State.RUNNING:
            return
        name, grace_s, workers = self._signals.first, self._waits.grace_s, self._of(Kind.WORKER)
        self._say(f"{name}: the workers end with this round, within {grace_s:g} s; once more kills them at once")
        if not workers:
            raise _Finished(EXIT_FORCED, _TOO_EARLY)
        self._stop(workers, now)

    def _look_for_change(self, now: float) -> None:
        if self._change is not None and self._change.look(self._all_train):
            self._is_changing = True
            self._stop([worker for worker in self._of(Kind.WORKER) if worker.exit_code is None], now)

    def _all_train(self) -> bool:
        workers = [worker for worker in self._of(Kind.WORKER) if worker.exit_code is None]
        is_calm = self._state is _State.RUNNING and not self._due
        return is_calm and bool(workers) and all(has_trained(worker.role) for worker in workers)

    def _stop(self, workers: Sequence[Running], now: float) -> None:
        self._enter(_State.STOPPING, now)
        for worker in workers:
            worker.send(signal.SIGTERM)


def _kill(processes: Sequence[Running]) -> None:
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        process.reap()
