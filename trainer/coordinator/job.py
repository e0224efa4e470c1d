"""A job on the state server: its beginning, with a name that the workers agree on, and notices for its page in modes
without a rule."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from trainer.context import Context
from trainer.coordinator.client import draw_job_number, job_id
from trainer.progress import TRAINING, WAITING, Progress

if TYPE_CHECKING:
    from trainer.trainer import Trainer

JOB_NUMBER_KEY = 1_000_000  # far from the model's own keys


def begin_job(context: Context, progress: Progress, resumed: bool = False) -> None:
    """Rank 0 begins the job on the state server, or with `resumed` continues it from a checkpoint; when this returns on
    any rank, the job has begun and is joined."""
    state, membership = context.state, context.peers.membership()
    number = np.array(draw_job_number(), np.float32)
    if membership.rank == 0:
        state.join(job_id(number), membership.rank, membership.num_workers, progress)
        state.begin_job(resumed)
    context.shared.arrays(JOB_NUMBER_KEY).broadcast([number])
    state.join(job_id(number), membership.rank, membership.num_workers, progress)


class Watched:
    """Tells what a worker does in whose mode no rule of the state server decides. Training never waits: a notice takes
    it a few microseconds. In other modes, whose trainers tell it themselves, and without one, this does nothing."""

    def __init__(self, trainer: Trainer) -> None:
        algorithm = trainer.context.config.algorithm
        self._trainer = trainer
        self._state = None if algorithm.has_state_server else trainer.context.peers.state_server
        self._waits = algorithm.waits and algorithm.is_distributed

    def announce(self) -> None:
        """All workers agree on the job's name. Every worker of the job's begin calls it."""
        if self._state is None:
            return
        trainer = self._trainer
        numbers = trainer.context.peers.gather("names of the job on the state server", draw_job_number())
        if numbers is None:
            logging.warning("there is no status page of this job: a plain MXNet program takes part, or one was lost")
            self._state = None
            return
        membership = trainer.membership
        self._state.join(job_id(numbers[0]), membership.rank, membership.num_workers, trainer.progress)
        self._state.announce(trainer.resumes)

    def tell(self) -> None:
        """Tells of the last local step."""
        if self._state is not None:
            self._state.tell(self._trainer.rounds, self._trainer.steps, self._trainer.step_s, 0.0)

    def wait(self) -> None:
        """The round's local steps are done, and the exchange begins."""
        if self._state is not None and self._waits:
            self._trainer.progress.activity = WAITING
        self.tell()

    def next_round(self) -> None:
        if self._state is None:
            return
        trainer = self._trainer
        trainer.progress.activity = TRAINING
        self._state.tell(trainer.rounds + 1, 0, trainer.step_s, 0.0)

    def end(self) -> None:
        """This worker leaves the job in order."""
        if self._state is not None:
            self._state.leave(self._trainer.rounds)
