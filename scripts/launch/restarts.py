"""What a launcher does when processes of a job have failed (--on-worker-death restart or continue): a pure function.

    decide(reports, ..., history) -> which processes to restart, after how long, from which round; or none, and why

Nothing is restarted where it would fail again: after a wrong flag or file, after training has diverged, after
--restarts restarts without a new checkpoint. Nothing is restarted on a host that is gone. Where the others continue, a
worker's failures count for this worker alone: in place of the end of the job it is left out. So is a worker for which
alone all were restarted so many times.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scripts.launch.process import Kind
from utils import DIVERGED, EXIT_PEER_LOST, EXIT_SETUP

DEFAULT_RESTARTS = 5
STABLE_S = 60.0  # a process that fails after this uptime is restarted at once
LONGEST_WAIT_S = 30.0
FEWEST_LEFT = 2  # workers, where one is left out of a restart


@dataclass(frozen=True)
class ExitReport:
    """A process that has ended and should not have, or that does not answer."""

    kind: Kind
    exit_code: int | None  # negative: the signal that killed it; None: it runs and does not answer
    error: str = ""  # the line with which it has ended
    name: str = ""
    is_connection: bool = False  # to a host
    with_service: bool = False  # of a connection: the host had other processes than workers
    has_trained: bool = False  # a round at least; of a connection: all workers of the host


class Action(enum.Enum):
    """What a failure leads to."""

    RESTART_ALL = "restart all"  # but services that still run
    RESTART_FAILED = "restart failed"
    LEAVE_OUT = "leave out"  # the others continue without the failed
    END_JOB = "end job"


@dataclass(frozen=True)
class RestartHistory:
    """Earlier restarts: of all processes; where the others continue, of one."""

    checkpoint: int | None = None  # the newest round that the job could resume from; None: there was none
    restarts: int = 0  # since that checkpoint
    in_a_row: int = 0  # failures since that checkpoint, each less than STABLE_S after the start before it
    causes: frozenset[str] = frozenset()  # names of the processes that have failed since then; "": an unknown one


@dataclass(frozen=True)
class RestartDecision:
    """What is done."""

    action: Action
    wait_s: float  # seconds until the restart
    text: str  # what is lost and what follows; empty where the reports alone explain the end of the job
    history: RestartHistory  # with this restart
    left_out: Sequence[str] = ()  # the worker without which all others are restarted


def decide(
    reports: Sequence[ExitReport],
    uptime_s: float,
    checkpoint: int | None,
    history: RestartHistory,
    limit: int,
    service_was_away: bool = False,
    others_continue: bool = False,
    any_worker_left: bool = True,
    beside_hub: bool = False,
    has_begun: bool = False,
    num_left: int = 1,
    min_workers: int = 1,
) -> RestartDecision:
    """Decides on failures that were seen together; where others continue, on one, or on those of a host.

    Args:
        reports: one or more; EXIT_PEER_LOST is the consequence of another failure, or of a frozen process.
        uptime_s: seconds since the last start of the failed.
        checkpoint: the round that the job would resume from now; None: there is none.
        limit: restarts without a new checkpoint between them.
        service_was_away: since the workers were started, so a worker that did not find it has no wrong flags.
        others_continue: workers continue without the failed ones.
        beside_hub: where they do, beside a hub, which is started again alone.
        has_begun: the workers have begun to train, with the flags and files that all were started with.
        num_left: other workers that have not left the job.
        min_workers: with fewer the job ends, where the others continue; else no worker is left out below it.
    """
    end_job = RestartDecision(Action.END_JOB, 0.0, "", history)
    if any(DIVERGED in report.error for report in reports):
        return end_job
    if is_host := any(report.is_connection for report in reports):
        only_workers = all(
            report.is_connection and not report.with_service and (has_begun or report.has_trained) for report in reports
        )
        if not (any_worker_left and only_workers):
            return end_job
        if others_continue:
            return RestartDecision(Action.LEAVE_OUT, 0.0, "the others go on without the workers there", history)
    of_workers = not all(report.kind is Kind.SERVICE for report in reports)
    can_continue = any_worker_left and (has_begun or all(report.has_trained for report in reports))
    if beside_hub and of_workers and not can_continue:
        return end_job
    causes = [report for report in reports if report.exit_code != EXIT_PEER_LOST]
    only_its_own = others_continue and has_begun and all(report.kind is Kind.WORKER for report in reports)
    has_worked = service_was_away or (has_begun if not others_continue else only_its_own)
    if causes and all(report.exit_code == EXIT_SETUP for report in causes) and not has_worked:
        return end_job
    if (checkpoint or 0) > (history.checkpoint or 0):
        history = RestartHistory(checkpoint)  # the job makes progress
    if others_continue and uptime_s >= STABLE_S:
        history = replace(history, restarts=0)
    history = replace(history, causes=history.causes.union({report.name for report in causes} or {""}))
    without = f"in less than {STABLE_S:g} s each" if others_continue else "without a new checkpoint"
    if history.restarts >= limit:
        text = f"given up after {_count(limit, 'start')} {without} (--restarts)"
        if only_its_own and num_left >= min_workers:
            return RestartDecision(Action.LEAVE_OUT, 0.0, f"{text}, and the others go on without it", history)
        if only_its_own:
            text += f"; {_count(num_left, 'worker')} would be left, and --min-workers is {min_workers}"
        workers = [report.name for report in causes if report.kind is Kind.WORKER]
        num_others = num_left + sum(report.kind is Kind.WORKER for report in reports) - 1
        is_its_own = limit > 0 and len(workers) == 1 and history.causes == {*workers} and not others_continue
        if is_its_own and num_others >= max(min_workers, FEWEST_LEFT):
            where = "from the beginning" if checkpoint is None else f"after round {checkpoint}"
            text += f", each for this worker: all others are started again without it, and go on {where}"
            return RestartDecision(Action.RESTART_ALL, 0.0, text, RestartHistory(checkpoint), workers)
        return RestartDecision(Action.END_JOB, 0.0, text, history)
    in_a_row = 0 if uptime_s >= STABLE_S else history.in_a_row
    wait_s = min(LONGEST_WAIT_S, 2.0 ** min(in_a_row - 1, 10)) if in_a_row else 0.0
    history = replace(history, restarts=history.restarts + 1, in_a_row=in_a_row + 1)
    services = all(report.kind is Kind.SERVICE for report in reports) and not is_host
    only_failed = (services or others_continue) and all(report.exit_code is not None for report in reports)
    when = f" in {wait_s:g} s" if wait_s else ""
    left = f"{_count(limit - history.restarts, 'more try', 'more tries')} {without}"
    if only_failed and not any_worker_left:
        text = f"no worker is left: all are started again{when}, and go on from their checkpoints, if any"
    elif only_failed and all(report.kind is Kind.HUB for report in reports):
        text = f"it is started again{when}, and gets the newest model that a worker has"
    elif only_failed and not services:
        text = f"the others go on; the lost worker is started again{when}, and comes back between two rounds"
    elif only_failed:
        text = f"nothing is lost: it is started again{when}, and training goes on"
    elif checkpoint is None:
        anew = " without the workers there" if is_host else ""
        text = f"there is no checkpoint yet, so all is lost: the job begins anew{anew}{when}"
    else:
        which = "all others" if is_host else "all"
        text = (
            f"what came after round {checkpoint} is lost: {which} are started again{when} and go on after round "
            f"{checkpoint}"
        )
    action = Action.RESTART_FAILED if only_failed else Action.RESTART_ALL
    return RestartDecision(action, wait_s, f"{text}; {left}", history)


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number or 'no'} {one if number == 1 else several or one + 's'}"
