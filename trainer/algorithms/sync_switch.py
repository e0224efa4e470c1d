"""Sync-Switch (Li et al., "Sync-Switch: Hybrid parameter synchronization for distributed deep learning", ICDCS 2021,
arXiv:2104.08364): phases under BSP and under ASP in one running job (schedule.py). An update of n workers' gradients is
v <- mu * v + (sum of the n) / n; w <- w - eta * (n / N) * v: the learning rate follows the samples of an update, so
it is divided by N from BSP to ASP and multiplied back, and the momentum does not change.

The optimizer on the server holds weights and velocity, knows the phases and decides which workers stay in step
(sync_switch_optimizer.py). The server switches modes between two updates; workers do not stop.
"""

import logging
from typing import Any

from algorithms import ELASTIC, GREEDY, SWITCH, EventKind
from config import SAME, Config
from flag_values import parse_ramp, parse_schedule
from rates import Ramp
from trainer.algorithms.schedule import Schedule, phase_under
from trainer.algorithms.server_policies import UploadReport
from trainer.algorithms.sync_switch_optimizer import (
    PhaseRule,
    SyncSwitchOptimizer,
    SyncSwitchSettings,
    SyncSwitchStatus,
)
from trainer.algorithms.whole_models import SAVE, Keys, ModelLink
from trainer.context import Context
from trainer.coordinator.job import announce_job
from trainer.coordinator.smoothing import Smoothed
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.steps import which_decay
from trainer.trainer import Trainer
from utils import JobOver, SetupError

TELL_EVERY_S = 1.0  # between reports to the state server without news


