"""Asynchronous local SGD with dynamic local updates and delayed Nesterov momentum (Liu et al., "Asynchronous local-SGD
training for language modeling", 2024, arXiv:2401.09135). Worker k takes H_k local steps from the global model w that it
has, and uploads delta_k = w_k - w. The server applies it at once (async_local_optimizer.py) and answers with its w,
from which the worker goes on. No worker waits for another.

Dynamic local updates (DyLU): H_k = max(1, floor(H * v_k / max v)), v_k = 1 / (seconds of a local step), so that the
uploads of all workers come about as often. The server decides, from the times of the uploads. As long as a worker's
time is not known, in its first round, it takes one step. Without DyLU it takes H steps in each round.

An update is weighed by N * n_k / n, as in the other modes. BatchNorm's statistics take no part in the momentum: each
upload moves them by its difference over N.
"""

from collections.abc import Sequence

import numpy as np

from trainer.algorithms.async_local_optimizer import AsyncLocalOptimizer, AsyncLocalStatus, LocalSteps
from trainer.algorithms.buckets import Buckets
from trainer.algorithms.delayed_nesterov import DelayedNesterov
from trainer.algorithms.server_policies import UploadReport
from trainer.algorithms.whole_models import SAVE, Keys, ModelLink
from trainer.context import Context
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.trainer import Trainer


class AsyncLocalTrainer(Trainer):
    """A round is H_k local steps, and one upload with its answer."""

    rounds_in_step = False

    def __init__(
        self,
        context: Context,
        learning_rate: float,
        outer: DelayedNesterov,
        local_steps: LocalSteps,
        delay_momentum: bool = True,
    ) -> None:
        """`learning_rate` is that of the local steps. With `delay_momentum` the period P of `outer` is the number of
        workers; else it is 1."""
        super().__init__(context)
        self._learning_rate = learning_rate
        self._buckets = Buckets(self.parameters.model(), apart=len(self.parameters.statistics()))
        self._base = self._packed_model()  # the local model at the begin of the round
        keys = Keys(len(self._base), self.membership.num_workers)
        self._optimizer = AsyncLocalOptimizer(
            keys, len(Buckets(self.parameters.weights)), outer, local_steps, delay_momentum
        )
        self.exchange = self._link = ModelLink(self, keys)
        self._status: AsyncLocalStatus
        self._samples = 0  # of the round's good steps

    def broadcast(self) -> None:
        model = self._packed_model()
        self._link.define(self._optimizer, model)
        self._take(model)
        self._status = AsyncLocalStatus.read(self._link.status())
        self.seen.of_all = max(self.seen.of_all, self._status.samples)  # it may have taken the place of a lost worker
        self._link.take_traffic()  # only rounds count

    def save_server(self) -> None:
        self._link.command(SAVE, self.rounds)

    def begin_round(self) -> None:
        self._samples = 0

    def local_step(self, batch: Batch) -> bool:
        is_complete = self.whole_step(batch, self._learning_rate)
        self._samples += 0 if self.step_is_bad else self.step_samples
        return is_complete

    def ready(self) -> bool:
        self.measure.next_step()  # each local step and the upload have log entries of their own, as local SGD's have
        return self.steps >= self._status.local_steps

    def synchronize(self, wants_stop: bool) -> bool:
        self.measure.enter(GLOBAL_AGGREGATE)
        weight = self.membership.weight
        update = [(own - before) * weight for own, before in zip(self._packed_model(), self._base, strict=True)]
        if not self.update_is_good(update, self._buckets.unpack):
            update, self._samples = [np.zeros_like(array) for array in update], 0
        self._link.begin_to_upload(update)
        self._link.upload(UploadReport(wants_stop, self.steps, self._samples, self.step_s, 0.0))
        numbers, model = self._link.status_and_answer()
        self._status = AsyncLocalStatus.read(numbers)
        self._take(model)
        self.seen.update(self._status.samples, self._samples)
        return self._status.stop

    def _take(self, model: Sequence[np.ndarray]) -> None:
        self.parameters.replace(self._buckets.unpack(model))
        self._base = self._packed_model()

    def _packed_model(self) -> list[np.ndarray]:
        return self._buckets.pack(self.parameters.model())


def build(context: Context) -> AsyncLocalTrainer:
    """From the flags."""
    config = context.config
    outer = DelayedNesterov(config.global_lr, config.outer_momentum)
    local_steps = LocalSteps(config.sync_every, bool(config.dylu), context.peers.membership().num_workers)
    return AsyncLocalTrainer(context, config.local_lr, outer, local_steps, bool(config.delay_momentum))
