"""What a policy is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from server.messages import Action
from server.state import Row, Table


@dataclass(frozen=True, slots=True)
class Decision:
    """A worker's next action, and why, in words."""

    action: Action
    reason: str


def train(reason: str) -> Decision:
    """Another local step."""
    return Decision(Action.TRAIN, reason)


def sync(reason: str) -> Decision:
    """Aggregate now."""
    return Decision(Action.SYNC, reason)


@dataclass(frozen=True, slots=True)
class Policy:
    """A rule that tells each worker when to aggregate.

    Attributes:
        name: as in flags and messages.
        delay: seconds by which the rule calls a worker slow.
        decide: (table, rank of the asker, now) -> Decision; the table already holds what the asker has just told.
    """

    name: str
    delay: Callable[[Row], float]
    decide: Callable[[Table, int, float], Decision]
