"""Sync-Switch (Li et al., "Sync-Switch: Hybrid parameter synchronization for distributed deep learning", ICDCS 2021,
arXiv:2104.08364): phases under BSP and under ASP in one running job (schedule.py). An update of n workers' gradients is
v <- mu * v + (sum of the n) / n; w <- w - eta * (n / N) * v: the learning rate follows the samples of an update, so
it is divided by N from BSP to ASP and multiplied back, and the momentum stays as it is.

The optimizer on the server holds weights and velocity, knows the phases, and decides who stays in step
(sync_switch_optimizer.py); so a switch is a change of its mind, and stops nobody.
"""

from __future__ import annotations

import logging
from typing import Any

from algorithms import ELASTIC, GREEDY, SWITCH, EventKind
from config import SAME, Config
from rates import Ramp, parse_ramp, parse_schedule
from trainer.algorithms.schedule import Schedule, phase_under
from trainer.algorithms.server_policies import Upload
from trainer.algorithms.sync_switch_optimizer import PhaseRule, Settings, Status, SyncSwitchOptimizer
from trainer.algorithms.whole_models import SAVE, Keys, ModelLink
from trainer.context import Context
from trainer.coordinator.job import announce_job
from trainer.coordinator.smoothing import Smoothed
from trainer.engine import mx
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.steps import which_decay
from trainer.trainer import Trainer
from utils import SetupError

TELL_EVERY_S = 1.0  # the state server hears of a worker of which there is nothing new


