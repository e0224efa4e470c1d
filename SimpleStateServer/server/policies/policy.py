"""What a policy is."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from server.state import Row, Table
from server.worker import Action, Decision


def train(reason: str) -> Decision:
    """Another local step."""
    return Decision(Action.TRAIN, reason)


def sync(reason: str) -> Decision:
    """Aggregate now."""
    return Decision(Action.SYNC, reason)


class Sync(enum.Enum):
    """What a worker does that was told SYNC."""

    AGGREGATES = "aggregates"  # waits until all of the round were told so, then pushes and pulls
    RELEASES = "releases"  # publishes what all have uploaded as the new global model; nobody waits
    STAYS_IN_STEP = "stays in step"  # goes on under BSP, one step a round


# (all rows by rank, rank of the slowest) -> what the page marks a worker as, by rank; who is not in it has no mark.
# O(N), for readers; no decision needs it.
Marks = Callable[[Sequence[Row], int], Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class Watch:
    """What a rule means to someone who watches a job.

    Attributes:
        title: name of the algorithm.
        caption: what the rule does, in a few words that go on after the title.
        sync: what SYNC means. TRAIN is another local step.
        marks: the workers that are marked, and as what.
        leaves_out: whether TRAIN means that the others go on without the worker.
    """

    title: str
    caption: str
    sync: Sync
    marks: Marks
    leaves_out: bool = False


def mark_slowest(mark: str) -> Marks:
    """Marks the slowest worker as `mark`, once its step time is known.

    Not where it does not count either: then none does, and it is the slowest by its rank alone.
    """

    def marks(rows: Sequence[Row], slowest: int) -> Mapping[int, str]:
        row = rows[slowest]
        return {slowest: mark} if row.counted and row.step_times else {}

    return marks


def mark_nobody(rows: Sequence[Row], slowest: int) -> Mapping[int, str]:
    """For a rule that calls no worker slow."""
    return {}


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule that tells each worker when to aggregate.

    Attributes:
        name: as in flags and messages.
        delay: seconds by which the rule calls a worker slow.
        decide: (table, rank of the asker, now) -> Decision; the table already holds what the asker has just told.
        watch: what it means to someone who watches.
        share_out: of a rule that decides on batch sizes: table -> those of the next round, by rank.
    """

    name: str
    delay: Callable[[Row], float]
    decide: Callable[[Table, int, float], Decision]
    watch: Watch
    share_out: Callable[[Table], tuple[int, ...]] | None = None
