"""ASGD (Dean et al., "Large scale distributed deep networks", 2012): the server applies each worker's gradient at once,
w <- w - eta * g, with momentum and weight decay as in trainer/steps.py, and answers with the newest weights. No worker
waits for another. With another rule on the server the same loop is DC-ASGD (dcasgd.py), SSP (ssp.py), Ringmaster
(ringmaster.py), Ringleader (ringleader.py) or Rescaled ASGD (rescaled.py).

On MXNet's kvstore an optimizer of MXNet's own is the server (trainer/hub/kvstore_exchange.py).
"""

import pkgutil
from typing import Any

import numpy as np

from flag_values import parse_schedule
from trainer.context import Context
from trainer.hub.hub_trainer import HubTrainer
from trainer.hub.server_part import (
    BAD,
    ENDED,
    KEPT,
    SHOWN,
    WANTS_STOP,
    Answer,
    Answers,
    Arrays,
    Message,
    Served,
    ServerPart,
    restore_steps,
)
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.steps import Rule, Stepper


class AsyncServer:
    """The newest weights, without BatchNorm's statistics, which stay each worker's own.

    A schedule follows the samples of all workers: the number of steps times the batch size. Workers clip their
    gradients themselves.
    """

    keeps_uploads = False

    def __init__(self, job: Served) -> None:
        config, saved = job.config, job.saved
        self.job, self.weights = job, job.model
        self.there = set(range(job.num_workers))  # ranks of workers that are neither lost nor at their end
        self.num_steps: int = saved.get("num_steps", 0)
        self.stop = False  # a worker wants all to stop
        self._learning_rate, schedule = config.learning_rate, parse_schedule(config.lr_schedule)
        self._rule = Rule(None, config.momentum, config.weight_decay, config.batch_size, schedule)
        self._stepper = Stepper(self._rule, job.decays)
        restore_steps(self._stepper, saved, self.weights)

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        if ENDED in message:
            return self.lost(rank)
        self.stop |= message[WANTS_STOP]
        if not arrays and BAD not in message:  # it only wishes to stop, and its answer is on the way
            return {}
        gets_newest = BAD in message or self.use(rank, message, arrays)
        memory = arrays or [np.empty_like(weight) for weight in self.weights]
        return self.due(rank, message, memory if gets_newest else ())

    def due(self, rank: int, message: Message, memory: Arrays) -> Answers:
        """The answers that are due after a message; `memory` is for this worker's."""
        return {rank: self.answer(rank, memory)}

    def use(self, rank: int, message: Message, gradient: Arrays) -> bool:
        """Changes the weights by the algorithm's rule; returns whether the worker gets them."""
        self.step(gradient)
        return True

    def step(self, gradient: Arrays, num_batches: int = 1) -> None:
        """A step on a sum of `num_batches` gradients."""
        self.num_steps += 1
        factor = self._rule.schedule.factor(self.num_steps * self._rule.batch_size)
        self._stepper.step(self.weights, gradient, self._learning_rate * factor, num_batches)

    def answer(self, rank: int, memory: Arrays) -> Answer:
        """The newest weights, in this memory; without memory none."""
        for target, weight in zip(memory, self.weights, strict=False):
            target[...] = weight
        return Answer({KEPT: self.kept(), "stop": self.stop}, memory)

    def joined(self, rank: int) -> Answer:
        self.there.add(rank)
        return self.answer(rank, [np.empty_like(weight) for weight in self.weights])

    def lost(self, rank: int) -> Answers:
        self.there.discard(rank)
        return {}

    def kept(self) -> dict[str, Any]:
        """What a hub that is started again resumes beside the weights."""
        return {"num_steps": self.num_steps}

    def state(self) -> dict[str, Any]:
        return {SHOWN: self.weights, **self.kept(), "steps": self._stepper.state()}


class AsyncTrainer(HubTrainer):
    """A round sends one gradient, and gets the weights. A worker that has done its rounds ends."""

    rounds_in_step = False

    def shared_arrays(self) -> Arrays:
        return self.parameters.weights

    def broadcast(self) -> None:
        self.begin_at_hub()

    def local_step(self, batch: Batch) -> bool:
        self.compute_gradients(batch, self.membership.weight)
        if self.gradients_are_good():
            self.clip_gradients(self.membership.weight)
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Sends the gradient unless it is bad, and takes the weights."""
        gradient = self.parameters.gradients
        self.step_s = self.emulation.step_age_s
        self.measure.enter(GLOBAL_AGGREGATE)
        return self.exchange_gradient(wants_stop, () if self.step_is_bad else gradient)

    def exchange_gradient(self, wants_stop: bool, gradient: Arrays) -> bool:
        """Sends a gradient, or none, and takes the weights; returns whether all stop."""
        message = {WANTS_STOP: wants_stop, "round": self.rounds, "step_s": self.step_s}
        said, weights = self.ask(message if gradient else message | {BAD: True}, gradient)
        if weights:
            self.parameters.replace(weights)
        stop: bool = said["stop"]
        return stop

    def end(self) -> None:
        if not self.has_left:  # else the hub counts it as lost, and it may come back
            self.hub.tell({ENDED: True})


# The server part by the flag that asks for it.
_SERVERS = {
    "use_dcasgd": "trainer.algorithms.dcasgd:DCASGDServer",
    "max_delay": "trainer.algorithms.ringmaster:RingmasterServer",
    "table": "trainer.algorithms.ringleader:RingleaderServer",
}


def server(job: Served) -> ServerPart:
    """The server part of the job's flags."""
    asked = [name for flag, name in _SERVERS.items() if getattr(job.config, flag)]
    part: ServerPart = (pkgutil.resolve_name(asked[0]) if asked else AsyncServer)(job)
    return pkgutil.resolve_name("trainer.algorithms.rescaled:RescaledServer")(part) if job.config.rescale else part


def build(context: Context) -> AsyncTrainer:
    """From the flags."""
    trainer = pkgutil.resolve_name("trainer.algorithms.rescaled:RescaledTrainer") if context.config.rescale else None
    return (trainer or AsyncTrainer)(context)
