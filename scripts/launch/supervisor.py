"""Runs the processes of one job, here or on several hosts, and leaves none behind whatever happens.

Standard library only. One thread, one loop that looks at every process ten times a second: so a process that dies is
noticed within a second, and a process that does not answer blocks nothing here.

    RUNNING --signal--> STOPPING: the workers got SIGTERM and end with their round
       |                   |
       +--workers done-----+--> SETTLING: the servers end by themselves --> everything is stopped

A failure, a second signal or a timeout ends any of these states: everything is killed. With a restart policy a failure
in RUNNING kills all but the services and starts all again. A service, or a worker without which the others continue, is
started again alone while the others run, or is left out where its tries are spent or its host is gone. So is the hub
where the workers continue, but it is not left out.
"""

import dataclasses
import enum
import secrets
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from scripts.launch.console import Forwarder
from scripts.launch.exit_reports import Failure, failure_of, how_it_ended, report_of
from scripts.launch.health import FROZEN_S, Health
from scripts.launch.process import Kind, Process, Role, RunningProcess
from scripts.launch.restart_policy import RestartPolicy
from scripts.launch.restarts import Action
from scripts.launch.stop_signals import StopSignals
from utils import EXIT_FORCED, EXIT_INCOMPLETE, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, LEFT, PROCESS, SetupError

POLL_S = 0.1
CAUSE_S = 0.5  # the end of a killed process may be seen this much later than that of the peer that has lost it

_DONE = (EXIT_OK, EXIT_INCOMPLETE)
_SERVERS = (Kind.SERVER, Kind.HUB)
_TOO_EARLY = "stopped before every worker had begun"


class Timeouts(NamedTuple):
    """Seconds until the supervisor kills."""

    # For the workers to end after a signal; and, since those of a distributed job leave together, for the others after
    # one of them has ended.
    grace_s: float = 60.0
    settle_s: float = 15.0  # for the servers to end by themselves after the workers
    page_s: float = 10.0  # for the state server to write its page at the very end
    lead_s: float = 5.0  # the end of a server may be seen this much earlier than that of its workers
    ready_s: float = 60.0  # for a service to accept connections


class JobOutcome(NamedTuple):
    """How a job ended."""

    exit_code: int  # utils.EXIT_*
    was_stopped: bool  # by a signal
    failed_log: Path | None = None  # of the process whose failure ended the job


class _State(enum.Enum):
    RUNNING = enum.auto()
    STOPPING = enum.auto()
    SETTLING = enum.auto()


@dataclasses.dataclass(eq=False)
class _Finished(Exception):
    """Leaves the loop; everything that still runs is killed."""

    exit_code: int
    message: str = ""
    failed_log: Path | None = None


@dataclasses.dataclass(eq=False)
class _StartAgain(Exception):
    """Leaves the loop; all but the services that run and answer are killed and started again."""

    wait_s: float
    failed: Sequence[RunningProcess]


