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
from trainer.passes import Batch
from trainer.run_logs.measure import GLOBAL_AGGREGATE
from trainer.steps import which_decay
from trainer.trainer import Trainer


class AsyncTrainer(Trainer):
    """A round pushes one gradient and pulls the weights. No worker waits for others.

    BatchNorm's running statistics stay each worker's own. One more key holds counters that every worker adds to and
    reads; the first counts the stop requests. A worker that has done its rounds ends.
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
        """`compensation` is lambda of DC-ASGD, None for ASGD; with `adaptive` it is lambda_0 of DC-ASGD-a."""
        super().__init__(context)
        self._transport = transport = context.shared
        num_workers = self.membership.num_workers
        self._values = mx.nd.zeros((num_counters + (context.run.checkpoints is not None),))  # the last: when to save
        decays, rule = which_decay(self.parameters.weights), context.run.rule
        if compensation is None:
            self._num_models, keys_per_worker = 1, len(decays)
            self._optimizer = ServerSGD(learning_rate, keys_per_worker, decays, rule)
        else:
            # Every worker's array of one position must lie on the same server. ps-lite places a key by its remainder
            # modulo the number of servers.
            keys_per_worker = -(-len(decays) // context.peers.num_servers) * context.peers.num_servers
            self._num_models = num_workers
            first_counter = num_workers * keys_per_worker
            self._optimizer = PerWorkerDCASGD(
                learning_rate, compensation, keys_per_worker, first_counter, decays, rule, adaptive
            )
        self._keys_per_worker = keys_per_worker
        own = self.membership.rank if self._num_models > 1 else 0
        self._models = [transport.arrays(model * keys_per_worker) for model in range(self._num_models)]
        self.exchange = self._model = self._models[own]
        self._counters = transport.arrays(self._num_models * keys_per_worker)

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
                        array.copyto(weight)
                model.broadcast(weights)
            else:
                model.define(first)
        self._counters.broadcast([self._values])

    def _restored(self, saved: Mapping[str, Any]) -> list[list[mx.nd.NDArray]]:
        """The models of the server's checkpoint: one, or one for each worker. The optimizer takes the rest of it."""
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
        self.add_to_counter(-1, self.rounds)
        self._transport.wait_all()

    def local_step(self, batch: Batch) -> bool:
        self.compute_gradients(batch, self.membership.weight)
        self.gradients_are_good()
        return True

    def synchronize(self, wants_stop: bool) -> bool:
        """Pushes the gradients unless they are bad, and pulls the weights."""
        if self.step_is_bad:
            self.measure.enter(GLOBAL_AGGREGATE)
        else:
            self.send(self._model.push, self.parameters.gradients, GLOBAL_AGGREGATE)
        if wants_stop:
            self.add_to_counter(0)
        self.before_pull()
        self.emulation.wait_for_link()
        self._model.pull(self.parameters.weights)
        return bool(self.read_counters()[0] > 0)

    def before_pull(self) -> None:
        """Called when this worker's gradients are under way."""

    def add_to_counter(self, position: int, number: int = 1) -> None:
        notice = np.zeros(self._values.shape, dtype=np.float32)
        notice[position] = number
        self._counters.push([mx.nd.array(notice)])

    def read_counters(self) -> np.ndarray:
        """The shared counters, after all transfers under way have ended."""
        self._counters.pull([self._values])
        self._transport.wait_all()
        return self._values.asnumpy()


def build(context: Context) -> AsyncTrainer:
    """From the flags: ASGD, DC-ASGD-c or DC-ASGD-a."""
    config = context.config
    compensation = config.dcasgd_lambda if config.use_dcasgd else None
    return AsyncTrainer(context, config.learning_rate, compensation, adaptive=bool(config.dcasgd_adaptive))
