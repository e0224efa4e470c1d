"""What a launcher does when processes of a job have died (--on-worker-death restart, or continue): a pure function.

    decide(deaths, ..., tries) -> whom to start again, after how long, from which round; or nobody, and why

Nobody where the same would happen again: a wrong flag or file, training that has diverged, or as many starts as
--restarts says without a new checkpoint between them. Nobody is started on a host that is gone.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scripts.launch.process import Kind
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
    with_service: bool = False  # on which other processes ran than workers
    has_trained: bool = False  # a round at least; of a connection: all workers there


class Whom(enum.Enum):
    """Who is started again."""

    ALL = "all"  # but the services that still run
    ALONE = "alone"  # those that have died
    LEFT_OUT = "left out"  # nobody, and the others go on
    NOBODY = "nobody"  # and the job ends


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
    others_go_on: bool = False,
    anybody_left: bool = True,
    takes_back: bool = True,
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
        others_go_on: the workers that are left do.
        anybody_left: of the workers.
        takes_back: where the others go on, they take in who comes back.
    """
    nobody = Decision(Whom.NOBODY, 0.0, "", tries)
    if any(DIVERGED in death.said for death in deaths):
        return nobody
    if is_host := any(death.is_link for death in deaths):
        only_workers = all(death.is_link and not death.with_service and death.has_trained for death in deaths)
        if not (anybody_left and only_workers):
            return nobody
        if others_go_on:
            return Decision(Whom.LEFT_OUT, 0.0, "the others go on without the workers there", tries)
    if others_go_on and not takes_back and any(death.kind is not Kind.SERVICE for death in deaths):
        if anybody_left and all(death.kind is Kind.WORKER and death.has_trained for death in deaths):
            return Decision(
                Whom.LEFT_OUT, 0.0, f"the others go on without {'it' if len(deaths) == 1 else 'them'}", tries
            )
        return nobody
    causes = [death for death in deaths if death.exit_code != EXIT_PEER_LOST]
    if causes and all(death.exit_code == EXIT_SETUP for death in causes) and not service_was_away:
        return nobody
    if (checkpoint or 0) > (tries.checkpoint or 0):
        tries = replace(tries, checkpoint=checkpoint, in_vain=0)
    if others_go_on and lived_s >= CALM_S:
        tries = replace(tries, in_vain=0)
    without = f"in less than {CALM_S:g} s each" if others_go_on else "without a new checkpoint"
    if tries.in_vain >= limit:
        text = f"given up after {_times(limit, 'start')} {without} (--restarts)"
        return Decision(Whom.NOBODY, 0.0, text, tries)
    in_a_row = 0 if lived_s >= CALM_S else tries.in_a_row
    wait_s = min(LONGEST_WAIT_S, 2.0 ** min(in_a_row - 1, 10)) if in_a_row else 0.0
    tries = replace(tries, in_vain=tries.in_vain + 1, in_a_row=in_a_row + 1)
    services = all(death.kind is Kind.SERVICE for death in deaths) and not is_host
    everybody = "all others" if is_host else "all"
    alone = (services or others_go_on) and all(death.exit_code is not None for death in deaths)
    when = f" in {wait_s:g} s" if wait_s else ""
    left = f"{_times(limit - tries.in_vain, 'more try', 'more tries')} {without}"
    if alone and not anybody_left:
        text = f"no worker is left: all are started again{when}, and go on from their checkpoints, if any; {left}"
    elif alone and not services:
        text = f"the others go on; who has died is started again{when}, and comes back between two rounds; {left}"
    elif alone:
        text = f"nothing is lost: it is started again{when}, and training goes on; {left}"
    elif checkpoint is None:
        anew = " without the workers there" if is_host else ""
        text = f"there is no checkpoint yet, so all is lost: the job begins anew{anew}{when}; {left}"
    else:
        text = (
            f"what came after round {checkpoint} is lost: {everybody} are started again{when} and go on after round "
            f"{checkpoint}; {left}"
        )
    return Decision(Whom.ALONE if alone else Whom.ALL, wait_s, text, tries)


def _times(count: int, one: str, several: str = "") -> str:
    return f"{count or 'no'} {one if count == 1 else several or one + 's'}"
