"""ASGD (Dean et al., "Large scale distributed deep networks", 2012): the server applies each worker's gradient at once,
w <- w - eta * g (server_sgd.py), and the worker pulls. With another optimizer on the server the same loop is DC-ASGD
(dcasgd.py), Ringmaster (ringmaster.py) or Ringleader ASGD (ringleader.py).

Rescaled ASGD (arXiv:2605.13434) weighs the gradients of worker k by t_k / mean(t), so that the data of a slow worker
count as much as those of a fast one. t_k is the time of its last complete step, at first of a test step; the mean is
over the workers that are there."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.algorithms.dcasgd import PerWorkerDCASGD
from trainer.algorithms.ringleader import RingleaderSGD
from trainer.algorithms.ringmaster import RingmasterSGD
from trainer.algorithms.server_sgd import ENDED, GONE, ServerSGD
from trainer.context import Context
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.steps import which_decay
from trainer.trainer import Trainer


class AsyncTrainer(Trainer):
    """A round pushes one gradient and pulls the weights. No worker waits for others.

    BatchNorm's running statistics stay each worker's own. More keys hold counters that every worker adds to and reads,
    one copy on each server: the number of stop requests, then, where the optimizer wants it, that of each worker's last
    change, then, where the algorithm wants it, a number of each worker. A worker that has done its rounds ends.
    """

    rounds_in_step = False
    has_numbers = False  # of each worker, among the counters

    def __init__(
        self,
        context: Context,
        learning_rate: float,
        optimizer: type[ServerSGD] = ServerSGD,
        **of_optimizer: Any,
    ) -> None:
        """`of_optimizer`: the optimizer's own arguments, beside those of ServerSGD."""
        super().__init__(context)
        self._transport = transport = context.shared
        ranks, num_servers = range(self.membership.num_workers), context.peers.num_servers
        self._hears = optimizer.hears_of_workers
        first = 1 + self._hears * len(ranks)
        self._numbers = slice(first, first + self.has_numbers * len(ranks))
        self._own = first + self.membership.rank  # where this worker's number is
        size = self._numbers.stop + (context.run.checkpoints is not None)  # the last: when to save
        self._values = np.zeros(size, np.float32)
        self._changes_told: dict[int, int] = {}
        decays = which_decay(self.parameters.weights)
        # Every worker's array of one position must lie on the same server. ps-lite places a key by its remainder modulo
        # the number of servers.
        self._keys_per_model = -(-len(decays) // num_servers) * num_servers
        models = ranks if optimizer.per_worker else range(1)
        self._optimizer = optimizer(
            learning_rate, self._keys_per_model, len(models), decays, context.run.rule, **of_optimizer
        )
        self._models = [transport.arrays(model * self._keys_per_model) for model in models]
        self.exchange = self._model = self._models[self.membership.rank if optimizer.per_worker else 0]
        self._counters = transport.arrays(len(models) * self._keys_per_model)
        self._copies = num_servers

    def broadcast(self) -> None:
        self._optimizer.checks_gradients = self.checks.are_on
        weights = self.parameters.weights
        models = [weights for _ in self._models]
        if self.context.run.checkpoints is not None:
            self._optimizer.writer = self.context.run.checkpoints.for_server()
            if self.context.run.checkpoints.of_server is not None:
                models = self._restored(self.context.run.checkpoints.of_server)
        if self.membership.rank == 0:
            self._transport.set_optimizer(self._optimizer)
        for model, first in zip(self._models, models, strict=True):
            if model is self._model:
                for weight, array in zip(weights, first, strict=True):
                    if array is not weight:
                        weight[...] = array
                model.broadcast(weights)
            else:
                model.define(first)
        self._counters.broadcast([self._values] * self._copies)
        self._tell_changes()

    def _restored(self, saved: Mapping[str, Any]) -> list[list[np.ndarray]]:
        """The models of the server's checkpoint: one, or one for each worker. The optimizer takes the rest of it."""
        self._optimizer.restore(saved)
        values, others = dict(saved["values"]), dict(saved.get("global", ()))
        found = []
        for number in range(len(self._models)):
            model = []
            for position, weight in enumerate(self.parameters.weights):
                value = values.get(number * self._keys_per_model + position, others.get(position))
                model.append(weight if value is None else value.reshape(weight.shape))
            found.append(model)
        return found

    def save_server(self) -> None:
        self.add_to_counter(-1, self.rounds)
        self._transport.wait_all()

    def local_step(self, batch: Batch) -> bool:
        self.compute_gradients(batch, self.gradient_weight())
        if self.gradients_are_good():
            self.clip_gradients(self.gradient_weight())
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Pushes the gradients unless they are bad, and pulls the weights."""
        if self.step_is_bad:
            self.measure.enter(GLOBAL_AGGREGATE)
        else:
            self.send(self._model.push, self.parameters.gradients, GLOBAL_AGGREGATE, self.computed)
        if wants_stop:
            self.add_to_counter(0)
        self._tell_changes()
        self.before_pull()
        self.emulation.wait_for_link()
        self._model.pull(self.parameters.weights)
        return bool(self.read_counters()[0] > 0)

    def computed(self) -> None:
        """Called when the gradients are computed."""
        self.step_s = self.emulation.step_age_s

    def gradient_weight(self) -> float:
        """Factor on this step's gradients."""
        return self.membership.weight

    def before_pull(self) -> None:
        """Called when this worker's gradients are under way."""

    def end(self) -> None:
        is_done = not self.has_left  # else the others hear that it is lost, and it may come back
        if self.has_numbers and is_done:
            self.add_to_counter(self._own, GONE)
        if self._hears and is_done:
            self.add_to_counter(1 + self.membership.rank, ENDED)
        self._transport.wait_all()

    def _tell_changes(self) -> None:
        for rank, number in self.context.peers.changes().items() - self._changes_told.items() if self._hears else ():
            self._changes_told[rank] = number
            self.add_to_counter(1 + rank, number)

    def add_to_counter(self, position: int, number: float = 1) -> None:
        notice = np.zeros(self._values.shape, dtype=np.float32)
        notice[position] = number
        self._counters.push([notice.copy() for _ in range(self._copies)])

    def set_number(self, number: float) -> None:
        """Sets this worker's number, from what was read last. Once it has ended it counts no more, also where it was
        killed then and is back."""
        known = self._values[self._own]
        if known not in (GONE, np.float32(number)):
            self.add_to_counter(self._own, number - known)

    def numbers_there(self, but: int | None = None) -> np.ndarray:
        """The numbers, as read last, of workers that are neither lost nor at their end nor of rank `but`."""
        gone, numbers = {*self.context.peers.lost(), but}, self._values[self._numbers]
        return numbers[[rank not in gone and number != GONE for rank, number in enumerate(numbers)]]

    def read_counters(self) -> np.ndarray:
        """The shared counters, after all transfers under way have ended."""
        self._counters.pull([self._values])
        self._transport.wait_all()
        return self._values


class RescaledTrainer(AsyncTrainer):
    """A worker's number among the counters is its step time in seconds, which it keeps up to date."""

    has_numbers = True

    def broadcast(self) -> None:
        super().broadcast()
        self.before_pull()
        self._transport.wait_all()
        self._transport.barrier()
        self.read_counters()

    def local_step(self, batch: Batch) -> bool:
        super().local_step(batch)
        self.wait_for_gradients()
        super().computed()
        return True

    def computed(self) -> None:
        """The time is taken already."""

    def gradient_weight(self) -> float:
        times_s = self.numbers_there()
        mean_s = float(times_s.mean()) if times_s.size else 0.0
        return super().gradient_weight() * (self.step_s / mean_s if mean_s else 1.0)

    def before_pull(self) -> None:
        self.set_number(self.step_s)


def build(context: Context) -> AsyncTrainer:
    """From the flags: ASGD, DC-ASGD-c or DC-ASGD-a, Ringmaster or Ringleader ASGD, any but DC-ASGD rescaled."""
    config = context.config
    trainer = RescaledTrainer if config.rescale else AsyncTrainer
    if config.use_dcasgd:
        options = {"compensation": config.dcasgd_lambda, "adaptive": bool(config.dcasgd_adaptive)}
        return trainer(context, config.learning_rate, PerWorkerDCASGD, **options)
    if config.max_delay:
        return trainer(context, config.learning_rate, RingmasterSGD, max_delay=config.max_delay)
    return trainer(context, config.learning_rate, RingleaderSGD if config.table else ServerSGD)
