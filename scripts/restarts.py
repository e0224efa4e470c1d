"""What a launcher does when processes of a job have died (--on-worker-death restart, continue): pure functions.

    decide(deaths, ..., tries) -> whom to start again, after how long, from which round; or nobody, and why
    go_on(deaths, ..., tries)  -> the same where the workers that are left go on by themselves

Nobody where the same would happen again: a wrong flag or file, training that has diverged, a host that is gone, or as
many starts as --restarts says without a new checkpoint between them.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scripts.process import Kind
from utils import DIVERGED, EXIT_PEER_LOST, EXIT_SETUP

DEFAULT_RESTARTS = 5
CALM_S = 60.0  # whoever dies after so long may be started again at once
LONGEST_WAIT_S = 30.0


@dataclass(frozen=True)
class Death:
    """A process that has ended as it should not, or that does not answer."""

    kind: Kind
    exit_code: int | None  # negative: the signal that killed it; None: it is there, and does not answer
    said: str = ""  # its last line with an error
    is_link: bool = False  # it was the connection to a host


class Whom(enum.Enum):
    """Who is started again."""

    ALL = "all"  # but the services that still run
    ALONE = "alone"  # those that have died
    OTHERS = "others"  # nobody is: those that are left go on
    NOBODY = "nobody"  # the job ends


@dataclass(frozen=True)
class Tries:
    """What there was before a death.

    Attributes:
        checkpoint: the newest round that the job could go on from; None: there was none.
        in_vain: starts since then.
        in_a_row: deaths, each less than CALM_S behind the start before it.
    """

    checkpoint: int | None = None
    in_vain: int = 0
    in_a_row: int = 0


@dataclass(frozen=True)
class Decision:
    """What is done.

    Attributes:
        wait_s: seconds until the start.
        text: what is lost, and what comes now; empty where the deaths alone say why nobody is started.
        tries: from now on.
    """

    whom: Whom
    wait_s: float
    text: str
    tries: Tries


def decide(
    deaths: Sequence[Death],
    lived_s: float,
    checkpoint: int | None,
    tries: Tries,
    limit: int,
    service_was_away: bool = False,
) -> Decision:
    """What follows from deaths that were seen together.

    Args:
        deaths: one or more; those with EXIT_PEER_LOST are the consequence of others, or of one that is frozen.
        lived_s: seconds since the last start.
        checkpoint: the round that the job would go on from now; None: there is none.
        tries: what there was before.
        limit: starts without a new checkpoint between them.
        service_was_away: a service was, since the workers were started: that one of them did not find it is no mistake
            of the user's.
    """
    if _would_happen_again(deaths, service_was_away):
        return Decision(Whom.NOBODY, 0.0, "", tries)
    if (checkpoint or 0) > (tries.checkpoint or 0):
        tries = replace(tries, checkpoint=checkpoint, in_vain=0)
    if tries.in_vain >= limit:
        text = f"given up after {_times(limit, 'start')} without a new checkpoint (--restarts)"
        return Decision(Whom.NOBODY, 0.0, text, tries)
    wait_s, tries = _next_try(lived_s, tries)
    alone = all(death.kind is Kind.SERVICE and death.exit_code is not None for death in deaths)
    when = f" in {wait_s:g} s" if wait_s else ""
    left = f"{_times(limit - tries.in_vain, 'more try', 'more tries')} without a new checkpoint"
    if alone:
        text = f"nothing is lost: it is started again{when}, and training goes on; {left}"
    elif checkpoint is None:
        text = f"there is no checkpoint yet, so all is lost: the job begins anew{when}; {left}"
    else:
        text = (
            f"what came after round {checkpoint} is lost: all are started again{when} and go on after round "
            f"{checkpoint}; {left}"
        )
    return Decision(Whom.ALONE if alone else Whom.ALL, wait_s, text, tries)


def go_on(deaths: Sequence[Death], num_left: int, lived_s: float, tries: Tries, limit: int) -> Decision:
    """What follows where the workers that are left go on without those that are lost, and need a state server.

    Args:
        deaths: one or more, that were seen together.
        num_left: workers that run, or have ended in order.
        lived_s: seconds since the last start.
        tries: what there was before.
        limit: starts of a service, each less than CALM_S behind the one before.
    """
    stays = any(death.exit_code is None for death in deaths)
    if stays or not num_left or _would_happen_again(deaths, service_was_away=False):
        return Decision(Whom.NOBODY, 0.0, "", tries)
    if not any(death.kind is Kind.SERVICE for death in deaths):
        return Decision(Whom.OTHERS, 0.0, f"{_times(num_left, 'worker goes', 'workers go')} on without it", tries)
    if lived_s < CALM_S and tries.in_a_row >= limit:
        return Decision(Whom.NOBODY, 0.0, f"given up after {_times(limit, 'start')} in a row (--restarts)", tries)
    wait_s, tries = _next_try(lived_s, tries)
    when = f" in {wait_s:g} s" if wait_s else ""
    return Decision(Whom.ALONE, wait_s, f"a new state server is started{when}, and training goes on", tries)


def _would_happen_again(deaths: Sequence[Death], service_was_away: bool) -> bool:
    if any(death.is_link or DIVERGED in death.said for death in deaths):
        return True
    causes = [death for death in deaths if death.exit_code != EXIT_PEER_LOST]
    return bool(causes) and all(death.exit_code == EXIT_SETUP for death in causes) and not service_was_away


def _next_try(lived_s: float, tries: Tries) -> tuple[float, Tries]:
    """Seconds until the next start, and the tries with it."""
    in_a_row = 0 if lived_s >= CALM_S else tries.in_a_row
    wait_s = min(LONGEST_WAIT_S, 2.0 ** min(in_a_row - 1, 10)) if in_a_row else 0.0
    return wait_s, replace(tries, in_vain=tries.in_vain + 1, in_a_row=in_a_row + 1)


def _times(count: int, one: str, several: str = "") -> str:
    return f"{count or 'no'} {one if count == 1 else several or one + 's'}"
