"""The base of all algorithms: the hooks that the loop calls, and the steps and checks that algorithms share."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from algorithm_row import AlgorithmFlags
from esync.measure import LOCAL_UPDATE, Measure, Smoothed
from esync.progress import Progress
from esync.queries import FORWARD_SHARE
from trainer.context import Context
from trainer.draws import FORWARD, Draws
from trainer.emulation import Emulation
from trainer.membership import Begin
from trainer.nan_guard import NumberChecks
from trainer.network import Batch, Parameters, Passes
from trainer.steps import Seen, Stepper, clip, which_decay
from utils import STOPPED

if TYPE_CHECKING:
    from trainer.transport.protocol import Counted


class Trainer:
    """One worker's state and its algorithm. Subclasses override the hooks, which the loop calls in their order here:

        restore_own, broadcast; each round: begin_round, (local_step, ready) until the latter is true, synchronize,
        global_model, notes, own_state; end

    An override calls the base's hook where that does something. Attributes and methods without an underscore, of a base
    too, are for subclasses. Where workers come or go, `membership` is another object than in the round before.
    """

    rounds_in_step = True  # synchronous: all workers do the same number of rounds

    def __init__(self, context: Context, settings: AlgorithmFlags) -> None:
        self.context = context
        self.learning_rate = settings.rate
        self.clock = context.run.clock
        self.membership = context.peers.membership()  # of this round
        self.parameters = Parameters(context.task.network)
        self.stepper = Stepper(context.run.rule, which_decay(self.parameters.weights))
        self.seen = Seen()  # samples used by all workers together
        self.passes: Passes = (context.task.passes or _passes_of)(self)
        self.checks = NumberChecks(context.run.max_bad_steps, self.parameters)
        self.emulation = Emulation(context.run.speed, self.clock, self.wait_for_gradients)
        self.exchange: Counted | None = None  # counts bytes sent and received; None: not distributed
        self.measure: Measure  # the log, from the first round on
        self.progress = Progress(context.task.metric)
        self.company = context.peers.company(self)
        self.begin = Begin()
        self.rounds = 0  # begun so far, also before a resume
        self.steps = 0  # local ones in this round
        self.samples = 0  # in the good ones of these
        self.local_steps = 0  # of a round, each with a log entry of its own; 0: a single one, or `ready` decides
        self.step_samples = 0  # of this step; the user's own loop may correct them in the forward pass
        self.step_s = 0.0  # of the last complete local step, at first of a test step, or of the slowest worker
        self.transmission = Smoothed()  # seconds of this worker's own push and pull, where they are timed
        self.step_is_bad = False  # this step is skipped, because its gradients are not finite
        self._statistics_before: list[np.ndarray] = []  # BatchNorm's, before the step
        self._batch_fault: Callable[[], str] = str  # of the step: what is not finite in its batch
        self.weight_of_all = 0.0  # the workers' weights in the last sum, added up; 0: no worker contributed
        self.pauses = False  # all workers have agreed to form a new generation after the round
        # Called during a step, returns whether to abandon it; None: no step can be abandoned.
        self.give_up: Callable[[], bool] | None = None
        self.finished = ""  # why the algorithm itself ends the job, in words
        self.wants_end = ""  # why the user's own loop wants the job to end, in words
        self.is_evaluator = True  # this worker evaluates the model
        self.has_left = False  # this worker has left while the others continue

    # ---------------------------------------------------------------------------------------------- the hooks

    def restore_own(self, state: Mapping[str, Any]) -> None:
        """Called once, where a checkpoint is resumed: takes back what `own_state` has saved."""

    def broadcast(self) -> None:
        """Called once, before the first round, and again if a worker is lost meanwhile: gives every rank the initial
        parameters of rank 0, or those of the checkpoint. `begin` says whether the job is new."""

    def begin_round(self) -> None:
        """Called once a round, before its first local step."""

    def local_step(self, batch: Batch) -> bool:
        """Called for each batch: computes the gradients, checks them (`gradients_are_good`) and uses them locally.
        Returns False if the step was abandoned (`give_up`); it must leave no trace."""
        raise NotImplementedError

    def ready(self) -> bool:
        """Called after each local step that was not abandoned: whether the round's local steps are done. By default by
        `local_steps`."""
        if self.local_steps:
            self.measure.next_step()
        return self.steps >= self.local_steps

    def synchronize(self, wants_stop: bool) -> bool:
        """Called once a round, and again, from the start, with other workers if one is lost before the exchange is
        done: until then it must change no model. Exchanges gradients or updates; returns whether the ranks agree to
        stop after this round."""
        raise NotImplementedError

    def global_model(self) -> AbstractContextManager[None]:
        """Called before each evaluation and each saved model: a context in which the network holds the model for that.
        By default it always does."""
        return contextlib.nullcontext()

    def notes(self) -> dict[str, Any]:
        """Called once a round: further entries for its log."""
        return {}

    def own_state(self) -> dict[str, Any]:
        """Called at each checkpoint: the algorithm's own state (trainer_state.py adds the rest), plain values and numpy
        arrays."""
        return {}

    def save_server(self) -> None:
        """Called at each checkpoint, on rank 0: has the hub write one too."""

    def end(self) -> None:
        """Called once, after this worker's last round: cleanup."""

    # ---------------------------------------------------------------------------------- for algorithms and loop

    def stop_request(self) -> str:
        """Why this worker wants all to stop, in words; empty: it does not."""
        if self.wants_end:
            return self.wants_end
        limits, progress = self.context.run.limits, self.progress
        value = progress.newest if limits.evaluations == 1 else progress.mean(limits.evaluations)
        if reached := limits.reached(self.measure.elapsed_s, value):
            return reached
        return STOPPED if self.context.run.stop_requested() else ""

    # ------------------------------------------------------------------------------------------------- steps

    def begin_step(self, samples: int) -> None:
        self.step_samples, self.step_is_bad = samples, False
        self.emulation.set_size(samples)

    def compute_gradients(self, batch: Batch, weight: float = 1.0) -> bool:
        """Begins to compute `weight` times the gradients of the loss summed over the batch. The weight is
        `membership.weight` if workers exchange the gradients. Returns False if the step was abandoned after the forward
        pass."""
        if self.give_up or self.checks.are_on:  # passes change BatchNorm's statistics
            self._statistics_before = self.parameters.statistics()
        self._batch_fault = batch.fault
        self.passes.forward(batch)
        if self.give_up:
            self.passes.wait_for_loss()
            self.emulation.pad(FORWARD_SHARE)
            if self.give_up():
                return False
        self.passes.backward()
        self.context.task.batches.prepare()
        if weight != 1:
            for gradient in self.parameters.gradients:
                gradient *= weight
        self.emulation.pad(1.0)
        self.emulation.delay_step()
        return True

    def wait_for_gradients(self) -> None:
        """Waits for the passes only, not for transfers under way."""
        _ = self.parameters.gradients

    def take_step(self, *, num_batches: float = 1) -> None:
        """Takes an optimizer step (steps.py) on a sum of `num_batches` gradients, with the schedule applied; called for
        each good local step, or each good sum. An algorithm that corrects gradients overrides it."""
        rate = self.learning_rate * self.schedule_factor
        self.stepper.step(self.parameters.weights, self.parameters.gradients, rate, num_batches)

    def clip_gradients(self, weight: float) -> None:
        """Clips the gradients before a server takes the step; `weight` as in compute_gradients."""
        rule = self.context.run.rule
        if rule.clip_norm:
            clip(self.parameters.gradients, rule.clip_norm, rule.batch_size * weight)

    @property
    def schedule_factor(self) -> float:
        """Factor on the step size, from the samples so far."""
        return self.context.run.rule.schedule.factor(self.seen.total)

    def whole_step(self, batch: Batch) -> bool:
        """A timed step on local weights; returns False, with no state changed, if abandoned."""
        if not self.compute_gradients(batch):
            return False
        self.wait_for_gradients()
        if self.give_up and self.give_up():
            self.parameters.set_statistics(self._statistics_before)
            return False
        self.measure.enter(LOCAL_UPDATE)
        computed_s = self.emulation.step_age_s
        if self.gradients_are_good():
            self.take_step()
        self.step_s = self.emulation.step_age_s
        self.emulation.update_s = self.step_s - computed_s
        return True

    # ------------------------------------------------------------------------------------------ number checks

    def gradients_are_good(self, largest: float = math.inf) -> bool:
        """Checks the step's gradients (nan_guard.py); after a bad step restores BatchNorm's statistics. `largest` is
        the largest magnitude that the transport can carry."""
        place = self._place(self.steps + 1)
        self.step_is_bad = not self.checks.gradients_are_good(place, self._batch_fault, largest)
        if self.step_is_bad:
            self.parameters.set_statistics(self._statistics_before)
        return not self.step_is_bad

    def update_is_good(self, update: Sequence[np.ndarray], largest: float = math.inf) -> bool:
        """Checks the update that this worker is about to send (nan_guard.py)."""
        return self.checks.update_is_good(self._place(self.steps), update, largest)

    def _place(self, step: int) -> str:
        return f"worker {self.membership.name_of(self.membership.rank)}, round {self.rounds}, step {step}"


def _passes_of(trainer: Trainer) -> Passes:
    task = trainer.context.task
    draws = Draws(task.network.seed, trainer.context.config.seed, trainer.membership.rank, FORWARD)
    return task.network.passes(task.loss, draws, lambda: trainer.seen.own)
