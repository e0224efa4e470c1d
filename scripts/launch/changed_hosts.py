"""Changes of a running job's hosts: SIGUSR1 makes the launcher read the hosts file again.

    the hosts that the file names now get ready -> all workers end with their round -> the logs of hosts that leave are
    fetched -> the job resumes from its checkpoints on the hosts of now, as after Ctrl-C with the same command and
    --resume

Where the file is wrong or unchanged, or a host does not get ready, nothing happens. Where the new hosts cannot begin,
the job resumes on the hosts that it had.

A host that was lost comes back in the same way, without a signal, to a job that is restarted (--on-worker-death
restart): the launcher tries to connect it again.
"""

from __future__ import annotations

import dataclasses
import signal
import time
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

from config import RESTART, Config
from scripts.launch import job_options
from scripts.launch.connection_pool import ConnectionPool
from scripts.launch.hosts_file import Host
from scripts.launch.hosts_layout import LaunchPlan, example
from scripts.launch.restart_policy import RESUME
from utils import SetupError

RETRY_S = 5.0  # between two tries to connect hosts that were lost
_UNCHANGED = "the job continues unchanged"


class HostChanges:
    """Which hosts a job runs on now and next; lives in the main thread of a launcher."""

    def __init__(self, read: Callable[[], LaunchPlan], say: Callable[[str], None], first: LaunchPlan) -> None:
        """`read` parses the command line and the hosts file; it raises SetupError, or SystemExit after an error
        message. `first` is the plan that the job begins with."""
        self._read = read
        self._say = say
        self._before: LaunchPlan | None = None
        # Returns the names of its hosts that are not lost
        self.there: Callable[[], Collection[str]] = lambda: self.plan.hosts.hosts
        self.toward: tuple[str, int] | None = None  # address and port, if any, that the hosts must reach
        self.has_changed = False  # the plan is not the first
        self._is_asked = False  # to read the file again
        self._are_ready: Callable[[], bool] | None = None  # while hosts get ready
        self._is_accepted = False  # the hosts are ready, and the workers end
        self._retry_at = 0.0  # for lost hosts
        self._is_retry, self._retries = False, 0
        self._handler: Any = signal.signal(signal.SIGUSR1, self._note)
        self.plan = self._next = self._whole = first  # of the job now, after a change, and as the file says
        self.pool: ConnectionPool | None = None  # connections to its hosts, and to those that get ready

    def __enter__(self) -> HostChanges:
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGUSR1, self._handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True

    def look(self, all_train: Callable[[], bool]) -> bool:
        """Called in each step of the supervisor; returns whether the workers are to end with their round now.
        `all_train` tells whether all workers train, so that they can end."""
        try:
            if self._is_asked and not self._is_accepted and all_train():
                self._is_asked = self._is_retry = False
                self._are_ready = self._begin()
            elif self._are_ready is None and time.monotonic() > self._retry_at and (lost := self._lost_hosts()):
                # One at a time: a host that stays away keeps no other one out.
                self._is_retry, self._retries = True, self._retries + 1
                hosts = self._whole.hosts.only({*self.there(), lost[self._retries % len(lost)]})
                self._next = dataclasses.replace(self._whole, job=self.plan.job, hosts=hosts)
                self._are_ready = self._get_ready()
            # Called also while the workers end: it sends the pings, without which a host ends after a minute.
            if self._are_ready is None or not self._are_ready() or self._is_accepted or not all_train():
                return False
        except SetupError as error:
            if not self._is_accepted:
                self._drop(f"error: {error}")
            return False
        self.plan = dataclasses.replace(self.plan, hosts=self.plan.hosts.only(self.there()))
        self._is_accepted = True
        self._say(f"ready: {', '.join(self._next.hosts.hosts)}; the workers end with this round")
        return True

    def _begin(self) -> Callable[[], bool] | None:
        """Reads the file again, and makes its hosts get ready; None where nothing changes. Raises SetupError if the
        file is wrong, or the job cannot change."""
        if not _config_of(self.plan).ckpt_frequency:
            raise SetupError("a job without checkpoints (--ckpt-frequency) cannot change its hosts")
        try:
            plan = self._read()
        except SystemExit:
            raise SetupError("a flag is wrong") from None
        if plan.number is not None:
            raise SetupError("a job whose workers --fastest has chosen by timed steps cannot change its hosts")
        if plan.hosts == self.plan.hosts.only(self.there()):
            self._drop("the hosts file has not changed")
            return None
        self._next = plan
        self._say("SIGUSR1: the hosts file has changed; its hosts get ready while the job continues")
        return self._get_ready()

    def _get_ready(self) -> Callable[[], bool]:
        return self.pool.get_ready(self._next, _config_of(self._next), self.toward) if self.pool else lambda: True

    def _lost_hosts(self) -> list[str]:
        """Names of hosts of the file that the job is to get back."""
        self._retry_at = time.monotonic() + RETRY_S
        lost = [name for name in self._whole.hosts.hosts if name not in self.there()]
        return lost if lost and _config_of(self.plan).on_worker_death == RESTART else []

    def _drop(self, why: str) -> None:
        self._are_ready, self._retry_at = None, time.monotonic() + RETRY_S
        if self.pool:
            self.pool.keep(self.plan.hosts.hosts.values())
        if not self._is_retry:
            self._say(f"{why}: {_UNCHANGED}")

    def stays(self, host: Host) -> bool:
        """Whether a host of the job also takes part after the accepted change."""
        return host in self._next.hosts.hosts.values()

    def go_on(self) -> None:
        """The workers have ended: makes the accepted plan the job's."""
        self._before, self.plan = _resumed(self.plan), _resumed(self._next)
        self._whole = self._whole if self._is_retry else self.plan
        self.has_changed = True
        self._are_ready, self._is_accepted = None, False
        hosts = self.plan.hosts
        self._say(f"the job continues with {len(hosts.workers)} worker(s) on {', '.join(hosts.hosts)}")

    def go_back(self, why: str) -> bool:
        """The job could not begin: returns whether there are hosts from before the change, and takes them."""
        if self._before is None:
            return False
        self._say(f"error: {why}: the job continues with the hosts that it had")
        self.plan, self._before = self._before, None
        self._whole = self.plan
        self._are_ready, self._is_accepted = None, False
        return True


def _config_of(plan: LaunchPlan) -> Config:
    return job_options.first_config(*example(plan))


def _resumed(plan: LaunchPlan) -> LaunchPlan:
    given = plan.job.worker_arguments
    arguments = given if given[-len(RESUME) :] == RESUME else (*given, *RESUME)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, worker_arguments=arguments))