class SyncSwitchTrainer(Trainer):
    """A round is one gradient sent, and the weights pulled when it is dealt with: under ASP at once, under BSP when all
    have sent theirs.

    BatchNorm's statistics move to the mean of an update's workers by the share n / N.
    """

    def __init__(self, context: Context, settings: Settings) -> None:
        super().__init__(context)
        self._settings = settings
        self._state = context.state  # is told what its page shows
        num_sent = len(self.parameters.model())
        self._keys = Keys(num_sent, num_sent, self.membership.num_workers)
        self.exchange = self._link = ModelLink(
            context.shared, self._keys, self.emulation.wait_for_link, context.peers.lost
        )
        self._told_at = 0.0  # when the state server was last told something
        self._gradients_sent = 0
        self._transmission = Smoothed()  # seconds of this worker's own push and pull
        self._events: list[dict[str, str]] = []
        self._steps_lost = 0

    # ---------------------------------------------------------------------------------------------- the hooks

    def broadcast(self) -> None:
        """The initial model is rank 0's, or that of the checkpoint."""
        announce_job(self.context, self.progress, self.resumes)
        settings = self._settings
        model = self.parameters.model()
        schedule = Schedule(settings.order, settings.steps, self.membership.num_workers, settings.policy)
        optimizer = SyncSwitchOptimizer(self._keys, schedule, settings, which_decay(self.parameters.weights))
        optimizer.looks_at_uploads = self.checks.are_made
        self._link.define(optimizer, model, self.context.run.checkpoints)
        self.parameters.take_back(model)
        self._status = Status.read(self._link.status())
        if self._status.finished:
            raise SetupError("--resume: the job of this checkpoint is done: nothing is left to train")
        self._note_way()
        if not self.resumes:
            self._state.tell(1, 0, self.step_s, 0.0)

    def save_server(self) -> None:
        """Weights, velocity and phases."""
        self._link.command(SAVE, self.rounds)

    def begin_round(self) -> None:
        """Tells the state server of an accuracy, and of a job that was resumed; goes over to a phase's batch size."""
        status = self._status
        if size := self._settings.rule(phase_under(self._settings.order, status.phase, status.bsp)).batch_size:
            self.context.task.batches.resize(size)
        accuracy = self.accuracy.take()
        if accuracy is not None or self.is_first_of_resumed:
            self._tell(0, accuracy)

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """The gradient, which leaves if it is good."""
        self._num_samples = labels.size
        self.compute_gradients(images, labels, self.membership.weight)
        if self.gradients_are_good():
            self._link.begin_to_upload([*self.parameters.gradients, *self.parameters.statistics()])
        self.wait_for_gradients()
        self.step_s = self.emulation.step_age_s
        return True

    def ready(self) -> bool:
        """After every good step, which the state server's page shows where it is a part of a common one: others may
        wait for this worker's gradient."""
        if self.step_is_bad:
            return False
        if self._decides:
            self._tell(1)
        else:
            self._tell_now_and_then()
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Waits until the gradient is dealt with, and pulls the weights.

        Push and pull are timed without that wait: they are this worker's own also where all have the slowest's pace.
        """
        self.measure.enter(GLOBAL_AGGREGATE)
        begin = self.clock.now()
        self._link.upload(Upload(wants_stop, 1, self._num_samples, self.step_s, self._transmission.value))
        push_s = self.clock.now() - begin
        self._gradients_sent += 1
        begin, model = self.clock.now(), self.parameters.model()
        is_pulled = self._link.expects_model
        status = Status.read(self._link.status_and_pull(model) if is_pulled else self._link.status())
        self._link.note(status.at_once)
        self._take(status)
        if not (is_pulled and status.at_once):  # else that model may be older than the update
            if not self._is_dealt_with(status):
                self._wait()
            begin = self.clock.now()
            self._link.pull(model)
        self._transmission.add(push_s + self.clock.now() - begin)
        self.parameters.take_back(model)
        if self._status.finished:
            self.finished = f"all {sum(self._settings.steps)} steps of {len(self._settings.order)} phase(s) done"
        return self._status.over

    def notes(self) -> dict[str, Any]:
        """How far the job is, and what happened."""
        notes: dict[str, Any] = {"batches": self._status.dealt_with_at}
        if self._events:
            notes["events"], self._events = self._events, []
        if self._steps_lost:
            notes["steps_lost"], self._steps_lost = self._steps_lost, 0
        return notes

    def end(self) -> None:
        """Takes leave."""
        self._state.leave(self.accuracy.take(), self.rounds)

    # ---------------------------------------------------------------------------------------- the state server

    @property
    def _decides(self) -> bool:
        """Whether the server decides who stays in step: in a phase under BSP, also while a straggler makes it ASP."""
        return self._settings.order[self._status.phase] == "1"

    def _tell(self, steps: int, accuracy: float | None = None) -> None:
        """This worker is there, and what it has done; so a watcher tells it from one that is dead."""
        status = self._status
        decision = ("SYNC" if status.in_step else "TRAIN", status.reason) if self._decides and steps else None
        self._state.tell(self.rounds, steps, self.step_s, self._transmission.value, accuracy, decision)
        self._told_at = self.clock.now()

    def _tell_now_and_then(self) -> None:
        if self.clock.now() - self._told_at >= TELL_EVERY_S:
            self._tell(1)

    def _note_way(self) -> None:
        self.progress.way = "BSP" if self._status.bsp else "ASP"

    # ---------------------------------------------------------------------------------------------- the server

    def _take(self, status: Status) -> None:
        """Notes what has changed."""
        before, self._status = self._status, status
        self._note_way()
        if status.phase != before.phase and not status.finished:
            self._happened(SWITCH, f"phase {status.phase + 1} of {len(self._settings.order)}: {self.progress.way}")
        elif status.bsp != before.bsp and not status.over and self._decides:
            self._happened(GREEDY, "back to BSP" if status.bsp else "ASP while a straggler lasts")
        self._steps_lost += status.dropped - before.dropped
        if new := set(status.left_out) - set(before.left_out):
            why = f": {status.reason}" if self.membership.rank in new else ""
            self._happened(
                ELASTIC, f"on without worker(s) {', '.join(map(self.membership.name_of, status.left_out))}{why}"
            )
        if status.in_step != before.in_step:
            # Under elastic the straggler alone is told. A console shows rank 0's lines, and the warnings of others.
            kind = "warning: " if self._settings.policy == ELASTIC.name and not status.in_step else ""
            logging.info("%sthe parameter server says: %s", kind, status.reason)
            self._tell(1)

    def _wait(self) -> None:
        """Waits for the others."""

        def is_dealt_with() -> bool:
            self._tell_now_and_then()
            self._take(Status.read(self._link.look(self.stop_request)))
            return self._is_dealt_with(self._status)

        self.clock.wait_until(is_dealt_with)

    def _is_dealt_with(self, status: Status) -> bool:
        return status.freed >= self._gradients_sent

    def _happened(self, kind: EventKind, text: str) -> None:
        self._events.append({"kind": kind.name, "text": text})
        logging.info("%s: %s", kind.name, text)


def phase_rules(config: Config) -> tuple[PhaseRule, ...]:
    """The hyper-parameters of each phase, as the flags say them."""
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
    settings = Settings(
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
