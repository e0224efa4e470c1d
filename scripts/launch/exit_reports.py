"""What a launcher knows of processes that have ended as they should not: in words, and as scripts/launch/restarts.py
asks."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import NamedTuple

from scripts.launch.console import has_trained, last_error
from scripts.launch.process import Kind, Running, last_lines
from scripts.launch.restarts import Death
from utils import EXIT_PEER_LOST


class Failure(NamedTuple):
    """Of several processes at once.

    Attributes:
        first: of the causes; EXIT_PEER_LOST is a consequence.
        how: they have ended.
        log: where more is said.
        says_why: that log does.
    """

    first: Running
    how: str
    log: str
    says_why: bool


def failure_of(failed: Sequence[Running], links: Sequence[Running]) -> Failure:
    """What has happened, for the user.

    Args:
        failed: one at least.
        links: the connections to hosts.
    """
    causes = [process for process in failed if process.exit_code != EXIT_PEER_LOST] or failed[:1]
    first = causes[0]
    how = " and ".join(f"{cause.role.label} {how_it_ended(cause.exit_code)}" for cause in causes)
    lines, said = last_lines(first.role.log), last_error(first.role)
    reason = (said and f", says: {said}") if lines else ", is empty: is the disk full?"
    log = f" Its log, {first.role.log}{reason}" if lines or first not in links else ""  # ssh may say nothing
    return Failure(first, how, log, bool(said))


def how_it_ended(code: int | None) -> str:
    """An exit code, in words."""
    if not code:
        return "ended before the workers"
    if code == -signal.SIGABRT:
        return f"was killed by signal {-code} (it aborted: bytes of another program at its port can be the cause)"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def death_of(process: Running, there: Sequence[Running], is_link: bool) -> Death:
    """What is to be decided on.

    Args:
        there: the processes on the host to which it is the connection.
        is_link: it is one.
    """
    workers = [other for other in (*there, process) if other.role.kind is Kind.WORKER]
    return Death(
        process.role.kind,
        process.exit_code,
        last_error(process.role),
        is_link=is_link,
        with_service=len(there) > len(workers),
        has_trained=bool(workers) and all(has_trained(worker.role) for worker in workers),
    )
