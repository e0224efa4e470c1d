"""A job on the state server: a name that its workers agree on, and notices for its page in modes without a rule."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from esync.client import draw_job_number, job_id
from esync.progress import TRAINING, WAITING, Progress
from trainer.context import Context

if TYPE_CHECKING:
    from trainer.trainer import Trainer


def join_job(context: Context, progress: Progress) -> None:
    """All workers agree on the job's name, which rank 0 draws."""
    number, membership = context.shared.agree(draw_job_number()), context.peers.membership()
    context.state.join(job_id(number), membership.rank, membership.num_workers, progress)


class PageReports:
    """Tells the state server what this worker does, for its page, in modes in which no rule of the server decides.
    Training never waits: a notice takes it a few microseconds. In other modes the trainers tell it themselves, and this
    does nothing; nor without a state server."""

    def __init__(self, trainer: Trainer) -> None:
        algorithm = trainer.context.config.algorithm
        self._trainer = trainer
        self._state = None if algorithm.has_state_server else trainer.context.peers.state_server
        self._waits = algorithm.waits and algorithm.is_distributed

    def announce(self) -> None:
        """All workers agree on the job's name. Each worker that is there when the job begins calls it."""
        if self._state is None:
            return
        trainer, membership = self._trainer, self._trainer.membership
        numbers = trainer.context.peers.gather("names of the job on the state server", draw_job_number())
        if numbers is None:
            logging.warning("there is no status page of this job: a plain MXNet program takes part, or one was lost")
            self._state = None
            return
        self._state.join(job_id(numbers[0]), membership.rank, membership.num_workers, trainer.progress)

    def tell(self) -> None:
        """Reports the last local step."""
        if self._state is not None:
            self._state.tell(self._trainer.rounds, self._trainer.steps, self._trainer.step_s, 0.0)

    def wait(self) -> None:
        """The round's local steps are done, and the exchange begins."""
        if self._state is not None and self._waits:
            self._trainer.progress.activity = WAITING
        self.tell()

    def next_round(self) -> None:
        if self._state is not None:
            self._trainer.progress.activity = TRAINING
            self._state.tell(self._trainer.rounds + 1, 0, self._trainer.step_s, 0.0)

    def end(self) -> None:
        """This worker leaves the job in order."""
        if self._state is not None:
            self._state.leave(self._trainer.rounds)
