"""A worker that is an ordinary MXNet program, such as a user brings to this project's scheduler and parameter server.

usage: foreign_mxnet.py PROGRAM STORE SECONDS

Prints "trained" once a step is done, and checks that what it trains has moved.
"""

import sys
import time
from collections.abc import Callable, Iterator

from trainer.engine import mx  # only for the aliases that numpy dropped

# isort: split
import numpy as np

KEYS = 3


def gluon_trainer(store: mx.kv.KVStore) -> Iterator[None]:
    """gluon.Trainer, which sends the optimizer from every worker."""
    net = mx.gluon.nn.Dense(2, in_units=3)
    net.initialize(mx.init.One())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=store)
    while True:
        with mx.autograd.record():
            loss = net(mx.nd.ones((4, 3))).sum()
        loss.backward()
        trainer.step(4)
        assert float(net.weight.data().asnumpy().max()) < 1
        yield


def two_trainers(store: mx.kv.KVStore) -> Iterator[None]:
    """Two optimizers one after the other, each from every worker, as two parts of one program send them; the second
    one has a schedule, and momentum as a number of numpy's."""
    store.init(0, mx.nd.ones(3))
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.01))
    schedule = mx.lr_scheduler.FactorScheduler(100, 0.9, base_lr=0.01)
    store.set_optimizer(mx.optimizer.SGD(momentum=np.float32(0.9), lr_scheduler=schedule))
    store._barrier()
    return _gradients(store, keys=1)


def published_asgd(store: mx.kv.KVStore) -> Iterator[None]:
    """The calls of the published ASGD worker, in their order: each one sends the optimizer."""
    store.set_optimizer(mx.optimizer.SGD(learning_rate=0.01))
    for key in range(KEYS):
        store.init(key, mx.nd.ones(3))
    return _gradients(store, KEYS)


def published_esync(store: mx.kv.KVStore) -> Iterator[None]:
    """The calls of the published ESync worker: it pushes model updates to a server without an optimizer."""
    weights = [mx.nd.ones(3) for _ in range(KEYS)]
    for key, weight in enumerate(weights):
        store.init(key, weight)
        store.pull(key, out=weight)
    while True:
        for key, weight in enumerate(weights):
            update = mx.nd.full(3, -0.01) / store.num_workers
            store.push(key, update)
            store.pull(key, out=update)
            weight += update
        assert weights[-1].asnumpy().max() < 1
        yield


def _gradients(store: mx.kv.KVStore, keys: int) -> Iterator[None]:
    while True:
        for key in range(keys):
            weight = mx.nd.zeros(3)
            store.push(key, mx.nd.ones(3))
            store.pull(key, out=weight)
            assert weight.asnumpy().max() < 1
        yield


PROGRAMS: dict[str, Callable[[mx.kv.KVStore], Iterator[None]]] = {
    program.__name__: program for program in (gluon_trainer, two_trainers, published_asgd, published_esync)
}

if __name__ == "__main__":
    name, kind, seconds = sys.argv[1:]
    store = mx.kv.create(kind)
    steps = PROGRAMS[name](store)
    for step in range(int(float(seconds) / 0.1)):  # the same number on all workers
        next(steps)
        if step == 0:
            print("trained", flush=True)
        time.sleep(0.1)
    mx.nd.waitall()
