"""Hosts that come to a job while it runs, or leave it: SIGUSR1 has the launcher read the hosts file again.

    the hosts that are in the file now get ready -> all workers end with their round -> the logs of hosts that leave
    come home -> the job goes on from its checkpoints with those that are there now, as after Ctrl-C with the same
    command and --resume

Where the file is wrong, or says what it said, or a host does not get ready, nothing happens. Where the new hosts cannot
begin, the job goes on with those that it had.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Collection
from types import FrameType, TracebackType
from typing import Any

from config import Config
from scripts.launch import job_options
from scripts.launch.connections import Connections
from scripts.launch.hosts_file import Host
from scripts.launch.hosts_layout import Plan, example
from scripts.launch.survival import RESUME
from utils import SetupError

_AS_IT_WAS = "the job goes on as it was"


class Changes:
    """What there is to do next, in the main thread of a launcher.

    Attributes:
        plan: of the job as it is now.
        connections: to its hosts, and to those that get ready.
        there: names of its hosts that are there still.
        have_come: the plan is not the first.
    """

    def __init__(self, read: Callable[[], Plan], say: Callable[[str], None]) -> None:
        """
        Args:
            read: the command line, and the hosts file as it is now. Raises SetupError, or SystemExit once it has said
                what is wrong.
            say: prints a line for the user.
        """
        self._read = read
        self._say = say
        self._before: Plan | None = None
        self.there: Callable[[], Collection[str]] = lambda: self.plan.hosts.hosts
        self.have_come = False
        self._is_asked = False  # to read the file again
        self._are_ready: Callable[[], bool] | None = None  # where hosts get ready
        self._is_accepted = False  # they are, and are waited for no more
        self._handler: Any = signal.signal(signal.SIGUSR1, self._note)
        self.plan = self._next = read()
        self.connections: Connections | None = None

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.signal(signal.SIGUSR1, self._handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True

    def look(self, all_train: Callable[[], bool]) -> bool:
        """Called again and again while the job runs; returns whether the workers are to end with their round now.

        Args:
            all_train: whether all workers do, so that these may end.
        """
        try:
            if self._is_asked and not self._is_accepted and all_train():
                self._is_asked = False
                self._are_ready = self._begin()
            # Also while the workers end: a host that hears nothing for a minute gives up.
            if self._are_ready is None or not self._are_ready() or self._is_accepted or not all_train():
                return False
        except SetupError as error:
            if not self._is_accepted:
                self._leave(f"error: {error}")
            return False
        self.plan = dataclasses.replace(self.plan, hosts=self.plan.hosts.only(self.there()))
        self._is_accepted = True
        self._say(f"ready: {', '.join(self._next.hosts.hosts)}; the workers end with this round")
        return True

    def _begin(self) -> Callable[[], bool] | None:
        """Reads the file again, and lets the hosts get ready that it names now; None where nothing changes.

        Raises:
            SetupError: the file is wrong, or nothing can change.
        """
        if not self._told(self.plan).ckpt_frequency:
            raise SetupError("a job without checkpoints (--ckpt-frequency) cannot change its hosts")
        try:
            plan = self._read()
        except SystemExit:
            raise SetupError("a flag is wrong") from None
        if plan.hosts == self.plan.hosts.only(self.there()):
            self._leave("the hosts file says what it said")
            return None
        self._next = plan
        self._say("SIGUSR1: the hosts file says something else now; its hosts get ready while the job goes on")
        return self.connections.get_ready(plan, self._told(plan)) if self.connections else lambda: True

    def _told(self, plan: Plan) -> Config:
        return next(job_options.worker_configs(*example(plan)))[0]

    def _leave(self, why: str) -> None:
        self._are_ready = None
        if self.connections:
            self.connections.keep(self.plan.hosts.hosts.values())
        self._say(f"{why}: {_AS_IT_WAS}")

    def stays(self, host: Host) -> bool:
        """Whether a host of the job has part in it, too, after the change that was accepted."""
        return host in self._next.hosts.hosts.values()

    def go_on(self) -> None:
        """The workers have ended: now comes what was accepted."""
        self._before, self.plan = _resumed(self.plan), _resumed(self._next)
        self.have_come = True
        self._are_ready, self._is_accepted = None, False
        hosts = self.plan.hosts
        self._say(f"the job goes on with {len(hosts.workers)} worker(s) on {', '.join(hosts.hosts)}")

    def go_back(self, why: str) -> bool:
        """The job could not begin; returns whether it goes on with the hosts from before the change."""
        if self._before is None:
            return False
        self._say(f"error: {why}: the job goes on with the hosts that it had")
        self.plan, self._before = self._before, None
        self._are_ready, self._is_accepted = None, False
        return True


def _resumed(plan: Plan) -> Plan:
    given = plan.job.worker_arguments
    arguments = given if given[-len(RESUME) :] == tuple(RESUME) else (*given, *RESUME)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, worker_arguments=arguments))
