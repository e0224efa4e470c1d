"""ASGD (Dean et al., "Large scale distributed deep networks", 2012): the server applies each worker's gradient at once,
w <- w - eta * g, with momentum and weight decay as in trainer/steps.py, and answers with the newest weights. No worker
waits for another. With another rule on the server the same loop is DC-ASGD (dcasgd.py), SSP (ssp.py), Ringmaster
(ringmaster.py), Ringleader (ringleader.py) or Rescaled ASGD (rescaled.py).

On MXNet's kvstore an optimizer of MXNet's own is the server (trainer/hub/kvstore_exchange.py).
"""

from algorithm_row import Algorithm, GradientSteps, end_of_head
from flag_parser import Flag
from flag_values import at_least, zero_or_one
from utils import SetupError


class Settings(GradientSteps):
    """The flags of ASGD, and of other rules on its server."""

    use_dcasgd: int = Flag(0, zero_or_one, "-dcasgd", published=True).means("1 selects DC-ASGD")
    dcasgd_lambda: float = Flag(0.04, at_least(0, float), needs=("use_dcasgd", 1)).means(
        "strength of DC-ASGD's delay compensation, on the summed loss: 0.04 at batch 64 is 2.56 on the mean; with "
        "--dcasgd-adaptive 1 lambda_0, which is the same on both, and 2 in the paper"
    )
    dcasgd_adaptive: int = Flag(0, zero_or_one, needs=("use_dcasgd", 1)).means(
        "1 adapts that strength to each weight, by the mean square of its gradients (DC-ASGD-a)"
    )
    max_delay: int = Flag(0, at_least(0)).means(
        "R of Ringmaster ASGD: the server drops a gradient if it has applied R others or more since the worker's last "
        "pull, and the worker goes on with the newest weights (0: it drops none)"
    )
    table: int = Flag(0, zero_or_one).means(
        "1 selects Ringleader ASGD: one step by each worker a round, along the mean of all workers' mean gradients of "
        "the round; no gradient is thrown away, and no worker waits for another"
    )
    rescale: int = Flag(0, zero_or_one).means(
        "1 selects Rescaled ASGD: a worker's gradients are weighed by its step time over the mean of all workers'"
    )

    def check(self, num_workers: int | None) -> None:
        dcasgd = ("use_dcasgd", "max_delay"), ("use_dcasgd", "table"), ("use_dcasgd", "rescale")
        for pair in (*dcasgd, ("max_delay", "table")):
            if all(getattr(self, name) for name in pair):
                one, other = (f"{self.FLAGS[name].names[-1]} {getattr(self, name)}" for name in pair)
                raise SetupError(f"{one} and {other} are different algorithms: leave one of them out")


ROW = Algorithm(
    name="async",
    title="ASGD",
    paper="Dean et al., NIPS 2012",
    settings=Settings,
    trainer="AsyncTrainer",
    server="server_of",
    on_kvstore=(
        *(("max_delay",), ("table",), ("rescale",), ("dcasgd_adaptive",), ("lr_schedule",)),
        ("use_dcasgd", "momentum"),  # with which MXNet's own fails
    ),
    waits=False,
    stem="Async",
)
end_of_head(globals())

import pkgutil
from typing import Any

import numpy as np

from esync.measure import GLOBAL_AGGREGATE
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
    ServerSteps,
)


class AsyncServer:
    """The newest weights, without BatchNorm's statistics, which stay each worker's own."""

    keeps_uploads = False

    def __init__(self, job: Served, settings: GradientSteps) -> None:
        self.job, self.weights = job, job.model
        self.there = set(range(job.num_workers))  # ranks of workers that are neither lost nor at their end
        self.num_steps: int = job.saved.get("num_steps", 0)
        self.stop = False  # a worker wants all to stop
        self._steps = ServerSteps(job, settings)

    def act(self, rank: int, message: Message, arrays: Arrays) -> Answers:
        if ENDED in message:
            return self.lost(rank)
        self.stop |= message[WANTS_STOP]
        if not arrays and BAD not in message:  # it only wishes to stop, and its answer is on the way
            return {}
        gets_newest = BAD in message or self.use(rank, arrays)
        memory = arrays or [np.empty_like(weight) for weight in self.weights]
        return self.due(rank, message, memory if gets_newest else ())

    def due(self, rank: int, message: Message, memory: Arrays) -> Answers:
        """The answers that are due after a message; `memory` is for this worker's."""
        return {rank: self.answer(rank, memory)}

    def use(self, rank: int, gradient: Arrays) -> bool:
        """Changes the weights by the algorithm's rule; returns whether the worker gets them."""
        self.step(gradient)
        return True

    def step(self, gradient: Arrays, num_batches: int = 1) -> None:
        """A step on a sum of `num_batches` gradients."""
        self.num_steps += 1
        self._steps.step(self.weights, gradient, self._steps.rate(self.num_steps), num_batches)

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
        return {SHOWN: self.weights, **self.kept(), "steps": self._steps.state()}


class AsyncTrainer(HubTrainer):
    """A round sends one gradient, and gets the weights. A worker that has done its rounds ends."""

    rounds_in_step = False

    def __init__(self, context: Context, settings: GradientSteps) -> None:
        super().__init__(context, settings)
        self._is_rescaled = isinstance(settings, Settings) and bool(settings.rescale)

    def shared_arrays(self) -> Arrays:
        return self.parameters.weights

    def broadcast(self) -> None:
        self.begin_at_hub()
        if self._is_rescaled:  # the server part has to know this worker's time
            self._exchange_gradient(False, ())

    def synchronize(self, wants_stop: bool) -> bool:
        """Sends the gradient unless it is bad, and takes the weights."""
        self.measure.enter(GLOBAL_AGGREGATE)
        return self._exchange_gradient(wants_stop, () if self.step_is_bad else self.parameters.gradients)

    def _exchange_gradient(self, wants_stop: bool, gradient: Arrays) -> bool:
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


def server_of(job: Served, settings: Settings) -> ServerPart:
    """The server part of the flags."""
    asked = [name for flag, name in _SERVERS.items() if getattr(settings, flag)]
    part: ServerPart = (pkgutil.resolve_name(asked[0]) if asked else AsyncServer)(job, settings)
    return pkgutil.resolve_name("trainer.algorithms.rescaled:RescaledServer")(part) if settings.rescale else part
