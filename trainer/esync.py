"""ESync (Li et al., "ESync: Accelerating intra-domain federated learning in heterogeneous data centers", IEEE TSC
15(4), 2022, doi 10.1109/TSC.2020.3044043): every worker takes as many local SGD steps as fit into the
straggler's step, then w <- w + eps * sum_k (n_k / n) * (w_k - w), n_k the samples that worker k holds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from trainer.base import Job
from trainer.engine import mx
from trainer.parameters import Exchange
from trainer.queries import Queries
from trainer.state_client import StateClient, draw_job_number, job_id
from trainer.sync import SynchronousTrainer
from utils import CHECK_READY, GLOBAL_UPDATE, LOCAL_UPDATE

# Timing the transmission costs the overlap of pushes and pulls, so it is not done in every round.
TIMED_ROUNDS_AT_START = 3
TIMED_EVERY = 10

JOB_NUMBER_KEY = 1_000_000  # far from the model's own keys


class ESyncTrainer(SynchronousTrainer):
    """Local SGD whose number of steps the state server decides."""

    def __init__(
        self,
        job: Job,
        store: Any,
        state: StateClient,
        queries: Queries,
        local_rate: float,
        global_rate: float,
        sample_share: float,
    ) -> None:
        """
        Args:
            state: begins the job and joins it.
            queries: asks from then on; a step can be given up if it does not wait for answers.
            local_rate: step size of the local steps.
            global_rate: eps.
            sample_share: n_k / n.
        """
        super().__init__(job, store)
        self._store = store
        self._state = state
        self._queries = queries
        self.can_abandon = not queries.waits
        self._local_rate = local_rate
        self._global_rate = global_rate
        self._sample_share = sample_share
        self._transmission_s = 0.0
        self._step_s = 0.0

    def broadcast(self) -> None:
        """Begins a job on the state server before the ranks get the initial weights: when they go on, it is there."""
        number = mx.nd.array(draw_job_number())
        if self.job.rank == 0:
            self._state.join(job_id(number.asnumpy()), self.job.rank, self.job.num_workers)
            self._state.begin_job()
        Exchange(self._store, first_key=JOB_NUMBER_KEY).broadcast([number])
        self._state.join(job_id(number.asnumpy()), self.job.rank, self.job.num_workers)
        super().broadcast()
        self._global_weights = [weight.copy() for weight in self.parameters.weights]
        self._global_statistics = self.auxiliary()

    def begin_round(self) -> None:
        """Tells the state server that this worker is in the round."""
        self.measure.enter(CHECK_READY)
        accuracy = self.accuracy if self.evaluated_round == self.rounds - 1 else None
        self._queries.report(self.rounds, self._step_s, self._transmission_s, accuracy)

    def round_is_over(self) -> bool:
        """Whether an answer to an earlier question has come meanwhile."""
        return self._queries.is_ready(self.rounds)

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """A whole SGD step on the local weights, or nothing of it."""
        if not self.compute_gradients(images, labels):
            return False
        mx.nd.waitall()
        if self.can_abandon and self.round_is_over():
            return False
        self.measure.enter(LOCAL_UPDATE)
        self.parameters.sgd_step(self._local_rate)
        mx.nd.waitall()
        self._step_s = time.monotonic() - self._step_began
        return True

    def ready(self) -> bool:
        """Asks the state server. The time of the question belongs to what follows from it."""
        self.measure.next_step()
        self.measure.enter(CHECK_READY)
        return self._queries.ask(self.rounds, self.steps, self._step_s, self._transmission_s)

    def synchronize(self, wants_stop: bool) -> bool:
        """Sums the weighted model updates of all workers and adds them to the global model."""
        self.measure.enter(GLOBAL_UPDATE)
        # Weighted before they are summed; a difference is always in the default layout.
        local = self.parameters.weights + self.auxiliary()
        updates = [
            (here - everywhere) * self._sample_share
            for here, everywhere in zip(local, self._global_weights + self._global_statistics, strict=True)
        ]
        stop = self.sum_over_workers(updates, GLOBAL_UPDATE, wants_stop)
        num_weights = len(self._global_weights)
        for weight, everywhere, update in zip(
            self.parameters.weights, self._global_weights, updates[:num_weights], strict=True
        ):
            everywhere += self._global_rate * update
            everywhere.copyto(weight)
        # Statistics are averaged: the global rate is a step size, and these take no steps.
        for everywhere, update in zip(self._global_statistics, updates[num_weights:], strict=True):
            everywhere += update
        self.set_auxiliary(self._global_statistics)
        mx.nd.waitall()
        return stop

    def end(self) -> None:
        """Waits for questions that are still under way."""
        self._queries.close()

    def pull(self, arrays: Sequence[mx.nd.NDArray]) -> None:
        """In some rounds, also times how long one model takes over the network.

        The kvstore acknowledges a push when all workers have pushed, so a push cannot be timed without the wait for
        the straggler. The pull that follows carries the same bytes and waits for nobody.
        """
        if self.rounds > TIMED_ROUNDS_AT_START and self.rounds % TIMED_EVERY:
            super().pull(arrays)
            return
        mx.nd.waitall()
        begin = time.monotonic()
        super().pull(arrays)
        self._transmission_s = time.monotonic() - begin
