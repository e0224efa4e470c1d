"""How a worker begins to train (`Begin`), and how it meets the other workers (`Company`)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from algorithms import RESUME

if TYPE_CHECKING:
    from trainer.loop import Loop
    from trainer.trainer import Trainer


class How(Enum):
    """How a worker begins."""

    NEW = "new"  # with the job
    RESUMED = "resumed"  # the job continues from a checkpoint, of this worker or of another one
    JOINS = "joins"  # the others train already: this worker is new among them, or is back


@dataclass(frozen=True)
class Begin:
    """How a worker begins, and what the job has done before. Valid with the checkpoint; complete with the open log."""

    how: How = How.NEW
    rounds: int = 0  # done
    elapsed_s: float = 0.0  # seconds of the job, with those of rounds that are done again
    missed: int = 0  # rounds without this worker
    lost: int = 0  # local steps of this worker that are done again

    def notes(self) -> dict[str, Any]:
        """Entries of the first round's log."""
        notes: dict[str, Any] = {"missed": self.missed} if self.missed else {}
        if self.how is How.RESUMED:
            event = {"kind": RESUME.name, "text": f"resumed after round {self.rounds}"}
            notes |= {"events": [event], "steps_lost": self.lost}
        return notes


class Company:
    """The other workers, as the loop meets them, where the exchange does not end with the loss of one: none is lost, or
    the hub continues without it. survival/recovery.py overrides the methods where workers connect with each other."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    @property
    def is_broken(self) -> bool:
        """Whether a worker of this round was lost: the exchange of this round fails, and the others regroup."""
        return False

    @property
    def comes_late(self) -> bool:
        """Whether the others may train already: they would wait while this worker does test steps."""
        return False

    @property
    def wants_pause(self) -> bool | None:
        """Whether this worker wants all to regroup after the round; None: they never do."""
        return None

    def meet(self, loop: Loop) -> None:
        """Called once, when this worker is ready to train: all get the same model. Sets `trainer.begin` where the
        others know better how this worker begins."""
        loop.come_together()
        if (age_s := self._trainer.context.peers.job_age_s()) is not None:
            self._trainer.begin = dataclasses.replace(self._trainer.begin, how=How.JOINS, elapsed_s=age_s)

    def exchange(self, wants_stop: bool) -> bool:
        """`Trainer.synchronize`; if workers are lost meanwhile, the remaining ones synchronize."""
        return self._trainer.synchronize(wants_stop)

    def leaves(self) -> bool:
        """Whether this worker leaves after the round, while the others continue."""
        return self._trainer.context.peers.leaves()

    def part(self) -> None:
        """Called after the last round."""

    def notes(self) -> dict[str, Any]:
        """Entries for the log of the round; called once a round."""
        return {}