class SyncSwitchTrainer(Trainer):
    """A round sends one gradient and pulls the weights: under ASP at once, under BSP when the update is done.

    BatchNorm's statistics move to the mean of an update's workers by the share n / N.
    """

    def __init__(self, context: Context, settings: SyncSwitchSettings) -> None:
        super().__init__(context)
        self._settings = settings
        self._state = context.state  # for its page only
        self._keys = Keys(len(self.parameters.model()), self.membership.num_workers)
        self.exchange = self._link = ModelLink(self, self._keys)
        self._told_at = 0.0  # clock time of the last report to the state server
        self._gradients_sent = 0
        self._transmission = Smoothed()  # seconds of this worker's own push and pull
        self._events: list[dict[str, str]] = []
        self._steps_lost = 0

    # ---------------------------------------------------------------------------------------------- the hooks

    def broadcast(self) -> None:
        announce_job(self.context, self.progress, self.resumes)
        settings = self._settings
        model = self.parameters.model()
        schedule = Schedule(settings.order, settings.steps, self.membership.num_workers, settings.policy)
        optimizer = SyncSwitchOptimizer(self._keys, schedule, settings, which_decay(self.parameters.weights))
        self._link.define(optimizer, model)
        self.parameters.write_back(model)
        self._status = SyncSwitchStatus.read(self._link.status())
        self._gradients_sent = self._status.answered  # those of the lost worker in whose place it is
        if self._status.finished:
            if self.context.peers.job_age_s() is not None:  # in the place of a lost worker
                raise JobOver("all workers are done")
            raise SetupError("--resume: the job of this checkpoint is done: nothing is left to train")
        self._note_protocol()
        if not self.resumes:
            self._state.tell(1, 0, self.step_s, 0.0)

    def save_server(self) -> None:
        self._link.command(SAVE, self.rounds)

    def begin_round(self) -> None:
        """Takes the phase's batch size; reports a resumed job to the state server."""
        status = self._status
        if size := self._settings.rule(phase_under(self._settings.order, status.phase, status.bsp)).batch_size:
            self.context.task.batches.resize(size)
        if self.is_first_of_resumed:
            self._tell(0)

    def local_step(self, batch: Batch) -> bool:
        self.compute_gradients(batch, self.membership.weight)
        if self.gradients_are_good():
            self.clip_gradients(self.membership.weight)
            self._link.begin_to_upload([*self.parameters.gradients, *self.parameters.statistics()])
        self.wait_for_gradients()
        self.step_s = self.emulation.step_age_s
        return True

    def ready(self) -> bool:
        if self.step_is_bad:  # others may wait for this worker's gradient: the next batch belongs to the same round
            return False
        if self._policy_applies:
            self._tell(1)
        else:
            self._tell_if_due()
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Waits until the server answers the gradient, and pulls the weights.

        Push and pull are timed without that wait, so the time is this worker's own even at the slowest one's pace.
        """
        self.measure.enter(GLOBAL_AGGREGATE)
        begin = self.clock.now()
        self._link.upload(UploadReport(wants_stop, 1, self.step_samples, self.step_s, self._transmission.value))
        push_s = self.clock.now() - begin
        self._gradients_sent += 1
        begin, model = self.clock.now(), self.parameters.model()
        is_pulled = self._link.expects_model
        status = SyncSwitchStatus.read(self._link.status_and_pull(model) if is_pulled else self._link.status())
        self._link.note(status.at_once)
        self._update_status(status)
        if not (is_pulled and status.at_once):  # a model that was pulled may be older than the update
            if status.answered < self._gradients_sent:
                self.clock.wait_until(self._poll)
            begin = self.clock.now()
            self._link.pull(model)
        self._transmission.add(push_s + self.clock.now() - begin)
        self.parameters.write_back(model)
        if self._status.finished:
            self.finished = f"all {sum(self._settings.steps)} steps of {len(self._settings.order)} phase(s) done"
        return self._status.over

    def notes(self) -> dict[str, Any]:
        notes: dict[str, Any] = {"batches": self._status.processed_at}
        if self._events:
            notes["events"], self._events = self._events, []
        if self._steps_lost:
            notes["steps_lost"], self._steps_lost = self._steps_lost, 0
        return notes

    def end(self) -> None:
        self._state.leave(self.rounds)

    # ---------------------------------------------------------------------------------------- the state server

    @property
    def _policy_applies(self) -> bool:
        """As `Schedule.policy_applies`."""
        return self._settings.order[self._status.phase] == "1"

    def _tell(self, steps: int) -> None:
        status = self._status
        decision = ("SYNC" if status.in_step else "TRAIN", status.reason) if self._policy_applies and steps else None
        self._state.tell(self.rounds, steps, self.step_s, self._transmission.value, decision)
        self._told_at = self.clock.now()

    def _tell_if_due(self) -> None:
        if self.clock.now() - self._told_at >= TELL_EVERY_S:
            self._tell(1)

    def _note_protocol(self) -> None:
        self.progress.protocol = "BSP" if self._status.bsp else "ASP"

    # ---------------------------------------------------------------------------------------------- the server

    def _update_status(self, status: SyncSwitchStatus) -> None:
        """Takes a new status; records events and reports what has changed."""
        before, self._status = self._status, status
        self._note_protocol()
        if status.phase != before.phase and not status.finished:
            self._add_event(
                SWITCH, f"phase {status.phase + 1} of {len(self._settings.order)}: {self.progress.protocol}"
            )
        elif status.bsp != before.bsp and not status.over and self._policy_applies:
            self._add_event(GREEDY, "back to BSP" if status.bsp else "ASP while a straggler lasts")
        self._steps_lost += status.dropped - before.dropped
        if new := set(status.left_out) - set(before.left_out):
            why = f": {status.reason}" if self.membership.rank in new else ""
            self._add_event(
                ELASTIC, f"on without worker(s) {', '.join(map(self.membership.name_of, status.left_out))}{why}"
            )
        if status.in_step != before.in_step:
            # Under elastic only the straggler knows it. A console shows rank 0's lines, and of others the warnings.
            kind = "warning: " if self._settings.policy == ELASTIC.name and not status.in_step else ""
            logging.info("%sthe parameter server says: %s", kind, status.reason)
            self._tell(1)

    def _poll(self) -> bool:
        """Takes the newest status; returns whether the last gradient is answered."""
        self._tell_if_due()
        self._update_status(SyncSwitchStatus.read(self._link.poll(self.stop_request)))
        return self._status.answered >= self._gradients_sent

    def _add_event(self, kind: EventKind, text: str) -> None:
        self._events.append({"kind": kind.name, "text": text})
        logging.info("%s: %s", kind.name, text)


def phase_rules(config: Config) -> tuple[PhaseRule, ...]:
    """The hyper-parameters of each phase, from the flags."""
    flags = (config.phase_lr, config.phase_momentum, config.phase_lr_schedule, config.phase_batch_size)
    return tuple(
        PhaseRule(
            rate or config.learning_rate,
            Ramp.constant(config.momentum) if momentum == SAME else parse_ramp(momentum),
            parse_schedule(schedule),
            size or config.batch_size,
            of_each=bool(rate) and kind == "0",
        )
        for kind, rate, momentum, schedule, size in zip(config.switch_order, *map(config.of_phases, flags), strict=True)
    )


def build(context: Context) -> SyncSwitchTrainer:
    """From the flags."""
    config = context.config
    settings = SyncSwitchSettings(
        order=config.switch_order,
        steps=config.train_steps,
        learning_rate=config.learning_rate,
        momentum=config.momentum,
        policy=config.straggler_policy,
        weight_decay=config.weight_decay,
        schedule=parse_schedule(config.lr_schedule),
        rules=phase_rules(config),
    )
    return SyncSwitchTrainer(context, settings)
