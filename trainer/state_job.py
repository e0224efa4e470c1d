"""How the workers of a job agree on its name on the state server."""

from __future__ import annotations

from typing import Any

from trainer.base import Job
from trainer.engine import mx
from trainer.parameters import Exchange
from trainer.state_client import StateClient, draw_job_number, job_id

JOB_NUMBER_KEY = 1_000_000  # far from the model's own keys


def begin_job(state: StateClient, store: Any, job: Job) -> None:
    """Rank 0 begins the job on the state server; when this returns on any rank, the job is there and joined."""
    number = mx.nd.array(draw_job_number())
    if job.rank == 0:
        state.join(job_id(number.asnumpy()), job.rank, job.num_workers)
        state.begin_job()
    Exchange(store, first_key=JOB_NUMBER_KEY).broadcast([number])
    state.join(job_id(number.asnumpy()), job.rank, job.num_workers)
