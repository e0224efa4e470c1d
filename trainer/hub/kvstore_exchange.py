"""ASGD and DC-ASGD on MXNet's kvstore, as the published program has them: an optimizer of MXNet's own is the server.

Its momentum holds steps, not gradients, which is the same with a constant step size. Its DCASGD keeps one backup for
all workers, the weights before the newest update, and takes no momentum; on the hub each worker has its own backup, as
in the paper (trainer/algorithms/dcasgd.py). A checkpoint has no part of the server: rank 0's model goes on, without the
momentum.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from config import HUB
from trainer.engine import mx
from trainer.hub.server_part import WANTS_STOP, Answer, Arrays, Message
from trainer.transport.flat import buffers_of
from trainer.transport.kvstore import KVStoreArrays

# Between two looks at the votes to stop, each of which costs as much as a small array; as long all train on.
VOTES_EVERY_S = 0.25
VOTE = 1e-3  # what a worker that wants to stop adds to the votes; small, since DCASGD squares it


class KVStoreExchange:
    """A worker's Exchange. Buffer i of the model has the key i; the next key has the votes to stop."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.rank: int = store.rank
        self.num_workers: int = store.num_workers
        self.push_s = self.pull_s = 0.0  # not measured
        self._model = KVStoreArrays(store)
        self.take_traffic = self._model.take_traffic
        self._num_votes = np.zeros(1, np.float32)
        self._looked = -math.inf  # when the votes were pulled last

    def begin(self, about: Message, model: Arrays, held: Callable[[], Arrays]) -> Answer:
        flags, self._shapes = about["flags"], [array.shape for array in model]
        # Arrays share keys: an update of a key takes MXNet's SGD 40 us or more, and its DCASGD 320 us. A key has one
        # weight decay.
        decays = [each and flags["weight_decay"] > 0 for each in about["decays"]]
        alike = ([index for index, each in enumerate(decays) if each == those] for those in (True, False))
        self._buffers = [buffer for indices in alike for buffer in buffers_of(model, of=indices)]
        self._votes = KVStoreArrays(self._store, len(self._buffers))
        if self.rank == 0:
            if flags["use_dcasgd"]:
                logging.info(
                    "MXNet's DCASGD keeps one backup for all workers; with --exchange %s each worker has its own, as "
                    "in the paper",
                    HUB,
                )
            self._store.set_optimizer(_optimizer(flags, [decays[buffer.indices[0]] for buffer in self._buffers]))
        self._model.broadcast([buffer.take(model) for buffer in self._buffers])
        for buffer in self._buffers:
            buffer.give(model)
        self._votes.broadcast([self._num_votes])
        return Answer({}, model)

    def ask(self, message: Message, arrays: Arrays, wants_stop: Callable[[], object], repeats: bool = False) -> Answer:
        memory = arrays or [np.empty(shape, np.float32) for shape in self._shapes]
        content = [buffer.take(memory) for buffer in self._buffers]
        if arrays:
            self._model.push(content)
        if message[WANTS_STOP]:
            self._votes.push([np.full(1, -VOTE, np.float32)])
        if message[WANTS_STOP] or time.monotonic() - self._looked > VOTES_EVERY_S:
            self._looked = time.monotonic()
            self._votes.pull([self._num_votes])
        self._model.pull(content)
        mx.nd.waitall()
        for buffer in self._buffers:
            buffer.give(memory)
        return Answer({"stop": bool(self._num_votes[0] > 0)}, memory)

    def tell(self, message: Message, arrays: Arrays = ()) -> None:
        """Does nothing: a server with MXNet's own optimizer reads no message."""


def _optimizer(flags: Message, decays: Sequence[bool]) -> mx.optimizer.Optimizer:
    """MXNet's, for the keys of the model, of which some have weight decay, and then that of the votes."""
    rate, decay = flags["learning_rate"], flags["weight_decay"] * flags["batch_size"]
    if flags["use_dcasgd"]:
        optimizer = mx.optimizer.DCASGD(lamda=flags["dcasgd_lambda"], learning_rate=rate, wd=decay)
    else:
        optimizer = mx.optimizer.SGD(momentum=flags["momentum"], learning_rate=rate, wd=decay)
    optimizer.set_wd_mult(dict(enumerate([*map(float, decays), 0.0])))
    optimizer.set_lr_mult({len(decays): 1 / rate})
    return optimizer
