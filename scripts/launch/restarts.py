"""What follows when processes of a job are lost: a table of rules, in a pure function.

    decide(lost, job, history) -> which processes are started again, after how long, from which round; or none, and why

Nothing is started again where it would fail again: after a wrong flag or file, after training has diverged, after
--restarts restarts without a new checkpoint. Nothing is started again on a host that is gone. Where the others continue
a worker's restarts count for this worker alone, and it is left out in place of the end of the job. So is the one worker
for which all were restarted each time.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.launch.losses import Lost
from scripts.launch.process import Kind
from utils import DIVERGED, EXIT_SETUP

DEFAULT_RESTARTS = 5
STABLE_S = 60.0  # a process that is lost after this time is started again at once
LONGEST_WAIT_S = 30.0
FEWEST_LEFT = 2  # workers, where all others are started again without one


class Survival(enum.Enum):
    """How a job survives lost processes."""

    NONE = enum.auto()  # it ends; but a service that has answered is started again alone
    RESTART = enum.auto()  # all are started again, and resume from the newest checkpoint
    AMONG_WORKERS = enum.auto()  # the others, who need no server, continue; the lost one is started again alone
    AT_HUB = enum.auto()  # likewise, and so is the hub

    @property
    def others_continue(self) -> bool:
        return self in (Survival.AMONG_WORKERS, Survival.AT_HUB)


class Action(enum.Enum):
    """What follows from a loss."""

    RESTART_ALL = enum.auto()  # but services that still run
    RESTART_WITHOUT = enum.auto()  # likewise, but for one worker
    RESTART_LOST = enum.auto()
    LEAVE_OUT = enum.auto()  # the others continue without the lost ones
    END_JOB = enum.auto()


@dataclass(frozen=True)
class Job:
    """What a decision depends on beside the lost processes."""

    survival: Survival = Survival.NONE
    limit: int = DEFAULT_RESTARTS  # restarts without a new checkpoint; where the others continue, of one process
    min_workers: int = 1  # with fewer no worker is left out
    checkpoint: int | None = None  # the round from which all would resume; None: there is none
    service_was_away: bool = False  # since the workers were started
    has_begun: bool = False  # the workers train
    is_stopping: bool = False  # the workers were asked to end
    is_restarting: bool = False  # all are to be started again already
    num_others: int = 1  # workers that are not lost and have not left the job
    num_running: int = 1  # of these
    num_done: int = 0  # of these


@dataclass(frozen=True)
class History:
    """Earlier restarts: of all processes; of a service; where the others continue, of one process."""

    checkpoint: int | None = None  # the newest round from which the job could resume; None: there was none
    restarts: int = 0  # since that checkpoint
    in_a_row: int = 0  # losses since that checkpoint, each less than STABLE_S after the start before it
    causes: frozenset[str] = frozenset()  # names of the processes that were lost since then; "": an unknown one


@dataclass(frozen=True)
class Decision:
    """What is done."""

    action: Action
    text: str  # what is lost and what follows; empty where the loss alone explains the end of the job
    history: History  # with this restart
    wait_s: float = 0.0  # seconds until the restart
    left_out: Sequence[str] = ()  # the worker without which all others are started again


def decide(lost: Sequence[Lost], job: Job, history: History) -> Decision:
    """Decides on processes that were lost at once; where the others continue, on one of them, or on hosts."""
    up_s, continues = min(each.up_s for each in lost), job.survival.others_continue
    causes = [each for each in lost if not each.is_consequence]
    workers = [each.name for each in causes if each.kind is Kind.WORKER]
    has_host = any(each.is_host for each in lost)
    if (job.checkpoint or 0) > (history.checkpoint or 0):
        history = History(job.checkpoint)  # the job makes progress
    is_same = job.is_restarting and has_host  # the loss before was part of this one, and they count once
    restarts = max(0, history.restarts - is_same) if up_s < STABLE_S or job.survival is Survival.RESTART else 0
    in_a_row = max(0, history.in_a_row - is_same) if up_s < STABLE_S else 0
    names = history.causes | ({each.name for each in causes} or {""})
    wait_s = min(LONGEST_WAIT_S, 2.0 ** min(in_a_row - 1, 10)) if in_a_row else 0.0

    only_services = not has_host and all(each.kind is Kind.SERVICE for each in lost)
    only_workers = all(each.kind is Kind.WORKER for each in lost)
    have_ended = all(each.exit_code is not None for each in lost)
    # Of workers that continue, those count that run, and those that are done: then a frozen one may wake up at the hub.
    goes_on = job.has_begun and (job.num_running + job.num_done if continues else job.num_others) > 0
    can_lose_host = goes_on and all(each.is_host and not each.with_services for each in lost)
    survives = job.survival is not Survival.NONE or (only_services and all(each.has_answered for each in lost))
    has_worked = job.service_was_away or (job.has_begun and (only_workers or not continues))
    is_mistake = bool(causes) and all(each.exit_code == EXIT_SETUP for each in causes) and not has_worked
    is_spent = restarts >= job.limit
    is_its_own = continues and only_workers and job.has_begun
    is_one = not continues and job.limit > 0 and len(workers) == 1 and names == {*workers}
    left = job.num_others + sum(each.kind is Kind.WORKER for each in lost) - 1

    each_time = "without a new checkpoint" if job.survival is Survival.RESTART else f"in less than {STABLE_S:g} s each"
    given_up = f"given up after {_count(job.limit, 'start')} {each_time} (--restarts)"
    too_few = f"; {_count(job.num_others, 'worker')} would be left, and --min-workers is {job.min_workers}"
    where = "from the beginning" if job.checkpoint is None else f"after round {job.checkpoint}"
    when = f" in {wait_s:g} s" if wait_s else ""
    rules = (  # the first that holds
        (job.is_stopping and is_its_own and have_ended and job.num_others > 0,
         Action.LEAVE_OUT, "the others end without it"),  # perhaps it was about to come back
        (job.is_stopping or any(DIVERGED in each.error for each in lost) or (has_host and not can_lose_host),
         Action.END_JOB, ""),
        (has_host and continues, Action.LEAVE_OUT, "the others go on without the workers there"),
        (continues and not have_ended, Action.LEAVE_OUT, "the job is done without it"),
        # Without the hub and all workers the model is lost; before they train, all wait for the lost one.
        (not survives or is_mistake or (job.survival is Survival.AT_HUB and not (only_services or goes_on)),
         Action.END_JOB, ""),
        (is_spent and is_its_own and job.num_others >= job.min_workers,
         Action.LEAVE_OUT, f"{given_up}, and the others go on without it"),
        (is_spent and is_one and left >= max(job.min_workers, FEWEST_LEFT), Action.RESTART_WITHOUT,
         f"{given_up}, each for this worker: all others are started again without it, and go on {where}"),
        (is_spent, Action.END_JOB, f"{given_up}{too_few if is_its_own else ''}"),
        (only_services, Action.RESTART_LOST, f"nothing is lost: it is started again{when}, and training goes on"),
        (job.survival is Survival.AMONG_WORKERS and not job.num_running, Action.RESTART_LOST,
         f"no worker is left: all are started again{when}, and go on from their checkpoints, if any"),
        (continues and all(each.kind is Kind.HUB for each in lost), Action.RESTART_LOST,
         f"it is started again{when}, and gets the newest model that a worker has"),
        (continues, Action.RESTART_LOST,
         f"the others go on; the lost worker is started again{when}, and comes back between two rounds"),
        (job.checkpoint is None, Action.RESTART_ALL, "there is no checkpoint yet, so all is lost: the job begins anew"
         f"{' without the workers there' if has_host else ''}{when}"),
        (True, Action.RESTART_ALL, f"what came {where} is lost: {'all others' if has_host else 'all'} are started again"
         f"{when} and go on {where}"),
    )  # fmt: skip
    action, text = next((action, text) for holds, action, text in rules if holds)
    if action is Action.RESTART_WITHOUT:  # the others have all tries
        return Decision(action, text, History(job.checkpoint), left_out=workers)
    is_again = action in (Action.RESTART_ALL, Action.RESTART_LOST)
    history = History(history.checkpoint, restarts + is_again, in_a_row + is_again, names)
    tries = f"; {_count(job.limit - history.restarts, 'more try', 'more tries')} {each_time}"
    return Decision(action, f"{text}{tries if is_again else ''}", history, wait_s if is_again else 0.0)


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number or 'no'} {one if number == 1 else several or one + 's'}"
