"""The base of all algorithms: the hooks that the loop calls, and the steps, checks and clocks that they share."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from trainer.context import Context
from trainer.device import NetworkPasses
from trainer.emulation import FORWARD_SHARE, Emulation
from trainer.engine import mx
from trainer.finite import NumberChecks, Unpack
from trainer.parameters import Parameters, wait_for
from trainer.progress import Accuracy, Progress
from trainer.run_logs.measure import LOCAL_UPDATE, Measure
from trainer.steps import Seen, Stepper, which_decay
from utils import STOPPED

if TYPE_CHECKING:
    from trainer.recovering import Recovers
    from trainer.transport.protocol import Counted


class Trainer:
    """One worker's state, and what its algorithm does in a round. Subclasses give the hooks.

    Attributes:
        membership: of this round.
        exchange: counts the bytes that travel, in a distributed algorithm.
        rounds: that are begun; a resumed job counts those before it.
        steps: local steps in this round.
        seen: samples that all workers have trained on.
        step_samples: of this step.
        step_s: seconds of the last complete local step, at first of a test step.
        step_is_bad: nothing of this step may be left.
        present: share of the last sum that was not missing; 0: all workers had nothing to give.
        pauses: all workers have agreed to come together again after the round.
        give_up: asked in the middle of a step, says whether to abandon it; None where no step can be abandoned.
        finished: why the algorithm itself ends the job, in words.
        resumed_s: seconds of the job at the checkpoint from which it resumes.
        resumes: the job continues from a checkpoint, of this worker or of another one.
        is_first_of_resumed: this round is the first since then.
        has_left: this worker has left while the others continue.
    """

    # Where workers wait for each other, the end of one must be the end of all.
    rounds_in_step = True

    def __init__(self, context: Context) -> None:
        self.context = context
        self.clock = context.run.clock
        self.membership = context.peers.membership()
        self.parameters = Parameters(context.task.network)
        self.stepper = Stepper(context.run.rule, which_decay(self.parameters.weights))
        self.seen = Seen()
        self.passes = context.task.passes or NetworkPasses(context.task.network)
        self.checks = NumberChecks(context.run.max_bad_steps, self.parameters)
        self.emulation = Emulation(context.run.speed, self.clock)
        self.exchange: Counted | None = None
        self.measure: Measure  # the log, from the first round on
        self.progress = Progress()
        self.accuracy = Accuracy()
        self.recovery: Recovers | None = None
        self.rounds = self.steps = self.step_samples = 0
        self.step_s = 0.0
        self.step_is_bad = False
        self._statistics_before: list[mx.nd.NDArray] = []  # this step
        self.present = 1.0
        self.pauses = False
        self.give_up: Callable[[], bool] | None = None
        self.finished = ""
        self.resumed_s = 0.0
        self.is_first_of_resumed = False
        self.is_evaluator = True
        self.has_left = False

    # ---------------------------------------------------------------------------------------------- the hooks

    def broadcast(self) -> None:
        """Gives every rank the initial parameters of rank 0."""

    def begin_round(self) -> None:
        """Called before the first local step of each round."""

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """One step on one batch: the gradient, and what the algorithm does with it locally. Asks `gradients_are_good`.

        Returns False if the step was given up, because the round turned out to be over; nothing of it may be left.
        """
        raise NotImplementedError

    def ready(self) -> bool:
        """Whether the round's local steps are done."""
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Exchanges parameters with the other ranks; returns whether the ranks agree to stop after this round."""
        raise NotImplementedError

    def global_model(self) -> AbstractContextManager[None]:
        """Puts the model that is evaluated and saved into the network for the duration; in most modes it is there."""
        return contextlib.nullcontext()

    def notes(self) -> dict[str, Any]:
        """Further entries for the log of this round."""
        return {}

    def own_state(self) -> dict[str, Any]:
        """State of the algorithm in a checkpoint, in addition to trainer_state.py's: plain values, arrays of numpy."""
        return {}

    def restore_own(self, state: Mapping[str, Any]) -> None:
        """Restores `own_state`; called before `broadcast`."""

    def save_server(self) -> None:
        """Called on rank 0 at a checkpoint: tells the parameter server to write its own."""

    def end(self) -> None:
        """Called after all workers' last rounds; cleanup that cannot fail."""

    # --------------------------------------------------------------------------------- what an algorithm asks

    @property
    def resumes(self) -> bool:
        """Asked before training begins: whether the job continues from a checkpoint, of this worker or another one."""
        checkpoints = self.context.run.checkpoints
        return checkpoints is not None and (checkpoints.goes_on or self.rounds > 0)

    @property
    def round_is_broken(self) -> bool:
        """Whether the round cannot end with the workers with which it began."""
        return self.recovery is not None and self.recovery.is_broken

    @property
    def good_steps(self) -> int:
        """Local steps in this round that were not skipped."""
        return self.steps - self.checks.steps.in_round

    def stop_request(self) -> str:
        """Why this worker wants all to stop, in words; empty if it does not."""
        if reached := self.context.run.limits.reached(self.measure.elapsed_s, self.accuracy.newest):
            return reached
        return STOPPED if self.context.run.stop_requested() else ""

    # ------------------------------------------------------------------------------------------------- steps

    def begin_step(self, samples: int) -> None:
        """The step that has begun is one of so many samples."""
        self.step_samples, self.step_is_bad = samples, False
        self.emulation.set_size(samples)

    def compute_gradients(self, images: mx.nd.NDArray, labels: mx.nd.NDArray, weight: float = 1.0) -> bool:
        """Gradients of the loss summed over the batch. Only begins: wait for them before you time them.

        Returns False if the step was given up after the forward pass.

        Args:
            weight: factor on the gradients: `membership.weight` where they are what the workers exchange.
        """
        if self.give_up or self.checks.are_made:  # the passes move BatchNorm's statistics
            self._statistics_before = self.parameters.statistics()
        self.passes.forward(images, labels)
        if self.give_up:
            self.passes.wait_for_loss()
            self.emulation.pad(FORWARD_SHARE, self.wait_for_gradients)
            if self.give_up():
                return False
        self.passes.backward(weight)
        self.emulation.pad(1.0, self.wait_for_gradients)
        self.emulation.delay_step(self.wait_for_gradients)
        return True

    def wait_for_gradients(self) -> None:
        """Waits for the passes that were begun, and for nothing that may be under way beside them."""
        wait_for(self.parameters.gradients)

    def take_step(self, learning_rate: float, num_batches: float = 1) -> None:
        """Begins a step of the weights along their gradients, as the flags say (steps.py).

        Args:
            learning_rate: eta of one batch's summed loss, before the schedule.
            num_batches: whose gradients were summed.
        """
        self.stepper.step(
            self.parameters.weights, self.parameters.gradients, learning_rate * self.schedule_factor, num_batches
        )

    @property
    def schedule_factor(self) -> float:
        """Factor on the step size after all samples that the job has trained on."""
        return self.context.run.rule.schedule.factor(self.seen.total)

    def whole_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray, learning_rate: float) -> bool:
        """A step on this worker's own weights, timed; False if it was given up, with nothing of it left."""
        if not self.compute_gradients(images, labels):
            return False
        self.wait_for_gradients()
        if self.give_up and self.give_up():
            self.parameters.set_statistics(self._statistics_before)
            return False
        self.measure.enter(LOCAL_UPDATE)
        if self.gradients_are_good():
            self.take_step(learning_rate)
            wait_for(self.parameters.weights)
        self.step_s = self.emulation.step_age_s
        return True

    def send(
        self,
        begin: Callable[[Sequence[mx.nd.NDArray]], None],
        arrays: Sequence[mx.nd.NDArray],
        stage: str,
        computed: Callable[[], None] = lambda: None,
    ) -> None:
        """Begins to send all arrays as they are computed. Time counts for `stage` from when the last of them was.

        Over an emulated slow link all of them leave later, so that no other worker sees them before.

        Args:
            computed: called when the last of them was.
        """
        delay_s = self.emulation.link_delay_s()
        if not delay_s:
            begin(arrays)
        wait_for(arrays)
        computed()
        self.measure.enter(stage)
        if delay_s:
            self.clock.sleep(delay_s)
            begin(arrays)

    # ------------------------------------------------------------------------------------------ number checks

    def gradients_are_good(self, largest: float = math.inf) -> bool:
        """Checks the step's gradients as NumberChecks says. A bad step leaves nothing but these, which are no good.

        Args:
            largest: magnitude that the transport can carry.
        """
        self.step_is_bad = not self.checks.gradients_are_good(self._place(self.steps + 1), largest)
        if self.step_is_bad:
            self.parameters.set_statistics(self._statistics_before)
        return not self.step_is_bad

    def update_is_good(self, update: Sequence[mx.nd.NDArray], unpack: Unpack = list, largest: float = math.inf) -> bool:
        """Checks what this worker is about to send, as NumberChecks says."""
        return self.checks.update_is_good(self._place(self.steps), update, unpack, largest)

    def _place(self, step: int) -> str:
        return f"worker {self.membership.name_of(self.membership.rank)}, round {self.rounds}, step {step}"
