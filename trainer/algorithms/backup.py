"""SSGD with backup workers (Chen et al., "Revisiting distributed synchronous SGD", 2016, arXiv:1604.00981): of N
workers b are spare. The first N - b gradients of a version of the model make the next one,
w <- w - eta * (sum of these) / (N - b); the b late ones are dropped, and a late worker continues with the newest
version.

As in SSGD each gradient is weighed by N * n_k / n before it is sent, so that all samples of the workers in time count
alike. With b = 0 this is SSGD. The paper has N + b workers of which N count; here b of N are spare, so that the number
of workers is the same in every mode.
"""

from typing import Any

from trainer.algorithms.backup_optimizer import BackupOptimizer, BackupStatus
from trainer.algorithms.whole_models import SAVE, Keys, ModelLink
from trainer.context import Context
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.steps import which_decay
from trainer.trainer import Trainer


class BackupTrainer(Trainer):
    """A round sends one gradient and pulls the newest model: a late worker at once, the others when N - b gradients
    are there.

    BatchNorm's statistics become the mean over the workers that counted, weighed by their samples.
    """

    def __init__(self, context: Context, learning_rate: float, num_backup: int) -> None:
        super().__init__(context)
        self._keys = Keys(len(self.parameters.model()), self.membership.num_workers)
        self.exchange = self._link = ModelLink(self, self._keys)
        self._learning_rate = learning_rate  # eta
        self._num_backup = num_backup  # b, from 0 to N - 1
        self._status = BackupStatus(over=False, version=0, answered=0, at_once=False, dropped=0)
        self._gradients_sent = 0
        self._is_lost = False  # the gradient of this round was dropped

    def broadcast(self) -> None:
        model = self.parameters.model()
        decays, counts = which_decay(self.parameters.weights), self.membership.sample_counts
        optimizer = BackupOptimizer(
            self._keys, self._num_backup, self._learning_rate, decays, counts, self.context.run.rule
        )
        self._link.define(optimizer, model)
        self.parameters.write_back(model)
        self._status = BackupStatus.read(self._link.status())
        self._gradients_sent = self._status.answered  # those of the lost worker in whose place it is

    def save_server(self) -> None:
        self._link.command(SAVE, self.rounds)

    def local_step(self, batch: Batch) -> bool:
        self.compute_gradients(batch, self.membership.weight)
        if self.gradients_are_good():
            self.clip_gradients(self.membership.weight)
            self._link.begin_to_upload([*self.parameters.gradients, *self.parameters.statistics()])
        self.wait_for_gradients()
        self.step_s = self.emulation.step_age_s
        return True

    def ready(self) -> bool:
        # After a bad step the next batch belongs to the same round: others may wait for this worker's gradient.
        return not self.step_is_bad

    def synchronize(self, wants_stop: bool) -> bool:
        """Waits until the gradient is applied or dropped, and takes the model of the answer."""
        self.measure.enter(GLOBAL_AGGREGATE)
        self._link.upload((wants_stop,))
        self._gradients_sent += 1
        before, model = self._status, None
        if self._link.expects_model:
            numbers, model = self._link.status_and_answer()
        else:
            numbers = self._link.status()
        self._status = BackupStatus.read(numbers)
        self._link.note(self._status.at_once)
        if not self._status.at_once:  # else what was pulled with the status is the answer
            self.clock.wait_until(self._is_answered)
            model = None
        self.parameters.replace(model or self._link.answer())
        self._is_lost = self._status.dropped > before.dropped
        return self._status.over

    def _is_answered(self) -> bool:
        self._status = BackupStatus.read(self._link.poll(self.stop_request))
        return self._status.answered >= self._gradients_sent

    def notes(self) -> dict[str, Any]:
        return {"version": self._status.version} | ({"steps_lost": 1} if self._is_lost else {})


def build(context: Context) -> BackupTrainer:
    """From the flags."""
    return BackupTrainer(context, context.config.learning_rate, context.config.backup)
