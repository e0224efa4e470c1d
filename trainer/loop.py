"""The one loop of all algorithms: a round is one or more local steps, then one synchronisation."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from algorithms import MEMBERS
from trainer.bad_numbers import present
from trainer.beside import Beside
from trainer.context import Context
from trainer.coordinator.queries import FORWARD_SHARE
from trainer.device import NetworkPasses
from trainer.engine import mx
from trainer.evaluation.evaluations import Evaluations
from trainer.finite import NumberChecks, Unpack
from trainer.parameters import Parameters, wait_for
from trainer.progress import Progress
from trainer.run_logs.pace import EMULATED
from trainer.run_logs.round_log import CHECKPOINT, EVALUATED, FORWARD_BACKWARD, GET_BATCH, LOCAL_UPDATE, Measure
from trainer.step_size import FirstSteps
from trainer.steps import Seen, Stepper, which_decay
from trainer.straggler_trace import COMPUTE, NETWORK, SAMPLE, extra_time
from trainer.survival import trainer_state
from trainer.transport.protocol import Counted
from utils import DIVERGED, LEFT, STOPPED, JobError


class Trainer:
    """Trains until a limit, a target or a signal. Subclasses give the hooks; the loop knows no algorithm."""

    # Where workers wait for each other, the end of one must be the end of all.
    rounds_in_step = True
    # Whether a step can be given up between its forward and its backward pass.
    can_abandon = False

    def __init__(self, context: Context) -> None:
        self.context = context
        self.clock = context.clock
        self.membership = context.membership()  # of this round
        self.parameters = Parameters(context.network)
        self.stepper = Stepper(context.rule, which_decay(self.parameters.weights))
        self.seen = Seen()  # samples that all workers have trained on
        self._passes = context.passes or NetworkPasses(context.network)
        self.exchange: Counted | None = None
        self.rounds = 0  # those before a resumed job among them
        self._has_begun = False  # to train
        self.steps = 0  # local steps in this round
        self.is_evaluator = True
        self.has_left = False  # alone, while the others go on
        self._told_s = -math.inf  # when the console last got a line of a round, since training began
        self._step_began = 0.0
        self.step_samples = 0  # of this step
        self.checks = NumberChecks(context.max_bad_steps, self.parameters)
        self._first_steps = FirstSteps(context.config, context.classes)
        self.step_is_bad = False  # so nothing of it may be left
        self._statistics_before: list[mx.nd.NDArray] = []  # this step
        self._shortest_s = 0.0  # that this step takes at least: emulates a slower device
        self._extra_s = 0.0  # on top of that, where a straggler is emulated
        self._emulated_s = 0.0  # of all complete steps of this round
        self._test_busy_s = 0.0  # that cores computed for a test step, where that counts
        # Of the last complete local step, and of a test step before the first; kept where a state server is told of it.
        self.step_s = 0.0
        self.progress = Progress()
        self.resumed_s = 0.0  # of the job, when the checkpoint was taken that it goes on from
        self._losses: list[dict[str, str]] = []  # events of this round: workers without which the others go on
        self._went_on: trainer_state.ResumePoint | None = (
            None  # to be logged once, where the job goes on from a checkpoint
        )
        self.finished = ""  # why the algorithm itself ends the job, in words
        self.present = 1.0  # share of the last sum that was not missing; 0: no worker had anything to give
        self.pauses = False  # all have agreed to come together anew after the round
        self.recovery = context.recovery(self) if context.recovery is not None else None
        self.evaluations = Evaluations(self, context)

    # ---------------------------------------------------------------------------------------------- the hooks

    def broadcast(self) -> None:
        """Gives every rank the initial parameters of rank 0."""

    def open_measure(self, folder: Path) -> Measure:
        """The log of the rounds to come, behind those of a job that goes on."""
        before = trainer_state.read_back(self, folder) if self.goes_on else trainer_state.ResumePoint()
        self._went_on = before if self.goes_on and (before.elapsed_s or not self.context.config.survives) else None
        return Measure(folder, self.clock.now, before.rounds, before.elapsed_s, as_lines=self.context.logs_lines)

    @property
    def goes_on(self) -> bool:
        """Asked before training begins: whether the job goes on from a checkpoint, of this worker or of another one."""
        return self.context.checkpoints is not None and (self.context.checkpoints.goes_on or self.rounds > 0)

    @property
    def job_age_s(self) -> float | None:
        """Of the job, where it was at work already when this worker came; None where all began together."""
        return None if self.recovery is None else self.recovery.job_age_s

    @property
    def round_is_broken(self) -> bool:
        """Whether the round cannot end with the workers with whom it began."""
        return self.recovery is not None and self.recovery.is_broken

    def beside(self, wants_stop: bool, numbers: Sequence[float], is_missing: bool = False) -> Beside:
        """What this worker says beside the arrays of a sum.

        Args:
            is_missing: it has nothing to give.
        """
        return Beside(
            float(wants_stop),
            tuple(numbers),
            None if self.context.rule.schedule.is_constant else float(self.seen.own),
            float(self.membership.counted * is_missing) if self.checks.are_made else None,
            None if self.recovery is None else float(self.recovery.wants_pause),
        )

    def take_beside(self, sums: Beside) -> bool:
        """Takes what all workers have said; returns whether any of them wants to stop."""
        self.pauses = bool(sums.pause)
        if sums.missing is not None:
            self.present = present(self.membership.counted_of_all, sums.missing)
        if sums.samples is not None:
            self.seen.told(self.seen.of_all + round(sums.samples), self.seen.own)
        return bool(sums.stop)

    @property
    def is_first_of_resumed(self) -> bool:
        """Whether this round is the first since it went on from one."""
        return self._went_on is not None

    def own_state(self) -> dict[str, Any]:
        """What the algorithm needs of this worker to go on, beside what all do (trainer_state.py): plain values, and
        arrays of numpy."""
        return {}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        """Goes on with it; called before `broadcast`."""

    def save_server(self) -> None:
        """Called on rank 0 where a checkpoint is taken: has the parameter server write its own."""

    def come_together(self) -> None:
        """Called when this worker is ready to train: afterwards all have the same model."""
        self.broadcast()
        if self.context.pacing is not None:
            for line in self.context.pacing.before_training(self.step_s, self._test_busy_s, self._shortest_s):
                logging.warning("warning: %s", line)
        self.choose_evaluator()

    def begin_round(self) -> None:
        """Called before the first local step of each round."""

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """One step on one batch: the gradient, and what the algorithm does with it locally. Asks `gradients_are_good`.

        Returns False if the step was given up, because the round turned out to be over; nothing of it may be left.
        """
        raise NotImplementedError

    def round_is_over(self) -> bool:
        """Asked in the middle of a step where `can_abandon`: whether to give it up."""
        return False

    def ready(self) -> bool:
        """Whether the round's local steps are done."""
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Exchanges parameters with the other ranks; returns whether the ranks agree to stop after this round."""
        raise NotImplementedError

    def computed(self) -> None:
        """Called when what `send` sends is computed, and on its way unless an emulated slow link holds it back."""

    @contextlib.contextmanager
    def global_model(self) -> Iterator[None]:
        """For the while, the network holds the model that is evaluated and saved: in most modes it does anyway."""
        yield

    def take_traffic(self) -> dict[str, int]:
        """Bytes pushed and pulled in this round, under their names in its log."""
        return self.exchange.take_traffic() if self.exchange is not None else {}

    def notes(self) -> dict[str, Any]:
        """What else the log of this round says."""
        return {}

    def evaluation_begins(self) -> None:
        """Called where this worker evaluates, just before."""

    def part(self) -> None:
        """Called after the last round; may wait for the other workers' last rounds."""

    def end(self) -> None:
        """Called then, where nothing can fail any more."""

    # ----------------------------------------------------------------------------------------------- the loop

    def run(self, open_log: Callable[[], Path]) -> str:
        """Trains; returns the reason for the end in words.

        Args:
            open_log: empties and returns the log folder. Called when all ranks are there and training begins.
        """
        self._warm_up()
        trainer_state.restore(self)
        if self.context.checkpoints is not None:
            self.context.checkpoints.begin()
        (self.recovery or self).come_together()
        if self.context.checkpoints is not None:
            self.context.checkpoints.all_have_begun(came_late=self.job_age_s is not None)
        self.measure = (self.recovery or self).open_measure(open_log())
        if self.context.pacing is not None:
            self.context.pacing.begin(self.measure.elapsed_s)
        self.progress.begin(lambda: self.measure.elapsed_s, self.is_evaluator)
        self.evaluations.begin()
        self._has_begun = True
        while True:
            self.rounds += 1
            self.take_place()
            reason = self._train_round()
            if reason:
                (self.recovery or self).part()
                self.end()
                if self.context.checkpoints is not None:
                    self.context.checkpoints.close()
                self.evaluations.end()
                return reason

    def choose_evaluator(self) -> None:
        """Agrees with the others on who evaluates; whoever has done so goes on."""
        was_evaluator = self.is_evaluator and self._has_begun
        self.is_evaluator = self.context.is_evaluator(0.0 if was_evaluator else self.step_s)
        if self._has_begun and self.is_evaluator and not was_evaluator:
            self.progress.begin(lambda: self.measure.elapsed_s, evaluates=True)
            self.evaluations.begin()

    def take_place(self) -> None:
        """Asks who takes part in the round; where that has changed, this worker's samples may have too."""
        before, self.membership = self.membership, self.context.membership()
        partition = self.membership.partition
        if partition is not None and partition is not before.partition:
            self.context.batches.draw_from(partition)
        if new := self.membership.lost - before.lost:
            left = self.membership.num_workers - len(self.membership.lost)
            names = ", ".join(self.membership.name_of(rank) for rank in sorted(new))
            self._losses.append({"kind": MEMBERS.name, "text": f"{left} worker(s): worker(s) {names} lost"})
            self.choose_evaluator()

    def _train_round(self) -> str:
        measure, samples, self.steps, self._emulated_s = self.measure, 0, 0, 0.0
        self.checks.begin_round()
        self.begin_round()
        while True:
            self._begin_step()
            measure.enter(GET_BATCH)
            batch = next(self.context.batches)
            self._set_size(len(batch.labels))
            images, labels = self.context.feed(batch)
            measure.enter(FORWARD_BACKWARD)
            self.seen.own += len(batch.labels)
            self.step_is_bad = False
            if not self.local_step(images, labels):
                self.seen.own -= len(batch.labels)
                self.context.batches.put_back(batch)
                measure.abandon_step()
                break
            self.steps += 1
            self._emulated_s += self._shortest_s + self._extra_s
            if self.step_is_bad:
                self.seen.own -= len(batch.labels)
            else:
                self.progress.add_step(len(batch.labels), self.step_s)
                samples += len(batch.labels)
            if self.ready():
                break
        stop, done = self._stop_request(), self.context.limits.rounds_done(self.rounds)
        agreed = (self.recovery or self).synchronize(bool(stop or (done and self.rounds_in_step)))
        # Whatever came while this rank waited for the others is a reason too.
        stop = done or self.finished or self._stop_request()
        reason = (stop or "another worker asked for it") if agreed or done else ""
        if not reason and self.recovery is None and self.context.leaves():
            self.has_left, reason = True, LEFT
        loss = self._last_loss()
        if warning := self._first_steps.warning(self.steps, self.seen.total, loss):
            logging.warning("warning: worker %s: %s", self.membership.name_of(self.membership.rank), warning)
        accuracy = self.evaluations.after_round(last=bool(reason), is_stopped=reason == STOPPED)
        self._write(samples, loss, accuracy)
        self._save_if_due(last=bool(reason))
        return reason

    def _save_if_due(self, last: bool) -> None:
        checkpoints = self.context.checkpoints
        if checkpoints is None or not checkpoints.is_due(self.rounds, last):
            return
        self.measure.enter(CHECKPOINT)
        if self.membership.rank == 0:
            self.save_server()
        checkpoints.save(self.rounds, trainer_state.state_of(self))

    def _stop_request(self) -> str:
        """Why this worker wants all to stop, in words; empty if it does not."""
        if reached := self.context.limits.reached(self.measure.elapsed_s, self.evaluations.accuracy):
            return reached
        return STOPPED if self.context.stop_requested() else ""

    def compute_gradients(self, images: mx.nd.NDArray, labels: mx.nd.NDArray, weight: float = 1.0) -> bool:
        """Gradients of the loss summed over the batch. Only begins: wait for them before you time them.

        Returns False if the step was given up after the forward pass.

        Args:
            weight: factor on the gradients: `membership.weight` where they are what the workers exchange.
        """
        if self.can_abandon or self.checks.are_made:  # the passes move BatchNorm's statistics
            self._statistics_before = self.parameters.statistics()
        self._passes.forward(images, labels)
        if self.can_abandon:
            self._passes.wait_for_loss()
            self._pad(FORWARD_SHARE)
            if self.round_is_over():
                return False
        self._passes.backward(weight)
        self._pad(1.0)
        self._extra_s = self.extra_time(COMPUTE) + self.step_samples * self.extra_time(SAMPLE)
        if self._extra_s:
            self.wait_for_gradients()
            self.clock.sleep(self._extra_s)
        return True

    def extra_time(self, kind: str) -> float:
        """Seconds by which a step, or a push or a pull, takes longer now: an emulated straggler. Any thread may ask."""
        return extra_time(self.context.trace, kind, self.measure.elapsed_s) if self._has_begun else 0.0

    def link_delay(self) -> float:
        """Seconds by which an emulated slow link makes the push or the pull longer that begins now."""
        return self.extra_time(NETWORK)

    def wait_for_slow_link(self) -> None:
        """Takes the time by which an emulated slow link makes the push or the pull longer that begins now."""
        self.clock.sleep(self.link_delay())

    def send(
        self, begin: Callable[[Sequence[mx.nd.NDArray]], None], arrays: Sequence[mx.nd.NDArray], stage: str
    ) -> None:
        """Begins to send all arrays as they are computed. Time counts for `stage` from when the last of them was.

        Over a slow link all of them leave later, so that nobody else sees them before.
        """
        delay_s = self.link_delay()
        if not delay_s:
            begin(arrays)
        wait_for(arrays)
        self.computed()
        self.measure.enter(stage)
        if delay_s:
            self.clock.sleep(delay_s)
            begin(arrays)

    def take_step(self, learning_rate: float, num_batches: float = 1) -> None:
        """Begins a step of the weights along their gradients, as the flags say (steps.py).

        Args:
            learning_rate: eta of one batch's summed loss, before the schedule.
            num_batches: whose gradients were summed.
        """
        rate = learning_rate * self.context.rule.schedule.factor(self.seen.total)
        self.stepper.step(self.parameters.weights, self.parameters.gradients, rate, num_batches)

    def whole_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray, learning_rate: float) -> bool:
        """A step on this worker's own weights, timed; False if it was given up, with nothing of it left."""
        if not self.compute_gradients(images, labels):
            return False
        self.wait_for_gradients()
        if self.can_abandon and self.round_is_over():
            self.parameters.set_statistics(self._statistics_before)
            return False
        self.measure.enter(LOCAL_UPDATE)
        if self.gradients_are_good():
            self.take_step(learning_rate)
            wait_for(self.parameters.weights)
        self.step_s = self.clock.now() - self._step_began
        return True

    def _begin_step(self) -> None:
        self._step_began = self.clock.now()

    def _set_size(self, samples: int) -> None:
        """The step that has begun is one of so many samples."""
        self.step_samples = samples
        shortest_s = self.context.min_step_time_s + samples * self.context.sample_time_s
        self._shortest_s = shortest_s * self.context.pace()

    def _pad(self, share: float) -> None:
        """Emulates a slower device: waits until a share of the step's shortest time has passed."""
        if self._shortest_s:
            self.wait_for_gradients()
            self.clock.sleep(self._step_began + share * self._shortest_s - self.clock.now())

    def gradients_are_good(self, largest: float = math.inf) -> bool:
        """Whether the step's gradients are finite, as NumberChecks says, and as large as they may be. Of a step that is
        bad nothing is left but these, which are no good."""
        self.step_is_bad = not self.checks.gradients_are_good(self._place(self.steps + 1), largest)
        if self.step_is_bad:
            self.parameters.set_statistics(self._statistics_before)
        return not self.step_is_bad

    def update_is_good(self, update: Sequence[mx.nd.NDArray], unpack: Unpack = list, largest: float = math.inf) -> bool:
        """Whether what this worker is about to send is finite, as NumberChecks says, and as large as it may be."""
        return self.checks.update_is_good(self._place(self.steps), update, unpack, largest)

    def _place(self, step: int) -> str:
        return f"worker {self.membership.name_of(self.membership.rank)}, round {self.rounds}, step {step}"

    @property
    def good_steps(self) -> int:
        """Local steps in this round that were not skipped."""
        return self.steps - self.checks.steps.in_round

    def wait_for_gradients(self) -> None:
        """Waits for the passes that were begun, and for nothing that may be under way beside them."""
        wait_for(self.parameters.gradients)

    def _warm_up(self) -> None:
        """Three passes with nothing kept. The first sets up memory and kernels; of the others the shorter tells the
        time of a step, since what else the machine does only makes one longer."""
        statistics = self.parameters.statistics()
        busy = self.context.pacing.busy if self.context.pacing is not None else lambda: 0.0
        times_s, busy_s = [], []
        for _ in range(3):
            self._begin_step()
            self._set_size(len(self.context.warm_up_batch.labels))
            self.compute_gradients(*self.context.feed(self.context.warm_up_batch))
            mx.nd.waitall()
            times_s.append(self.clock.now() - self._step_began)
            busy_s.append(busy())
        self.step_s = min(times_s[1:])
        self._test_busy_s = (busy_s[-1] - busy_s[0]) / 2  # it may count in ticks, so the mean of both
        self.parameters.set_statistics(statistics)

    def _last_loss(self) -> float | None:
        """Of the last batch, None where it is not finite: that step was skipped.

        Asked before the model is evaluated and saved: where nobody looks at steps, one without a loss is not worth it.
        """
        loss = self._passes.loss()
        if math.isfinite(loss):
            return loss
        if not self.checks.are_made:
            raise JobError(
                f"{DIVERGED}: the loss of round {self.rounds} is {loss}: lower the learning rate (-l or -ll)"
            )
        return None

    def _write(self, samples: int, loss: float | None, accuracy: float | None) -> None:
        about: dict[str, Any] = {} if loss is None else {"loss": loss}
        if skipped := self.checks.skipped(self.steps):
            about["bad_steps"] = skipped
        if late := self.evaluations.take_late():
            about[EVALUATED] = late
        notes = {**self.notes(), **(self.recovery.notes() if self.recovery is not None else {})}
        if self._went_on is not None:
            for key, value in self._went_on.notes().items():
                notes[key] = value + notes[key] if key in notes else value
            self._went_on = None
        if self._losses:
            notes["events"], self._losses = [*self._losses, *notes.get("events", ())], []
        if self.context.pacing is not None:
            about[EMULATED] = self._emulated_s / max(1, self.steps)
        record = self.measure.write_round(samples, accuracy, **about, **self.take_traffic(), **notes)
        if self.context.pacing is not None:
            self.context.pacing.add(record)
        if accuracy is None and record["total_time"] - self._told_s < self.context.tell_every_s:
            return
        self._told_s = record["total_time"]
        parts = [f"round {self.rounds}", f"{self.steps} step(s)", f"{record['total_time']:.1f} s"]
        if loss is not None:
            parts.append(f"loss {loss:.3f}")
        if accuracy is not None:
            parts.append(f"accuracy {accuracy:.4f}")
        if self.context.limits.max_seconds:
            parts.append(f"{max(0.0, self.context.limits.max_seconds - record['total_time']):.0f} s left")
        logging.info(", ".join(parts))
