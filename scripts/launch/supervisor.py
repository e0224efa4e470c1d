"""Runs the processes of one job, here or on several hosts, and leaves none behind whatever happens.

Standard library only. One thread, one loop that looks at every process ten times a second: so a process that dies is
noticed within a second, and a process that does not answer blocks nothing here.

    RUNNING --signal--> STOPPING: the workers got SIGTERM and end with their round
       |                   |
       +--workers done-----+--> SETTLING: the servers end by themselves --> everything is stopped

A second signal or a timeout ends any of these states: everything is killed. Of lost processes in RUNNING the policy
decides: the job ends; or all but the services are killed and started again; or the lost ones alone are started again or
left out while the others run.
"""

import enum
import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from scripts.launch.console import Forwarder
from scripts.launch.job_processes import POLL_S, JobProcesses
from scripts.launch.losses import causes_of, how_they_ended, record_of, where_it_says_why
from scripts.launch.process import DONE, Kind, Process, Role, RunningProcess
from scripts.launch.restart_policy import RestartPolicy
from scripts.launch.restarts import Action, Survival
from scripts.launch.stop_signals import StopSignals
from utils import EXIT_FORCED, EXIT_INCOMPLETE, EXIT_OK, EXIT_PEER_LOST, EXIT_SETUP, SetupError

CAUSE_S = 0.5  # the end of a killed process may be seen this much later than that of the peer that has lost it

_SERVERS = (Kind.SERVER, Kind.HUB)
_TOO_EARLY = "stopped before every worker had begun"
_State = enum.Enum("_State", ("RUNNING", "STOPPING", "SETTLING"))


class Timeouts(NamedTuple):
    """Seconds until the supervisor kills."""

    grace_s: float = 60.0  # for the workers to end after a signal and, as they leave together, after the first of them
    settle_s: float = 15.0  # for the servers to end by themselves after the workers
    page_s: float = 10.0  # for the state server to write its page at the very end
    lead_s: float = 5.0  # the end of a server may be seen this much earlier than that of its workers
    ready_s: float = 60.0  # for a service to accept connections


class JobOutcome(NamedTuple):
    """How a job ended."""

    exit_code: int  # utils.EXIT_*
    was_stopped: bool  # by a signal
    error: str = ""  # that a lost process has told, if its loss ended the job


class _Finished(Exception):
    """Leaves the loop with what JobOutcome takes; everything that still runs is killed."""


