"""Which worker of a job evaluates the global model on the test set. Every worker has that model after each of its
rounds, so it can be any; the fastest loses the least, and in the synchronous modes all wait for the one that evaluates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from config import NO, YES, Config
from utils import SetupError

AS_FAST = 1.25  # a step at most so many times as long counts as no longer: of equal workers it is the lowest rank


class Candidate(NamedTuple):
    """What a worker tells before training begins."""

    evaluate: str  # of config.EVALUATE
    step_s: float  # that a test step took


def evaluating_rank(candidates: Sequence[Candidate]) -> int | None:
    """The fastest of those that say yes, else of those that do not say no; None if all say no.

    Args:
        candidates: by rank.
    """
    said_yes = [rank for rank, candidate in enumerate(candidates) if candidate.evaluate == YES]
    willing = said_yes or [rank for rank, candidate in enumerate(candidates) if candidate.evaluate != NO]
    if not willing:
        return None
    fastest_s = min(candidates[rank].step_s for rank in willing)
    return next(rank for rank in willing if candidates[rank].step_s <= AS_FAST * fastest_s)


def check_target(config: Config, chosen: int | None) -> None:
    """Makes sure that somebody measures the accuracy at which the job is to end.

    Args:
        chosen: the worker that evaluates.

    Raises:
        SetupError: nobody does.
    """
    if chosen is None and config.target_accuracy:
        raise SetupError("--target-accuracy needs a worker that evaluates, and all have --evaluate no")
