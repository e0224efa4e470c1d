"""Which worker of a job evaluates the global model on the test set. Every worker has that model after each of its
rounds. The fastest loses the least, and in the synchronous modes all wait for the one that evaluates.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from config import AUTO, NO, YES, Config
from trainer.membership import Change, Changes
from utils import SetupError

AS_FAST = 1.25  # ratio up to which step times count as equal: of equal workers the lowest rank evaluates


class Candidate(NamedTuple):
    """What a worker tells the others before training begins."""

    evaluate: str  # of config.EVALUATE
    step_s: float  # as Trainer.step_s


def evaluating_rank(candidates: Sequence[Candidate]) -> int | None:
    """The fastest worker of those that say yes, else of those that do not say no; None if all say no. The candidates
    are by rank."""
    said_yes = [rank for rank, candidate in enumerate(candidates) if candidate.evaluate == YES]
    willing = said_yes or [rank for rank, candidate in enumerate(candidates) if candidate.evaluate != NO]
    if not willing:
        return None
    fastest_s = min(candidates[rank].step_s for rank in willing)
    return next(rank for rank in willing if candidates[rank].step_s <= AS_FAST * fastest_s)


def present(candidates: Sequence[Candidate], changes: Changes) -> list[Candidate]:
    """The candidates, those that came back after another one with `--evaluate no`: a present evaluator keeps its task
    when another worker is back."""
    since = {rank: changes.get(rank, Change()) for rank, each in enumerate(candidates) if each.evaluate != NO}
    first = min((change for change in since.values() if not change.is_lost), default=None)
    return [each if since.get(rank) == first else Candidate(NO, each.step_s) for rank, each in enumerate(candidates)]


def check_target(config: Config, chosen: int | None) -> None:
    """Makes sure that a worker evaluates, where a target ends the job. `chosen` is the worker that evaluates. Raises
    SetupError if there is none."""
    if chosen is None and (config.target_accuracy or config.target is not None):
        flag = "--target-accuracy" if config.target_accuracy else "--target"
        raise SetupError(f"{flag} needs a worker that evaluates, and all that are there have --evaluate no")


class Choice:
    """Whether this worker evaluates. All workers agree; if the one that evaluates is lost, they do without asking."""

    def __init__(
        self,
        config: Config,
        rank: Callable[[], int],  # this worker's, which may change when all come together anew
        # Brings a value of each worker to all, by rank; None where that is not possible
        gather: Callable[[Candidate], list[Any] | None],
        changes: Callable[[], Changes] = dict,
    ) -> None:
        self._config, self._rank, self._gather, self._changes = config, rank, gather, changes
        self._candidates: list[Candidate] = []

    def __call__(self, step_s: float) -> bool:
        """All workers call it before they train, when one is lost or back, and when all come together anew. `step_s`:
        as Trainer's; 0 on the worker that evaluates already. Raises SetupError if no worker may evaluate, and a target
        ends the job."""
        changes, own = self._changes(), self._rank()
        if not (changes and self._candidates):
            answers = self._gather(Candidate(self._config.evaluate, step_s))
            if answers is None:  # a plain MXNet program takes part
                logging.warning("the workers cannot be compared: of those with --evaluate auto rank 0 evaluates")
                return self._config.evaluate == YES or (self._config.evaluate == AUTO and own == 0)
            self._candidates = [Candidate(*answer) for answer in answers]
        chosen = evaluating_rank(present(self._candidates, changes))
        check_target(self._config, chosen)
        if chosen is None:
            logging.warning("no worker evaluates: all that are there have --evaluate no")
        elif chosen == own and step_s:
            logging.info("evaluates the global model: a step took %.3g s", step_s)
        return chosen == own
