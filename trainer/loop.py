"""The one loop of all algorithms: a round is one or more local steps, then one synchronisation."""

import logging
from collections.abc import Callable
from pathlib import Path

from algorithms import MEMBERS
from esync.measure import CHECKPOINT, FORWARD_BACKWARD, GET_BATCH
from trainer.evaluation.evaluations import Evaluations
from trainer.membership import How, lost_of
from trainer.run_logs.round_report import PageReports, RoundReport
from trainer.step_size import FirstSteps
from trainer.survival import trainer_state
from trainer.trainer import Trainer
from utils import LEFT, STOPPED


class Loop:
    """Trains until a limit, a target or a signal. It knows the hooks of Trainer, and no algorithm; `trainer.company`
    knows what a lost or a new worker changes."""

    def __init__(self, trainer: Trainer) -> None:
        context = trainer.context
        self.trainer = trainer
        self._context = context
        self._run = context.run
        self._first_steps = FirstSteps(context.config, context.task.classes)
        self._report = RoundReport(trainer)
        self._evaluations = Evaluations(trainer, self._report.note_once)
        self._page = PageReports(trainer)
        self._has_begun = False  # training
        self._changes = dict(context.peers.changes())  # losses and returns of workers so far
        self._test_busy_s = 0.0  # CPU seconds of a test step, over all cores; 0: not measured

    def run(self, open_log: Callable[[], Path]) -> str:
        """Trains; returns the reason for the end in words. `open_log` prepares and returns the log folder; called once
        all ranks are ready."""
        trainer, run = self.trainer, self._run
        if not trainer.company.comes_late:
            self._warm_up()
        trainer_state.restore(trainer)
        if run.checkpoints is not None:
            run.checkpoints.begin()
        trainer.company.meet(self)
        if run.checkpoints is not None:
            run.checkpoints.all_have_begun(came_late=trainer.begin.how is How.JOINS)
        trainer.measure = trainer_state.open_measure(trainer, open_log())
        self._report.note_once(trainer.begin.notes())
        self._context.peers.watch(trainer.measure)
        if run.pacing is not None:
            run.pacing.begin_s = trainer.measure.elapsed_s
        trainer.progress.begin(self._elapsed_s, trainer.is_evaluator)
        self._evaluations.begin()
        self._has_begun = True
        trainer.emulation.begin(self._elapsed_s)
        self._page.next_round()
        reason = ""
        try:
            while not reason:
                trainer.rounds += 1
                self.update_membership()
                reason = self.train_round()
        except BaseException as error:
            if self._report.record:
                self._evaluations.rescue(error)
            raise
        trainer.company.part()
        trainer.end()
        self._page.end()
        if run.checkpoints is not None:
            run.checkpoints.wait()
        self._evaluations.end()
        trainer.passes.end()  # the user's own loop may fail after its last step
        return reason

    def _elapsed_s(self) -> float:
        return self.trainer.measure.elapsed_s

    # ------------------------------------------------------------------------------------ called by the company

    def come_together(self) -> None:
        """All workers get the same model, and choose the one that evaluates."""
        trainer = self.trainer
        if not trainer.step_s:
            self._warm_up()
        self._page.announce()
        trainer.broadcast()
        self.choose_evaluator()
        if trainer.is_evaluator:
            self._evaluations.prepare(gives_up=self._run.stop_requested)
        if self._run.pacing is not None:  # here the others wait for the one that evaluates
            for line in self._run.pacing.before_training(
                trainer.step_s, self._test_busy_s, trainer.emulation.shortest_s
            ):
                logging.warning("warning: %s", line)

    def choose_evaluator(self) -> None:
        """All workers agree on the one that evaluates. The evaluator keeps this task as long as it is there."""
        trainer = self.trainer
        was_evaluator = trainer.is_evaluator and self._has_begun
        trainer.is_evaluator = self._context.peers.is_evaluator(0.0 if was_evaluator else trainer.step_s)
        if self._has_begun and trainer.is_evaluator and not was_evaluator:
            trainer.progress.begin(self._elapsed_s, evaluates=True)
            self._evaluations.prepare(gives_up=lambda: True)  # the others train
            self._evaluations.begin()

    def update_membership(self) -> None:
        """Gets this round's membership, and a new partition if the workers have changed."""
        trainer = self.trainer
        before, trainer.membership = trainer.membership, self._context.peers.membership()
        after = trainer.membership
        if after.partition is not None and after.partition is not before.partition:
            self._context.task.batches.draw_from(after.partition)
        if (changes := dict(self._context.peers.changes())) == self._changes:
            return
        new, self._changes = dict(changes.items() - self._changes.items()), changes
        told = []
        for is_lost, what in ((True, "lost"), (False, "back")):
            if ranks := sorted(rank for rank, change in new.items() if change.is_lost == is_lost):
                told.append(f"worker(s) {', '.join(map(after.name_of, ranks))} {what}")
        text = f"{after.num_workers - len(lost_of(changes))} worker(s): {'; '.join(told)}"
        self._report.note_once({"events": [{"kind": MEMBERS.name, "text": text}]})
        self.choose_evaluator()  # also if a worker was lost and came back within one round

    def evaluate_last(self) -> None:
        """Evaluates the last model, after the log of its round, in place of a worker that is lost."""
        self._report.add(self._evaluations.after_last(is_stopped=self.trainer.stop_request() == STOPPED))

    # ------------------------------------------------------------------------------------------ rounds and steps

    def train_round(self) -> str:
        """Trains one round; returns why it is the last one, in words, or an empty string."""
        trainer, limits = self.trainer, self._run.limits
        self._local_steps()
        stop, done = trainer.stop_request(), limits.rounds_done(trainer.rounds)
        self._page.tell(exchange_begins=True)
        agreed = trainer.company.exchange(bool(stop or (done and trainer.rounds_in_step)))
        # A reason may have arisen while this rank waited for others.
        stop = done or trainer.finished or trainer.stop_request()
        reason = (stop or "another worker asked for it") if agreed or done else ""
        if not reason and trainer.company.leaves():
            trainer.has_left, reason = True, LEFT
        loss = self._report.last_loss()
        if warning := self._first_steps.warning(trainer.steps, trainer.seen.total, loss):
            logging.warning("warning: worker %s: %s", trainer.membership.name_of(trainer.membership.rank), warning)
        if reason:
            trainer.measure.stop()  # what comes now delays no training
            value = self._evaluations.after_last(is_stopped=reason == STOPPED)
        else:
            value = self._evaluations.after_round()
        self._report.write(trainer.samples, loss, value)
        if not reason:
            self._page.next_round()
        self._save_if_due(last=bool(reason))
        return reason

    def _local_steps(self) -> None:
        """Does the round's local steps."""
        trainer, measure, batches = self.trainer, self.trainer.measure, self._context.task.batches
        trainer.samples, trainer.steps, trainer.emulation.round_s = 0, 0, 0.0
        trainer.checks.begin_round()
        trainer.begin_round()
        while True:
            trainer.emulation.begin_step()
            measure.enter(GET_BATCH)
            batch = next(batches)
            trainer.begin_step(batch.size)
            measure.enter(FORWARD_BACKWARD)
            trainer.seen.own += batch.size
            is_complete = trainer.local_step(batch)
            size = trainer.step_samples
            trainer.seen.own += size - batch.size
            if not is_complete:
                trainer.seen.own -= size
                batches.put_back(batch)
                measure.abandon_step()
                return
            trainer.steps += 1
            trainer.emulation.end_step()
            if trainer.step_is_bad:
                trainer.seen.own -= size
            else:
                trainer.progress.add_step(size, trainer.step_s)
                trainer.samples += size
            if trainer.ready():
                return
            self._page.tell()

    def _save_if_due(self, last: bool) -> None:
        trainer, checkpoints = self.trainer, self._run.checkpoints
        if checkpoints is None or not checkpoints.is_due(trainer.rounds, last):
            return
        trainer.measure.enter(CHECKPOINT)
        if trainer.membership.rank == 0:
            trainer.save_server()
        checkpoints.write(trainer.rounds, trainer_state.state_of(trainer))

    def _warm_up(self) -> None:
        """Three test steps that change no state. The first sets up memory and kernels. The step time is the shorter of
        the others, as other load only slows a step."""
        trainer, task = self.trainer, self._context.task
        statistics = trainer.parameters.statistics()
        busy = self._run.pacing.busy if self._run.pacing is not None else lambda: 0.0
        times_s, busy_s = [], []
        for _ in range(3):
            trainer.emulation.begin_step()
            trainer.begin_step(task.warm_up_batch.size)
            trainer.compute_gradients(task.warm_up_batch)
            trainer.wait_for_gradients()
            times_s.append(trainer.emulation.step_age_s)
            busy_s.append(busy())
        trainer.step_s = min(times_s[1:])
        self._test_busy_s = (busy_s[-1] - busy_s[0]) / 2  # the mean, since the counter may have coarse ticks
        trainer.parameters.set_statistics(statistics)
