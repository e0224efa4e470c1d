"""The parts of a policy."""

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from server.row import Action, Decision, Row
from server.state import Table


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


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule that tells each worker when to aggregate, and its description for the page."""

    name: str  # as in flags and messages
    title: str  # of the algorithm
    caption: str  # a few words after the title
    sync: Sync  # what SYNC means. TRAIN is another local step
    delay: Callable[[Row], float]  # seconds by which the policy compares workers
    # (table, rank of the asker, now) -> Decision; the table already holds the asker's message
    decide: Callable[[Table, int, float], Decision]
    mark: str = ""  # the page's, of the slowest worker or of the stragglers; empty: none is marked
    stragglers: Callable[[Sequence[Row]], Collection[int]] | None = None  # their ranks; None: the slowest is marked
    leaves_out: bool = False  # TRAIN means that the others continue without the worker
    # Of a policy that decides on batch sizes: table -> sizes of the next round, by rank
    share_out: Callable[[Table], tuple[int, ...]] | None = None

    @property
    def all_aggregate(self) -> bool:
        """Whether no worker enters a round before all have done the one before."""
        return self.sync is Sync.AGGREGATES

    def marks(self, rows: Sequence[Row], slowest: int) -> dict[int, str]:
        """The page's marks by rank, of the marked workers only. O(N), for readers. A slowest worker that is not counted
        is the slowest by its rank alone, since none is."""
        if self.stragglers is not None:
            return dict.fromkeys(self.stragglers(rows), self.mark)
        is_known = rows[slowest].counted and rows[slowest].step_times
        return {slowest: self.mark} if self.mark and is_known else {}
