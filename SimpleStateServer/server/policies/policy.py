"""The parts of a policy."""

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from server.row import Row
from server.state import Table
from server.worker import Action, Decision


def train(reason: str) -> Decision:
    """Another local step."""
    return Decision(Action.TRAIN, reason)


def sync(reason: str) -> Decision:
    """Aggregate now."""
    return Decision(Action.SYNC, reason)


class Sync(enum.Enum):
    """The meaning of SYNC."""

    AGGREGATES = "aggregates"  # waits until all of the round were told so, then pushes and pulls
    RELEASES = "releases"  # publishes the uploads of all as the new global model; no worker waits
    STAYS_IN_STEP = "stays in step"  # continues under BSP, one step a round
    IS_NOT_SAID = "is not said"  # the workers tell themselves when they wait


# (all rows by rank, rank of the slowest) -> the page's marks by rank, of the marked workers only. O(N), for readers.
Marks = Callable[[Sequence[Row], int], Mapping[int, str]]


@dataclass(frozen=True, slots=True)
class Watch:
    """A policy's description for the page."""

    title: str  # name of the algorithm
    caption: str  # a few words after the title
    sync: Sync  # what SYNC means. TRAIN is another local step.
    marks: Marks  # the marked workers
    leaves_out: bool = False  # TRAIN means that the others continue without the worker


def mark_slowest(mark: str) -> Marks:
    """Marks the slowest worker as `mark`, once its step time is known. If it is not counted, no worker is, and it is
    the slowest by its rank alone: it gets no mark."""

    def marks(rows: Sequence[Row], slowest: int) -> Mapping[int, str]:
        row = rows[slowest]
        return {slowest: mark} if row.counted and row.step_times else {}

    return marks


def mark_none(rows: Sequence[Row], slowest: int) -> Mapping[int, str]:
    """For a policy without stragglers."""
    return {}


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule that tells each worker when to aggregate."""

    name: str  # as in flags and messages
    delay: Callable[[Row], float]  # seconds by which the policy compares workers
    # (table, rank of the asker, now) -> Decision; the table already holds the asker's message
    decide: Callable[[Table, int, float], Decision]
    watch: Watch  # its description for the page
    # Of a policy that decides on batch sizes: table -> sizes of the next round, by rank
    share_out: Callable[[Table], tuple[int, ...]] | None = None
