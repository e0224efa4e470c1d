"""ASGD (Dean et al., "Large scale distributed deep networks", 2012): the server applies each worker's gradient at once,
w <- w - eta * g (server_sgd.py), and the worker pulls. With dcasgd.py's optimizer the same loop is DC-ASGD."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from trainer.algorithms.dcasgd import PerWorkerDCASGD
from trainer.algorithms.server_sgd import ServerSGD
from trainer.context import Context
from trainer.engine import mx
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.steps import which_decay
from trainer.trainer import Trainer


class AsyncTrainer(Trainer):
    """A round is one gradient pushed and the weights pulled, whatever the other workers do.

    BatchNorm's running statistics stay each worker's own. One key more has counters that every worker can add to
    and read. The first counts the workers that want all to stop. A worker with its rounds done just ends.
    """

    rounds_in_step = False

    def __init__(
        self,
        context: Context,
        learning_rate: float,
        compensation: float | None,
        num_counters: int = 1,
        adaptive: bool = False,
    ) -> None:
        """
        Args:
            learning_rate: eta.
            compensation: lambda of DC-ASGD; None for plain ASGD.
            num_counters: that the workers share.
            adaptive: whether the compensation is DC-ASGD-a's.
        """
        super().__init__(context)
        self._transport = transport = context.shared
        num_workers = self.membership.num_workers
        self._values = mx.nd.zeros((num_counters + (context.run.checkpoints is not None),))  # the last: when to save
        num_arrays, decays = len(self.parameters.weights), which_decay(self.parameters.weights)
        if compensation is None:
            self._num_models, keys_per_worker = 1, num_arrays
            self._optimizer = ServerSGD(learning_rate, keys_per_worker, decays, context.run.rule)
        else:
            # Arrays of one position must lie on the same server under every worker's key. ps-lite places a key by its
            # remainder modulo the number of servers.
            keys_per_worker = -(-num_arrays // context.peers.num_servers) * context.peers.num_servers
            self._num_models = num_workers
            self._optimizer = PerWorkerDCASGD(
                learning_rate,
                compensation,
                keys_per_worker,
                num_workers * keys_per_worker,
                decays,
                context.run.rule,
                adaptive,
            )
        self._keys_per_worker = keys_per_worker
        own = self.membership.rank if self._num_models > 1 else 0
        self._models = [transport.arrays(model * keys_per_worker) for model in range(self._num_models)]
        self.exchange = self._model = self._models[own]
        self._counters = transport.arrays(self._num_models * keys_per_worker)

    def broadcast(self) -> None:
        """Rank 0 gives the server its optimizer; every worker's copy of the model begins as rank 0's."""
        self._optimizer.looks_at_gradients = self.checks.are_made
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
                        array.copyto(weight)
                model.broadcast(weights)
            else:
                model.define(first)
        self._counters.broadcast([self._values])

    def _restored(self, saved: Mapping[str, Any]) -> list[list[mx.nd.NDArray]]:
        """The models as the server had them, of all workers where each has its own; gives it the rest with its
        optimizer."""
        self._optimizer.restore(saved)
        values, others = dict(saved["values"]), dict(saved.get("global", ()))
        found = []
        for number in range(self._num_models):
            model = []
            for position, weight in enumerate(self.parameters.weights):
                value = values.get(number * self._keys_per_worker + position, others.get(position))
                model.append(weight if value is None else mx.nd.array(value.reshape(weight.shape)))
            found.append(model)
        return found

    def save_server(self) -> None:
        """All of it, array by array, as they are when the counter is there."""
        self._add_to_counter(-1, self.rounds)
        self._transport.wait_all()

    def local_step(self, images: mx.nd.NDArray, labels: mx.nd.NDArray) -> bool:
        """The gradient."""
        self.compute_gradients(images, labels, self.membership.weight)
        self.gradients_are_good()
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Pushes the gradients as they are computed, and pulls the weights that follow. Bad ones stay here."""
        if self.step_is_bad:
            self.measure.enter(GLOBAL_AGGREGATE)
        else:
            self.send(self._model.push, self.parameters.gradients, GLOBAL_AGGREGATE)
        if wants_stop:
            self.post(0)
        self.before_pull()
        self.emulation.wait_for_link()
        self._model.pull(self.parameters.weights)
        return bool(self.read_counters()[0] > 0)

    def before_pull(self) -> None:
        """Called when this worker's gradients are on their way."""

    def post(self, position: int) -> None:
        """Adds 1 to a counter."""
        self._add_to_counter(position, 1)

    def _add_to_counter(self, position: int, number: int) -> None:
        notice = np.zeros(self._values.shape, dtype=np.float32)
        notice[position] = number
        self._counters.push([mx.nd.array(notice)])

    def read_counters(self) -> np.ndarray:
        """The shared counters; waits for all that is under way."""
        self._counters.pull([self._values])
        self._transport.wait_all()
        return self._values.asnumpy()


def build(context: Context) -> AsyncTrainer:
    """From the flags: ASGD, or DC-ASGD of either kind."""
    config = context.config
    compensation = config.dcasgd_lambda if config.use_dcasgd else None
    return AsyncTrainer(context, config.learning_rate, compensation, adaptive=bool(config.dcasgd_adaptive))
