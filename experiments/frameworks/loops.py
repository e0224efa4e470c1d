"""The loops that a user would write with other programs, and with `import esync`; peers.py runs and counts them.

Each takes a function that makes the network, and the batches: inputs (64, 1, 28, 28) from 0 to 1, and classes (64,).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

RATE, EVERY = 0.1, 20  # EVERY: local steps of a round, where the user chooses them
Network = Callable[[], Any]
Batches = Iterable[tuple[Any, Any]]


def gluon_mlp() -> Any:
    """The network of torch_mlp.py."""
    from mxnet.gluon import nn

    layers = nn.HybridSequential()
    layers.add(nn.Dense(32, activation="relu"), nn.Dense(10))
    return layers


def gluon_lenet() -> Any:
    """The network of torch_lenet.py."""
    from mxnet.gluon import nn

    layers = nn.HybridSequential()
    layers.add(nn.Conv2D(6, 5, padding=2, activation="relu"), nn.MaxPool2D())
    layers.add(nn.Conv2D(16, 5, activation="relu"), nn.MaxPool2D())
    layers.add(nn.Dense(120, activation="relu"), nn.Dense(84, activation="relu"), nn.Dense(10))
    return layers


def gluon_resnet18() -> Any:
    """The network of torch_resnet18.py."""
    from mxnet.gluon.model_zoo.vision import resnet18_v1

    return resnet18_v1(classes=10)


def gluon_loop(network: Network, batches: Batches, kvstore: str = "device") -> None:
    """A loop of gluon; with dist_sync a parameter server sums the gradients and takes the step."""
    import mxnet as mx

    model = network()
    model.initialize(mx.init.Xavier())
    model.infer_shape(mx.nd.zeros((2, 1, 28, 28)))
    model.hybridize(static_alloc=True, static_shape=True)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = mx.gluon.Trainer(model.collect_params(), "sgd", {"learning_rate": RATE}, kvstore=kvstore)
    for x, y in batches:
        with mx.autograd.record():
            loss = loss_of(model(x), y)
        loss.backward()
        trainer.step(len(x) * int(os.environ["WORLD_SIZE"]))
        loss.mean().asscalar()


def torch_step(model: Any, optimizer: Any, x: Any, y: Any) -> float:
    """A step of PyTorch."""
    from torch.nn.functional import cross_entropy

    optimizer.zero_grad()
    loss = cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


def torch_loop(network: Network, batches: Batches) -> None:
    """A loop of PyTorch."""
    import torch

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in batches:
        torch_step(model, optimizer, x, y)


def ddp(network: Network, batches: Batches) -> None:
    """DistributedDataParallel."""
    import torch

    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for x, y in batches:
        torch_step(model, optimizer, x, y)


def periodic_averager(network: Network, batches: Batches) -> None:
    """Local SGD of torch.distributed."""
    import torch
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    averager = PeriodicModelAverager(period=EVERY)
    for x, y in batches:
        torch_step(model, optimizer, x, y)
        averager.average_parameters(model.parameters())


def torchft_manager(model: Any) -> tuple[Any, Any]:
    """The store, which lives as long as its object, and the manager of a replica, which is one process here."""
    from torch.distributed import TCPStore
    from torchft import Manager, ProcessGroupGloo

    store, count = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False), int(os.environ["WORLD_SIZE"])
    states = {"load_state_dict": model.load_state_dict, "state_dict": model.state_dict}
    replica = {"rank": 0, "world_size": 1, "store_addr": "127.0.0.1", "store_port": store.port}
    return store, Manager(ProcessGroupGloo(), min_replica_size=count, use_async_quorum=False, **states, **replica)


def torchft_local_sgd(network: Network, batches: Batches) -> None:
    """Local SGD of torchft."""
    import torch
    from torchft.local_sgd import LocalSGD

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    _store, manager = torchft_manager(model)
    with LocalSGD(manager, model, optimizer, sync_every=EVERY):
        for x, y in batches:
            torch_step(model, optimizer, x, y)


def torchft_diloco(network: Network, batches: Batches) -> None:
    """DiLoCo of torchft."""
    import torch
    from torchft.local_sgd import DiLoCo

    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    outer = torch.optim.SGD(model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    _store, manager = torchft_manager(model)
    with DiLoCo(manager, [model], optimizer, outer, sync_every=EVERY):
        for x, y in batches:
            torch_step(model, optimizer, x, y)


def esync_worker(network: Network, batches: Batches, rule: str) -> None:
    """This project's `import esync`."""
    import torch

    import esync

    torch.distributed.init_process_group("gloo")
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    with esync.Worker(model, optimizer, rule) as worker:
        for x, y in batches:
            torch_step(model, optimizer, x, y)
            worker.step(len(y))
