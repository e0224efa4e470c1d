"""What a launcher knows of failed processes: in words, and as scripts/launch/restarts.py takes it."""

import signal
from collections.abc import Callable, Sequence
from typing import NamedTuple

from scripts.launch.process import Kind, RunningProcess
from scripts.launch.restarts import ExitReport
from utils import EXIT_PEER_LOST, EXIT_SETUP


class Failure(NamedTuple):
    """Processes that have failed at once."""

    processes: Sequence[RunningProcess]  # they have ended, or do not answer
    how: str  # in words
    cause: RunningProcess | None = None  # the first that has failed by itself; with EXIT_PEER_LOST a process has not
    log: str = ""  # names its log and the error with which it has ended
    has_error: bool = False  # there is one


def failure_of(
    failed: Sequence[RunningProcess], connections: Sequence[RunningProcess], has_told: Callable[[str], bool]
) -> Failure:
    """Describes the failure of one process or more to the user; `connections` are to hosts, `has_told` says whether the
    user has seen an error."""
    causes = [process for process in failed if process.exit_code != EXIT_PEER_LOST] or failed[:1]
    # Servers that a worker has told of its mistake end with it.
    first = next((each for each in causes if each.role.kind is Kind.WORKER and each.exit_code == EXIT_SETUP), causes[0])
    how = " and ".join(f"{cause.role.label} {how_it_ended(cause.exit_code)}" for cause in causes)
    error, its_log = first.told.get("error", ""), first.role.log
    is_silent = not (error or (its_log.exists() and its_log.stat().st_size))
    reason = ", is empty: is the disk full?" if is_silent else error and not has_told(error) and f", says: {error}"
    log = f" Its log{f', {its_log}{reason}' if reason else f': {its_log}'}"
    log = "" if is_silent and first in connections else log  # ssh may print nothing
    return Failure(failed, how, first, log, bool(error))


def how_it_ended(code: int | None) -> str:
    """An exit code, in words."""
    if not code:
        return "ended before the workers"
    if code == -signal.SIGABRT:
        return f"was killed by signal {-code} (it aborted: bytes of another program at its port can be the cause)"
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def report_of(process: RunningProcess, on_host: Sequence[RunningProcess], is_connection: bool) -> ExitReport:
    """Makes the report of a failed process; of a connection to a host, with the processes on its host."""
    workers = [other for other in (*on_host, process) if other.role.kind is Kind.WORKER]
    return ExitReport(
        process.role.kind,
        process.exit_code,
        process.told.get("error", ""),
        process.role.name,
        is_connection=is_connection,
        with_service=len(on_host) > len(workers),
        has_trained=bool(workers) and all(worker.told.get("trained") for worker in workers),
    )
