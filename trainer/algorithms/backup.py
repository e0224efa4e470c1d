"""SSGD with backup workers (Chen et al., "Revisiting distributed synchronous SGD", 2016, arXiv:1604.00981): of N
workers b are spare. The first N - b gradients of a version of the model make the next one,
w <- w - eta * (sum of these) / (N - b); the b late ones are dropped, and who is late begins anew on the newest version.

As in SSGD each gradient is weighed by N * n_k / n before it is sent, so that every sample counts alike: here, whenever
its worker is in time. With b = 0 this is SSGD. The paper has N + b workers of which N count; here b of N are spare, so
that the number of workers is the same in every mode.
"""

from __future__ import annotations

from typing import Any

from trainer.algorithms.backup_optimizer import BackupOptimizer, Status
from trainer.algorithms.whole_models import SAVE, Keys, ModelLink
from trainer.context import Context
from trainer.engine import mx
from trainer.parameters import wait_for
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.steps import which_decay
from trainer.trainer import Trainer


class BackupTrainer(Trainer):
    """A round is one gradient sent, and the newest model pulled: by a worker that is late as soon as it has sent, by
    all others when enough have sent theirs.

    BatchNorm's statistics become the mean over the workers that counted, weighed by their samples.
    """

    def __init__(self, context: Context, learning_rate: float, num_backup: int) -> None:
        """
        Args:
            learning_rate: eta.
            num_backup: b, from 0 to N - 1.
        """
        super().__init__(context)
        num_sent = len(self.parameters.model())
        self._keys = Keys(num_sent, num_sent, self.membership.num_workers)
        self.exchange = self._link = ModelLink(
            context.shared, self._keys, self.emulation.wait_for_link, context.peers.lost
        )
        self._learning_rate = learning_rate
        self._num_backup = num_backup
        self._status = Status(over=False, version=0, answered=0, at_once=False, dropped=0)
        self._gradients_sent = 0
        self._is_lost = False  # the gradient of this round was dropped

    def broadcast(self) -> None:
        """The initial model is version 0."""
        model = self.parameters.model()
        optimizer = BackupOptimizer(
            self._keys,
            self._num_backup,
            self._learning_rate,
            which_decay(self.parameters.weights),
            self.membership.sample_counts,
            self.context.run.rule,
        )
        optimizer.looks_at_uploads = self.checks.are_made
        self._link.define(optimizer, model, self.context.run.checkpoints)
        self.parameters.take_back(model)

    def save_server(self) -> None:
        """The newest version, and how many batches counted."""
        self._link.command(SAVE, self.rounds)

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """The gradient, which leaves if it is good."""
        self.compute_gradients(images, labels, self.membership.weight)
        if self.gradients_are_good():
            self._link.begin_to_upload([*self.parameters.gradients, *self.parameters.statistics()])
        self.wait_for_gradients()
        return True

    def ready(self) -> bool:
        """After a good step: others may wait for this worker's gradient."""
        return not self.step_is_bad

    def synchronize(self, wants_stop: bool) -> bool:
        """Waits until the gradient is dealt with, and takes the model of the answer."""
        self.measure.enter(GLOBAL_AGGREGATE)
        self._link.upload((wants_stop,))
        self._gradients_sent += 1
        before, model = self._status, None
        if self._link.expects_model:
            numbers, model = self._link.status_and_answer()
        else:
            numbers = self._link.status()
        self._status = Status.read(numbers)
        self._link.note(self._status.at_once)
        if not self._status.at_once:  # else what was pulled with the status is the answer
            self.clock.wait_until(self._is_answered)
            model = None
        self.parameters.replace(model or self._link.answer())
        wait_for(self.parameters.weights)
        self._is_lost = self._status.dropped > before.dropped
        return self._status.over

    def _is_answered(self) -> bool:
        """Asks the server; tells it of a stop request that comes while this worker waits for others."""
        self._status = Status.read(self._link.look(self.stop_request))
        return self._status.answered >= self._gradients_sent

    def notes(self) -> dict[str, Any]:
        """The version that this worker has, and whether the step of this round was lost."""
        return {"version": self._status.version} | ({"steps_lost": 1} if self._is_lost else {})


def build(context: Context) -> BackupTrainer:
    """From the flags."""
    return BackupTrainer(context, context.config.learning_rate, context.config.backup)
