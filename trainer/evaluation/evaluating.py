"""Which worker of a job evaluates the global model on the test set. Every worker has that model after each of its
rounds, so it can be any; the fastest loses the least, and in the synchronous modes all wait for the one that evaluates.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from config import AUTO, NO, YES, Config
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
        raise SetupError("--target-accuracy needs a worker that evaluates, and all that are there have --evaluate no")


class Choice:
    """Whether this worker evaluates, as all agree on it; if that one is lost, another does, as all know without asking.

    Args:
        rank: this worker's, which may be another one when all come together anew.
        gather: brings a value of all workers together, by rank; None where they cannot be had.
        lost: ranks without which the others go on.
    """

    def __init__(
        self,
        config: Config,
        rank: Callable[[], int],
        gather: Callable[[Candidate], list[Any] | None],
        lost: Callable[[], frozenset[int]] = frozenset,
    ) -> None:
        self._config, self._rank, self._gather, self._lost = config, rank, gather, lost
        self._candidates: list[Candidate] = []

    def __call__(self, step_s: float) -> bool:
        """All workers call it once before they train, and whenever one is lost, or all come together anew.

        Args:
            step_s: that a test step took; 0 on the one that evaluates already.

        Raises:
            SetupError: no worker may, and the job is to end at an accuracy.
        """
        lost, own = self._lost(), self._rank()
        if not (lost and self._candidates):
            answers = self._gather(Candidate(self._config.evaluate, step_s))
            if answers is None:  # alone, or nobody can be asked: a plain MXNet program takes part
                return self._config.evaluate == YES or (self._config.evaluate == AUTO and own == 0)
            self._candidates = [Candidate(*answer) for answer in answers]
        there = [Candidate(NO, each.step_s) if rank in lost else each for rank, each in enumerate(self._candidates)]
        chosen = evaluating_rank(there)
        check_target(self._config, chosen)
        if chosen is None:
            logging.warning("no worker evaluates: all that are there have --evaluate no")
        elif chosen == own and step_s:
            logging.info("evaluates the global model: a test step took %.3g s", step_s)
        return chosen == own
