"""The processes of a job that its supervisor has started: who takes part, who is the newest of a role."""

import dataclasses
import secrets
import signal
import time
from collections.abc import Callable, Sequence

from scripts.launch.health import FROZEN_S, Health
from scripts.launch.process import Kind, Role, RunningProcess
from utils import PROCESS, SetupError

POLL_S = 0.1


class JobProcesses:
    """Starts processes, looks whether services answer, and kills what takes part no longer."""

    def __init__(self, start: Callable[[Role], RunningProcess], say: Callable[[str], None]) -> None:
        self.there: list[RunningProcess] = []  # those that take part
        self._start, self._say = start, say
        self._launcher, self._launched = secrets.token_hex(8), list[RunningProcess]()

    def of(self, *kinds: Kind) -> list[RunningProcess]:
        return [process for process in self.there if process.role.kind in kinds]

    def newest(self, role: Role) -> RunningProcess | None:
        """The last process that was started in a role; None: there was none."""
        return next((each for each in reversed(self._launched) if each.role.name == role.name), None)

    def start(self, role: Role) -> RunningProcess:
        """Starts a role. The name of the process, and which other workers live, are this launcher's word at the state
        server (server.messages.Launched). Raises SetupError if it cannot be started."""
        known = enumerate(self._launched)
        living = [str(number) for number, other in known if other.role.kind is Kind.WORKER and other.exit_code is None]
        word = " ".join([f"{self._launcher}-{len(self._launched)}", *living])
        role = dataclasses.replace(role, environment={**role.environment, PROCESS: word})
        if isinstance(role.is_ready, Health):
            role.is_ready.end(is_up=False)  # another process begins in the place of the one that has answered
        try:
            process = self._start(role)
        except OSError as error:
            raise SetupError(f"{role.label} cannot be started: {error}") from None
        process.started_at = time.monotonic()
        self.there.append(process)
        self._launched.append(process)
        return process

    def remove(self, processes: Sequence[RunningProcess]) -> None:
        """Kills processes, which take part no longer."""
        self.there = [process for process in self.there if process not in processes]
        for process in processes:
            process.send(signal.SIGKILL)
        for process in processes:
            process.reap()

    def look_at_services(self, ready_s: float) -> None:
        """Kills the services that do not answer: they are started again as those that died. A service has `ready_s` for
        its first answer."""
        for service in self.of(Kind.SERVICE):
            if service.role.is_ready is None or service.is_frozen or service.exit_code is not None:
                continue
            service.is_up = service.is_answering()
            if service.is_up and not service.has_answered and not service.is_back and service.role.page:
                self._say(f"the job's status page: {service.role.page}")
            service.has_answered |= service.is_up
            silent_s = FROZEN_S if service.has_answered else ready_s
            if not service.is_up and (service.has_answered or time.monotonic() > service.started_at + silent_s):
                self._say(f"warning: {service.role.label} has not answered for {silent_s:g} s and is killed")
                service.is_frozen = True
                service.send(signal.SIGKILL)

    def end_pages(self, longest_s: float) -> None:
        """Lets the state server write its page."""
        pages = [process for process in self.of(Kind.SERVICE) if process.role.page]
        for process in pages:
            process.send(signal.SIGINT)  # it may ignore SIGTERM: trainer/runtime/stop_signals.py
        until = time.monotonic() + longest_s
        while any(process.exit_code is None for process in pages) and time.monotonic() < until:
            time.sleep(POLL_S)
