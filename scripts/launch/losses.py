"""Lost processes of a job: the record by which scripts/launch/restarts.py decides, and the words for the user."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.launch.process import Kind, Role, RunningProcess
from utils import EXIT_PEER_LOST, EXIT_SETUP


@dataclass(frozen=True)
class Lost:
    """A process that has ended and should not have, or that does not answer; or a host with all of its processes."""

    kind: Kind
    exit_code: int | None  # negative: the signal that killed it; None: it runs and does not answer
    name: str = ""
    error: str = ""  # why it has ended, as it has told
    up_s: float = 0.0  # seconds from its start to its end
    has_answered: bool = False  # a service
    is_host: bool = False  # the connection to a host was lost
    with_services: bool = False  # of a host: other processes than workers ran there
    label: str = ""  # for the user
    log: Path = Path()

    @property
    def is_consequence(self) -> bool:
        """Whether it has ended since another process was lost, or is frozen."""
        return self.exit_code == EXIT_PEER_LOST


def record_of(process: RunningProcess, is_host: bool, roles: Sequence[Role], since: float) -> Lost:
    """The record of a lost process, or connection to a host, in a job of these roles; `since` is its last start."""
    role = process.role
    there = [other.kind for other in roles if is_host and other.host == role.host]
    return Lost(
        kind=role.kind,
        exit_code=process.exit_code,
        name=role.name,
        error=process.status.get("error", ""),
        up_s=time.monotonic() - max(process.started_at, since),
        has_answered=process.has_answered,
        is_host=is_host,
        with_services=any(kind is not Kind.WORKER for kind in there),
        label=role.label,
        log=role.log,
    )


def causes_of(lost: Sequence[Lost]) -> Sequence[Lost]:
    """Those that have failed by themselves, workers with a mistake of the user's before the servers that end with it;
    the first one where all have only lost another one."""
    causes = [each for each in lost if not each.is_consequence] or lost[:1]
    return sorted(causes, key=lambda each: each.kind is not Kind.WORKER or each.exit_code != EXIT_SETUP)


def how_they_ended(lost: Sequence[Lost]) -> str:
    """Who was lost and how, in words."""
    return " and ".join(f"{cause.label} {how_it_ended(cause.exit_code)}" for cause in causes_of(lost))


def how_it_ended(code: int | None) -> str:
    """An exit code, in words."""
    if not code:
        return "ended before the workers"
    if code == -signal.SIGABRT:
        return f"was killed by signal {-code} (it aborted: bytes of another program at its port can be the cause)"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def where_it_says_why(lost: Lost, has_told: Callable[[str], bool]) -> str:
    """Names the log of a lost process, and its error unless the user has seen it (`has_told`)."""
    if lost.error:
        reason = "" if has_told(lost.error) else f", says: {lost.error}"
    elif lost.log.exists() and lost.log.stat().st_size:
        reason = ""
    elif lost.is_host:
        return ""  # ssh may print nothing
    else:
        reason = ", is empty: is the disk full?"
    return f" Its log, {lost.log}{reason}" if reason else f" Its log: {lost.log}"