class Supervisor:
    """Runs roles until all workers are done, a signal asks to stop, or something goes wrong."""

    def __init__(
        self,
        roles: Sequence[Role],  # started in this order, but workers last, once every service is ready
        say: Callable[[str], None],
        timeouts: Timeouts,
        start: Callable[[Role], RunningProcess] = Process,
        connections: Sequence[RunningProcess] = (),  # to the hosts, there already: watched, and not ended
        leave_together: bool = False,  # the workers do, even if no server is among the roles
        policy: RestartPolicy | None = None,  # what follows from a failed process; None: the job ends
        begins: Callable[[], None] = lambda: None,  # called once, when a worker has begun to train
    ) -> None:
        self._roles = roles
        self._timeouts = timeouts
        self._say = say
        self._start_role = start
        self._connections = connections
        self._leave_together = leave_together or any(role.kind in _SERVERS for role in roles)
        self._others_continue = policy is not None and policy.others_continue
        self._is_beside_hub = policy is not None and policy.beside_hub
        self._leave_together &= not self._others_continue  # one may leave
        self._policy = policy
        self._begins = begins
        self._has_begun = False
        self._console = Forwarder(say)
        self._processes: list[RunningProcess] = []
        self._launcher, self._launched = secrets.token_hex(8), list[RunningProcess]()
        self._signals = StopSignals()
        self._state = _State.RUNNING
        self._since = time.monotonic()
        self._started_at: dict[str, float] = {}  # of each role, the last time
        self._left_out: list[RunningProcess] = []
        self._due: list[tuple[float, RunningProcess]] = []  # when failed processes are started again alone
        self._is_restarting = False  # it has been decided, and nothing is started yet
        self._killed: list[RunningProcess] = []  # for this restart
        self._service_was_away = False  # since the last start of all
        self._up: set[RunningProcess] = set()  # services that have answered
        self._frozen: set[RunningProcess] = set()  # of these, those that were killed since they did so no longer
        self._done_at: float | None = None  # when the first worker had done the job; beside a hub, the last so far
        self._back: set[str] = set()  # names of workers that were started again alone

    def run(self) -> JobOutcome:
        """Runs the job, in the main thread. Every process has ended when this returns or raises."""
        with self._signals:
            try:
                pages = [role.page for role in self._roles if role.page]
                again: _StartAgain | None = None
                while True:
                    try:
                        if again is not None:
                            self._prepare_restart(again)
                            pages = []
                        self._run(pages)
                    except _StartAgain as another:
                        again = another
            except _Finished as end:
                if end.message:
                    self._say(end.message)
                return JobOutcome(end.exit_code, bool(self._signals.first), end.failed_log)
            finally:
                self._end_pages()
                _kill([*self._processes, *self._left_out])

    def _end_pages(self) -> None:
        """Lets the state server write its page."""
        pages = [] if self._signals.is_repeated else [process for process in self._processes if process.role.page]
        for process in pages:
            process.send(signal.SIGINT)  # it may ignore SIGTERM: trainer/runtime/stop_signals.py
        until = time.monotonic() + self._timeouts.page_s
        while any(process.exit_code is None for process in pages) and time.monotonic() < until:
            time.sleep(POLL_S)
        self._console.forward(pages)

    # ------------------------------------------------------------------------------------------------- start

    def _run(self, pages: Sequence[str]) -> NoReturn:
        """Starts what does not run, and steps until the job is over."""
        self._service_was_away = False
        self._enter(_State.RUNNING, time.monotonic())
        self._start(Kind.SERVICE, *_SERVERS)
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
        """Starts a role. The name of the process, and which other workers live, are this launcher's word at the state
        server (server.messages.Launched)."""
        known = enumerate(self._launched)
        living = [str(number) for number, other in known if other.role.kind is Kind.WORKER and other.exit_code is None]
        word = " ".join([f"{self._launcher}-{len(self._launched)}", *living])
        role = dataclasses.replace(role, environment={**role.environment, PROCESS: word})
        if isinstance(role.is_ready, Health):
            role.is_ready.forget()
        try:
            process = self._start_role(role)
            self._processes.append(process)
            self._launched.append(process)
        except OSError as error:
            raise _Finished(EXIT_SETUP, f"error: {role.label} cannot be started: {error}") from None
        self._started_at[role.name] = time.monotonic()

    def _wait_until_ready(self) -> None:
        waiting = [role for role in self._roles if role.is_ready and not role.is_for_page]
        while waiting:
            self._step()
            waiting = [role for role in waiting if role.is_ready and not role.is_ready()]
            if waiting and time.monotonic() > self._since + self._timeouts.ready_s:
                names = [role.name for role in waiting]
                silent = [process for process in self._processes if process.role.name in names]
                how = f"{silent[0].role.label} did not answer within {self._timeouts.ready_s:g} s"
                self._end(Failure(silent, how, silent[0], f" Its log: {silent[0].role.log}"))
            if waiting:
                time.sleep(POLL_S)

    def _prepare_restart(self, again: _StartAgain) -> None:
        """Kills all but the services, waits as the policy decided, and takes the roles of the restart."""
        self._is_restarting = True
        services = [
            process for process in self._of(Kind.SERVICE) if process.exit_code is None and process not in again.failed
        ]
        ending = [process for process in self._processes if process not in services]
        self._due = []
        _kill(ending)
        self._processes, self._killed = services, [*self._killed, *ending]
        self._give_up_lost_hosts(ending)
        until = time.monotonic() + again.wait_s
        while time.monotonic() < until:
            self._step()
            time.sleep(POLL_S)
        assert self._policy is not None
        try:
            if again.wait_s:
                self._policy.look()  # it ends the connections to hosts that have fallen silent
                time.sleep(POLL_S)
                self._step()
            self._roles, self._killed = self._policy.roles(), []
            self._is_restarting = False
        except SetupError as error:
            raise _Finished(EXIT_PEER_LOST, f"error: {error}") from None

    def _give_up_lost_hosts(self, killed: Sequence[RunningProcess]) -> None:
        """Gives up the hosts whose connections have ended, or that do not confirm a kill: without the launcher their
        processes end within a minute."""
        there = [connection for connection in self._connections if connection.ended_at is None]
        gone = [connection.role.host for connection in self._connections if connection not in there]
        unseen = [process for process in killed if process.exit_code is None and process.role.host not in gone]
        silent = {process.role.host for process in unseen}
        lost = [each for each in there if each.role.host in silent or each.exit_code is not None]
        if not (unseen or lost):
            return
        for connection in lost:
            if connection.exit_code is None:
                _kill([connection])
            connection.ended_at = time.monotonic()
        names = ", ".join(process.role.label for process in unseen)
        how = f"the end of {names} is not confirmed" if unseen else failure_of(lost, lost, self._console.has_told).how
        if not lost:
            raise _Finished(EXIT_PEER_LOST, f"error: {how}: nothing is started again")
        self._end(Failure(lost, how))

    def _start_due(self, now: float) -> None:
        """Starts single processes again whose time has come; workers once the services answer."""
        services = [
            (each, each.role.is_ready)
            for each in self._of(Kind.SERVICE)
            if each.role.is_ready and not each.role.is_for_page
        ]
        for at, process in [(at, process) for at, process in self._due if now >= at]:
            waits = process.role.kind is Kind.WORKER and now < at + self._timeouts.ready_s
            if waits and not all(service.exit_code is None and is_ready() for service, is_ready in services):
                continue
            self._due = [each for each in self._due if each[1] is not process]
            num_workers = sum(worker.exit_code not in _DONE for worker in self._of(Kind.WORKER))
            self._processes.remove(process)
            _kill([process])
            self._back.add(process.role.name)
            again = dataclasses.replace(process.role, appends=True)
            self._start_one(self._policy.restarted(process.role, num_workers) if self._policy else again)

    # -------------------------------------------------------------------------------------------------- loop

    def _step(self) -> None:
        """Looks once at everything. Raises _Finished when the job is over, _StartAgain when all are started again."""
        now = time.monotonic()
        self._console.forward(self._processes)
        if not self._has_begun and any(worker.told.get("begun") for worker in self._of(Kind.WORKER)):
            self._has_begun = True
            self._begins()
        self._kill_frozen()
        self._note_ends(now)
        self._obey_signals(now)
        if self._state is _State.SETTLING:
            self._settle(now)
        else:
            self._start_due(now)
            self._await_workers(now)

    def _enter(self, state: _State, now: float) -> None:
        self._state, self._since = state, now

    def _of(self, *kinds: Kind) -> list[RunningProcess]:
        return [process for process in self._processes if process.role.kind in kinds]

    def _kill_frozen(self) -> None:
        """Kills the services that answer no longer: they are started again as those that died."""
        for service in self._of(Kind.SERVICE) if self._state is _State.RUNNING else ():
            if service.role.is_ready is None:
                continue
            if service.role.is_ready():
                self._up.add(service)
            elif service in self._up - self._frozen and service.exit_code is None:
                self._say(f"warning: {service.role.label} has not answered for {FROZEN_S:g} s and is killed")
                self._frozen.add(service)
                service.send(signal.SIGKILL)

    def _note_ends(self, now: float) -> None:
        new = self._newly_ended(now + CAUSE_S)
        for process in new:
            process.ended_at = now
            if process.role.kind is Kind.WORKER and _is_done(process):
                self._done_at = now if self._is_beside_hub else self._done_at or now
        failed = [process for process in new if process.exit_code not in _DONE or process.role.kind is Kind.SERVICE]
        if self._state is _State.SETTLING:
            for process in failed:
                role, code = process.role, process.exit_code
                if code != EXIT_OK:
                    self._say(f"warning: {role.label} {how_it_ended(code)} at the very end; its log: {role.log}")
            return
        self._fail([process for process in failed if process in self._connections])  # may leave out all on the host
        others = [process for process in failed if process in self._processes]
        if self._policy is None and self._state is _State.RUNNING:
            for service in self._up.intersection(others):  # the workers go on without it
                self._say(f"{service.role.label} {how_it_ended(service.exit_code)}: it is started again")
                self._due.append((now, service))
                others.remove(service)
        if not self._others_continue:
            self._fail(others)
            return
        for process in sorted(others, key=lambda process: process.exit_code == EXIT_PEER_LOST):  # causes first
            self._fail([process])

    def _newly_ended(self, until: float) -> list[RunningProcess]:
        """The processes whose end is not noted yet. Where all of these have only lost a peer, it waits until then for
        the cause: the system closes a killed process's connections some time before it tells of its end."""
        while True:
            watched = [*self._connections, *self._processes]
            new = [process for process in watched if process.ended_at is None and process.exit_code is not None]
            has_cause = not new or any(process.exit_code != EXIT_PEER_LOST for process in new)
            if has_cause or self._state is not _State.RUNNING or time.monotonic() > until:
                return new
            time.sleep(POLL_S / 2)

    def _await_workers(self, now: float) -> None:
        due = [process for _, process in self._due]
        for server in self._of(*_SERVERS):
            if server.ended_at is not None and server not in due and now > server.ended_at + self._timeouts.lead_s:
                if self._others_are_done(server):
                    self._enter(_State.SETTLING, now)
                    return
                self._fail([server])
        due = [process for process in due if process.role.kind is Kind.WORKER]
        workers = self._of(Kind.WORKER)
        ended_at = [worker.ended_at for worker in workers if worker.ended_at is not None and worker not in due]
        left = [worker for worker in workers if worker.ended_at is None]
        grace_s = self._timeouts.grace_s
        failed_at = min((worker.ended_at or now for worker in due), default=0.0)
        # Beside a server, which ends without those that are frozen.
        have_own_rounds = self._is_beside_hub and any(worker.role.name not in self._back for worker in left)
        if ended_at and not left and max(ended_at) >= failed_at:
            self._due = []  # the others have finished the job meanwhile
            self._enter(_State.SETTLING, now)
        elif self._state is _State.STOPPING and now > self._since + grace_s:
            self._fail_to_end(left, EXIT_FORCED, f"{grace_s:g} s after they were asked to")
        elif self._leave_together and ended_at and now > min(ended_at) + grace_s:
            self._fail_to_end(left, EXIT_PEER_LOST, f"{grace_s:g} s after the first worker")
        elif left and self._others_continue and self._done_at is not None and not have_own_rounds:
            has_any = any(worker.told.get("trained") for worker in left)  # else they were started when the job was over
            if now > self._done_at + (grace_s if has_any else self._timeouts.lead_s):
                self._say(f"warning: {', '.join(each.role.label for each in left)} did not end with the others; killed")
                self._leave_out(left)

    def _others_are_done(self, server: RunningProcess) -> bool:
        """Whether the workers that still run, or are to, are lost ones, without which the others have finished."""
        if not self._is_beside_hub or server.exit_code != EXIT_OK:
            return False
        self._due = []
        if left := ", ".join(worker.role.label for worker in self._of(Kind.WORKER) if worker.ended_at is None):
            self._say(f"warning: {left} did not end with the others; killed")
        return True

    def _fail_to_end(self, left: Sequence[RunningProcess], exit_code: int, when: str) -> None:
        names = ", ".join(process.role.label for process in left)
        self._end(Failure(left, f"{names} did not end within {when}"), exit_code)

    def _settle(self, now: float) -> None:
        left = [server.role.label for server in self._of(*_SERVERS) if server.ended_at is None]
        settle_s = self._timeouts.settle_s
        if left and now <= self._since + settle_s:
            return
        if left:
            self._say(f"warning: {', '.join(left)} did not end by itself within {settle_s:g} s and was killed")
        self._console.forward(self._processes)
        if names := [worker.role.label for worker in self._of(Kind.WORKER) if worker.exit_code == EXIT_INCOMPLETE]:
            raise _Finished(EXIT_INCOMPLETE, f"warning: the disk has not taken all logs of {', '.join(names)}")
        raise _Finished(EXIT_OK)

    # ---------------------------------------------------------------------------------------------- failures

    def _fail(self, failed: Sequence[RunningProcess]) -> None:
        if self._policy is None or self._state is not _State.RUNNING:
            failed = [process for process in failed if not process.role.is_for_page]  # a worker says that it is away
        if not failed:
            return
        self._console.forward(self._processes)
        failure = failure_of(failed, self._connections, self._console.has_told)
        workers = self._of(Kind.WORKER)
        if self._state is _State.STOPPING and self._others_continue and self._has_begun and {*failed} < {*workers}:
            self._say(f"{failure.how}: the others end without it")  # perhaps it was about to come back
            self._leave_out(failed)
            return
        code = failure.cause and failure.cause.exit_code
        if self._state is _State.STOPPING and code in (EXIT_FORCED, -signal.SIGTERM):
            raise _Finished(EXIT_FORCED, _TOO_EARLY)
        self._end(failure, EXIT_SETUP if code == EXIT_SETUP else EXIT_PEER_LOST)

    def _on_host_of(self, connection: RunningProcess) -> list[RunningProcess]:
        """The processes on a connection's host; none of a process that is no connection."""
        if connection not in self._connections:
            return []
        known = [*self._processes, *self._killed]
        return [process for process in known if process.role.host == connection.role.host]

    def _end(self, failure: Failure, exit_code: int = EXIT_PEER_LOST) -> None:
        """Ends the job, unless the policy decides otherwise."""
        failed, how, cause, log, has_error = failure
        failed_log = cause.role.log if cause else None
        if self._policy is None or self._state is not _State.RUNNING:
            raise _Finished(exit_code, f"error: {how}; stopping the job.{log}", failed_log)
        reports = [report_of(process, self._on_host_of(process), process in self._connections) for process in failed]
        now = time.monotonic()
        lost = [connection for connection in self._connections if connection.ended_at is not None]
        gone = [*failed, *(other for connection in lost for other in self._on_host_of(connection))]
        workers = [worker for worker in (*self._of(Kind.WORKER), *self._killed) if worker.role.kind is Kind.WORKER]
        try:
            others = [worker for worker in workers if worker not in gone]
            decision = self._policy.after(
                failed[0].role.name,
                reports,
                now - max(self._started_at.get(process.role.name, self._since) for process in failed),
                is_same=self._is_restarting and {*failed} <= {*self._connections},  # the cause of the failure before
                service_was_away=self._service_was_away,
                any_worker_left=not workers or any(map(self._can_continue, others)),
                has_begun=self._has_begun,
                num_left=sum(worker.exit_code not in _DONE or _is_done(worker) for worker in others),
            )
        except SetupError as error:
            raise _Finished(EXIT_PEER_LOST, f"error: {how}, and {error}") from None
        if decision.action is Action.END_JOB and all(process.role.is_for_page for process in failed):
            return
        if decision.action is Action.END_JOB:
            why = decision.text and f": {decision.text}"
            raise _Finished(exit_code, f"error: {how}; stopping the job{why}.{log}", failed_log)
        self._say(f"{how}: {decision.text}.{log if has_error else ''}")
        if decision.action is Action.RESTART_ALL:
            raise _StartAgain(decision.wait_s, failed)
        if decision.action is Action.RESTART_FAILED:
            self._service_was_away = True
            self._due += [(now + decision.wait_s, process) for process in failed]
            return
        self._leave_out(gone)

    def _leave_out(self, gone: Sequence[RunningProcess]) -> None:
        self._console.forward(gone)
        self._left_out += [process for process in self._processes if process in gone]
        self._processes = [process for process in self._processes if process not in gone]
        self._due = [(at, process) for at, process in self._due if process not in gone]

    def _can_continue(self, worker: RunningProcess) -> bool:
        """Whether the job can continue for a worker that was not lost."""
        assert self._policy is not None
        if worker.exit_code is None or not self._policy.others_continue:
            return True
        # A frozen worker may wake up when the others are done.
        return _is_done(worker) and self._policy.beside_hub

    # ----------------------------------------------------------------------------------------------- signals

    def _obey_signals(self, now: float) -> None:
        if not self._signals.first:
            return
        if self._signals.is_repeated:
            raise _Finished(EXIT_FORCED, "a second signal: everything is killed at once")
        if self._state is not _State.RUNNING:
            return
        name, grace_s, workers = self._signals.first, self._timeouts.grace_s, self._of(Kind.WORKER)
        self._say(f"{name}: the workers end with this round, within {grace_s:g} s; once more kills them at once")
        if not workers:
            raise _Finished(EXIT_FORCED, _TOO_EARLY)
        self._stop(workers, now)

    def _stop(self, workers: Sequence[RunningProcess], now: float) -> None:
        self._enter(_State.STOPPING, now)
        self._due = [(at, process) for at, process in self._due if process not in workers]
        for worker in workers:
            worker.send(signal.SIGTERM)


def _is_done(worker: RunningProcess) -> bool:
    """Whether a worker has ended because the job was done."""
    return worker.exit_code in _DONE and worker.told.get("ended") != LEFT


def _kill(processes: Sequence[RunningProcess]) -> None:
    for process in processes:
        process.send(signal.SIGKILL)
    for process in processes:
        process.reap()
