"""Hosts that come to a job while it runs, or leave it: SIGUSR1 has the launcher read the hosts file again.

    all workers end with their round -> the logs come home -> the job goes on from its checkpoints with the hosts that
    are in the file now, as after Ctrl-C with the same command and --resume

Where the file is wrong, or says what it said, nothing happens. Where the new hosts cannot begin, the job goes on with
those that it had.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Collection
from types import FrameType, TracebackType
from typing import Any

from scripts import launch
from scripts.hosts_layout import Plan, example
from scripts.survival import RESUME
from utils import SetupError

_AS_IT_WAS = "the job goes on as it was"


class Changes:
    """What there is to do next, in the main thread of a launcher.

    Attributes:
        plan: of the job as it is now.
        there: names of its hosts that are there still.
        asked: somebody wants the file to be read again.
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
        self.asked = False
        self.have_come = False
        self._handler: Any = signal.signal(signal.SIGUSR1, self._note)
        self.plan = self._next = read()

    def __enter__(self) -> Changes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        signal.signal(signal.SIGUSR1, self._handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True

    def accept(self) -> bool:
        """Reads the file again; returns whether the workers are to end for what it says now."""
        self.asked = False
        if not next(launch.worker_configs(*example(self.plan)))[0].ckpt_frequency:
            self._say(f"error: a job without checkpoints (--ckpt-frequency) cannot change its hosts: {_AS_IT_WAS}")
            return False
        try:
            plan = self._read()
        except SetupError as error:
            self._say(f"error: {error}: {_AS_IT_WAS}")
            return False
        except SystemExit:  # a flag in it
            self._say(f"error: a flag is wrong: {_AS_IT_WAS}")
            return False
        self.plan = dataclasses.replace(self.plan, hosts=self.plan.hosts.only(self.there()))
        if plan.hosts == self.plan.hosts:
            self._say(f"the hosts file says what it said: {_AS_IT_WAS}")
            return False
        self._say("SIGUSR1: the hosts file says something else now: the workers end with this round")
        self._next = plan
        return True

    def go_on(self) -> None:
        """The workers have ended: now comes what was accepted."""
        self._before, self.plan = _resumed(self.plan), _resumed(self._next)
        self.have_come = True
        hosts = self.plan.hosts
        self._say(f"the job goes on with {len(hosts.workers)} worker(s) on {', '.join(hosts.hosts)}")

    def go_back(self, why: str) -> bool:
        """The job could not begin; returns whether it goes on with the hosts from before the change."""
        if self._before is None:
            return False
        self._say(f"error: {why}: the job goes on with the hosts that it had")
        self.plan, self._before = self._before, None
        return True


def _resumed(plan: Plan) -> Plan:
    given = plan.job.worker_arguments
    arguments = given if given[-len(RESUME) :] == tuple(RESUME) else (*given, *RESUME)
    return dataclasses.replace(plan, job=dataclasses.replace(plan.job, worker_arguments=arguments))