class Supervisor:
    """Runs roles until all workers are done, a signal asks to stop, or something goes wrong."""

    def __init__(
        self,
        roles: Sequence[Role],  # started in this order, but workers last, once every service answers
        say: Callable[[str], None],
        timeouts: Timeouts,
        start: Callable[[Role], RunningProcess] = Process,
        connections: Sequence[RunningProcess] = (),  # to the hosts, there already: watched, and not ended
        leave_together: bool = False,  # the workers do, as those of a distributed job
        policy: RestartPolicy | None = None,  # what follows from a loss; None: the end of the job
        begins: Callable[[], None] = lambda: None,  # called once, when a worker has begun to train
    ) -> None:
        self._roles, self._say, self._timeouts = roles, say, timeouts
        self._connections, self._begins, self._policy = connections, begins, policy or RestartPolicy()
        self._survival = self._policy.survival
        self._leave_together = leave_together or self._survival.others_continue
        self._processes = JobProcesses(start, say)
        self._console, self._signals = Forwarder(say), StopSignals()
        self._state, self._since = _State.RUNNING, time.monotonic()
        self._lost: dict[str, tuple[float, float]] = {}  # by name, if started again alone: when lost and when due
        self._restart_at = 0.0  # all but the services are killed, and are started again then; 0: they are not
        self._has_begun = False  # a worker has begun to train
        self._waits_since: float | None = None  # for the cause of a loss
        self._done_at = math.inf  # when the first worker had done the job; at a hub, the last so far

    def run(self) -> JobOutcome:
        """Runs the job, in the main thread. Every process has ended when this returns or raises."""
        with self._signals:
            try:
                while True:
                    self._step(time.monotonic())
                    time.sleep(POLL_S)
            except _Finished as end:
                return JobOutcome(*end.args)
            finally:
                if not self._signals.is_repeated:
                    self._processes.end_pages(self._timeouts.page_s)
                self._console.forward(self._processes.there)
                self._processes.remove(self._processes.there)

    def _finish(self, exit_code: int, message: str, error: str = "") -> NoReturn:
        self._say(message)
        raise _Finished(exit_code, bool(self._signals.first), error)

    def _step(self, now: float) -> None:
        """Looks once at everything. Raises _Finished when the job is over."""
        self._hear(self._processes.there)
        if self._state is _State.RUNNING:
            self._processes.look_at_services(self._timeouts.ready_s)
        self._note_ends(now)
        self._obey_signals(now)
        now = time.monotonic()  # what is to be started at once is due
        if self._state is _State.SETTLING:
            self._settle(now)
            return
        try:
            self._start_missing(now)
        except SetupError as error:
            self._finish(EXIT_PEER_LOST if 0 < self._restart_at <= now else EXIT_SETUP, f"error: {error}")
        self._await_workers(now)

    def _hear(self, processes: Sequence[RunningProcess]) -> None:
        """Shows the user what processes have written, and notes that a worker has begun to train."""
        self._console.forward(processes)
        told = [worker.status for worker in self._processes.of(Kind.WORKER)]
        if not self._has_begun and any(each.get("begun") or each.get("trained") for each in told):
            self._has_begun = True
            self._begins()

    def _start_missing(self, now: float) -> None:
        """Starts what is missing and due, workers once all services answer. Raises SetupError if one cannot start."""
        if 0 < self._restart_at <= now:
            self._policy.look()  # it ends the connections to hosts that have fallen silent
            if all(link.ended_at is not None or link.exit_code is None for link in self._connections):
                self._roles, self._lost = self._policy.roles(), {}  # else the next step decides on the ended ones
                self._restart_at, self._since, self._done_at = 0.0, now, math.inf
        there = {each.role.name for each in self._processes.there}
        missing = [role for role in self._roles if role.name not in there]
        up = [each.role.name for each in self._processes.of(Kind.SERVICE) if each.is_up and each.exit_code is None]
        are_up = all(role.name in up for role in self._roles if role.is_ready and not role.is_for_page)
        for role in sorted(missing, key=lambda role: role.kind is Kind.WORKER):
            _, at = self._lost.get(role.name, (0.0, math.inf if self._restart_at else 0.0))
            if now < at or (role.kind is Kind.WORKER and not (are_up and self._state is _State.RUNNING)):
                continue
            is_back, last = self._lost.pop(role.name, None) is not None, self._processes.newest(role)
            if last and is_back:
                workers = [self._processes.newest(its) for its in self._roles if its.kind is Kind.WORKER]
                role = self._policy.restarted(
                    last.role, sum(not each or each.exit_code not in DONE for each in workers)
                )
            self._processes.start(role).is_back = is_back

    def _note_ends(self, now: float) -> None:
        watched = [*self._connections, *self._processes.there]
        new = [process for process in watched if process.ended_at is None and process.exit_code is not None]
        if self._state is _State.RUNNING and new and all(process.exit_code == EXIT_PEER_LOST for process in new):
            # The system closes a killed process's connections some time before it tells of its end, the cause.
            self._waits_since = self._waits_since or now
            if now < self._waits_since + CAUSE_S:
                return
        self._waits_since = None
        for process in new:
            process.ended_at = now
            if process.role.kind is Kind.WORKER and process.is_done and self._leave_together:
                self._done_at = now if self._survival is Survival.AT_HUB else min(self._done_at, now)
        ends = (Kind.SERVICE,) if self._state is not _State.SETTLING else ()
        lost = [process for process in new if process.exit_code not in DONE or process.role.kind in ends]
        self._lose([process for process in lost if process in self._connections])
        lost = [process for process in self._processes.there if process in lost]  # still there, without those hosts
        causes_first = sorted(lost, key=lambda process: process.exit_code == EXIT_PEER_LOST)
        for together in [[each] for each in causes_first] if self._survival.others_continue else [lost]:
            self._lose(together)

    def _obey_signals(self, now: float) -> None:
        if self._signals.is_repeated:
            self._finish(EXIT_FORCED, "a second signal: everything is killed at once")
        if not self._signals.first or self._state is not _State.RUNNING:
            return
        name, grace_s, workers = self._signals.first, self._timeouts.grace_s, self._processes.of(Kind.WORKER)
        self._say(f"{name}: the workers end with this round, within {grace_s:g} s; once more kills them at once")
        if not workers:
            self._finish(EXIT_FORCED, _TOO_EARLY)
        self._state, self._since = _State.STOPPING, now
        for worker in workers:
            worker.send(signal.SIGTERM)

    def _await_workers(self, now: float) -> None:
        """Looks which workers have ended, and loses those that should have by now."""
        grace_s, lead_s = self._timeouts.grace_s, self._timeouts.lead_s
        workers, is_stopping = self._processes.of(Kind.WORKER), self._state is _State.STOPPING
        left = [worker for worker in workers if not worker.ended_at]
        ended_at = [worker.ended_at for worker in workers if worker.ended_at]
        servers = [each for each in self._processes.of(*_SERVERS) if each.ended_at and now > each.ended_at + lead_s]
        is_over = self._survival is Survival.AT_HUB and any(server.exit_code == EXIT_OK for server in servers)
        lost = [role.name for role in self._roles if role.kind is Kind.WORKER and role.name in self._lost]
        lost_at = min((self._lost[name][0] for name in lost if not is_stopping), default=0.0)
        if is_over or (ended_at and not left and max(ended_at) >= lost_at):  # the others have finished without the lost
            if left:
                self._say(f"warning: {_names(left)} did not end with the others; killed")
            self._state, self._since = _State.SETTLING, now
            return
        self._lose(servers)
        since, event = self._done_at, "the others" if self._survival.others_continue else "the first worker"
        if is_stopping:
            since, event = self._since, "they were asked to"
        elif self._survival is Survival.AT_HUB and not all(worker.is_back for worker in left):
            return  # each has rounds of its own
        elif self._survival.others_continue and not any(worker.status.get("trained") for worker in left):
            grace_s = lead_s  # they were started when the job was over
        if left and now > since + grace_s:
            self._lose(left, f"{_names(left)} did not end within {grace_s:g} s after {event}")

    def _settle(self, now: float) -> None:
        left = [server for server in self._processes.of(*_SERVERS) if server.ended_at is None]
        settle_s = self._timeouts.settle_s
        if left and now <= self._since + settle_s:
            return
        if left:
            self._say(f"warning: {_names(left)} did not end by itself within {settle_s:g} s and was killed")
        if full := [worker for worker in self._processes.of(Kind.WORKER) if worker.exit_code == EXIT_INCOMPLETE]:
            self._finish(EXIT_INCOMPLETE, f"warning: the disk has not taken all logs of {_names(full)}")
        raise _Finished(EXIT_OK, bool(self._signals.first))

    def _lose(self, lost: Sequence[RunningProcess], too_late: str = "") -> None:
        """Does what follows from lost processes. `too_late` says it of those that should have ended by now."""
        if not lost:
            return
        self._hear(lost)
        records = [record_of(each, each in self._connections, self._roles, self._since) for each in lost]
        (cause, *_), how = causes_of(records), too_late or how_they_ended(records)
        its_log = where_it_says_why(cause, self._console.has_told)
        if self._state is _State.SETTLING:
            self._say(f"warning: {how} at the very end.{its_log}")
            return
        hosts = {connection.role.host for connection in self._connections if connection.ended_at is not None}
        gone = {process.role.name for process in lost} | {role.name for role in self._roles if role.host in hosts}
        left = [role for role in self._roles if role.kind is Kind.WORKER and role.name not in gone]
        others = [self._processes.newest(role) for role in left]
        try:
            decision = self._policy.after(
                records,
                has_begun=self._has_begun,
                is_stopping=self._state is _State.STOPPING,
                is_restarting=self._restart_at > 0,
                num_running=sum(worker is None or worker.exit_code is None for worker in others),
                num_done=sum(worker is not None and worker.is_done for worker in others),
                num_others=sum(worker is None or not worker.has_left for worker in others),
            )
        except SetupError as error:
            self._finish(EXIT_PEER_LOST, f"error: {how}, and {error}")
        if decision.action is Action.END_JOB:
            if all(process.role.is_for_page for process in lost):
                return  # a worker says that it is away
            if self._state is _State.STOPPING and cause.exit_code in (EXIT_FORCED, -signal.SIGTERM):
                self._finish(EXIT_FORCED, _TOO_EARLY)
            why = decision.text and f": {decision.text}"
            exit_code = EXIT_SETUP if cause.exit_code == EXIT_SETUP else EXIT_PEER_LOST
            exit_code = EXIT_FORCED if too_late and self._state is _State.STOPPING else exit_code
            self._finish(exit_code, f"error: {how}; stopping the job{why}.{its_log}", cause.error)
        self._say(f"{how}: {decision.text}.{its_log if cause.error else ''}")
        now, there = time.monotonic(), self._processes.there
        ending = [process for process in there if process.role.name in gone]
        if decision.action is Action.LEAVE_OUT:
            self._roles = [role for role in self._roles if role.name not in gone]
        elif decision.action is Action.RESTART_LOST:
            self._lost |= {process.role.name: (now, now + decision.wait_s) for process in lost}
        else:
            self._restart_at, self._lost = now + decision.wait_s, {}
            ending = [each for each in there if each.role.kind is not Kind.SERVICE or each.exit_code is not None]
        self._processes.remove(ending)
        unseen = {process.role.host for process in ending if self._restart_at and process.exit_code is None}
        for connection in self._connections:
            if connection.role.host in unseen and connection.exit_code is None:
                self._say(f"warning: {connection.role.host} does not confirm that its processes have ended; given up")
                connection.send(signal.SIGKILL)  # without the launcher they end within a minute


def _names(processes: Sequence[RunningProcess]) -> str:
    return ", ".join(process.role.label for process in processes)
