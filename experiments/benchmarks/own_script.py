"""A training script of one's own, without this project: samples/s of one of two processes, with MXNet's kvstore or
PyTorch's DistributedDataParallel over gloo. frameworks.py starts it.

    own_script.py gluon|torch lenet|resnet18-v1 RANK SECONDS PORT DATA
"""

import gzip
import importlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

BATCH, RATE, WARM_UP = 64, 0.01, 5


def batches(folder: Path, rank: int) -> list[Any]:
    """Half of Fashion-MNIST: images (B, 64, 1, 28, 28) from 0 to 1, and classes (B, 64)."""
    images, classes = (
        np.frombuffer(gzip.decompress((folder / f"train-{name}-ubyte.gz").read_bytes()), np.uint8, offset=offset)
        for name, offset in (("images-idx3", 16), ("labels-idx1", 8))
    )
    mine = images.reshape(-1, 1, 28, 28)[rank::2].astype("float32") / 255, classes[rank::2].astype("int64")
    number = len(mine[0]) // BATCH
    return [each[: number * BATCH].reshape(number, BATCH, *each.shape[1:]) for each in mine]


def gluon(network: str) -> Callable[[Any, Any], None]:
    """A step of gluon.Trainer on dist_sync; the batch is summed on the parameter server, which takes the step."""
    mx = importlib.import_module("mxnet")
    nn = mx.gluon.nn
    if network == "lenet":
        net = nn.HybridSequential()
        for filters, padding in ((6, 2), (16, 0)):
            net.add(nn.Conv2D(filters, 5, padding=padding, activation="relu"), nn.MaxPool2D(2, 2))
        net.add(nn.Dense(120, activation="relu"), nn.Dense(84, activation="relu"), nn.Dense(10))
    else:
        net = mx.gluon.model_zoo.vision.resnet18_v1(classes=10)
    net.initialize(mx.init.Xavier())
    net.infer_shape(mx.nd.zeros((2, 1, 28, 28)))
    net.hybridize(static_alloc=True, static_shape=True)
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": RATE}, kvstore="dist_sync")
    loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()

    def step(images: Any, classes: Any) -> None:
        with mx.autograd.record():
            value = loss(net(mx.nd.array(images)), mx.nd.array(classes))
        value.backward()
        trainer.step(2 * BATCH)
        float(value.mean().asscalar())
        mx.nd.waitall()

    return step


def pytorch(network: str, rank: int, port: str) -> Callable[[Any, Any], None]:
    """A step of DistributedDataParallel with gloo."""
    torch, torchvision = map(importlib.import_module, ("torch", "torchvision"))
    nn = torch.nn
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    if network == "lenet":
        convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU()]
        dense = [nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)]
        net = nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), *dense)
    else:
        net = torchvision.models.resnet18(num_classes=10)
        net.conv1 = nn.Conv2d(1, 64, 7, 2, 3, bias=False)
    parallel = nn.parallel.DistributedDataParallel(net)
    optimizer, loss = torch.optim.SGD(net.parameters(), RATE), nn.CrossEntropyLoss()

    def step(images: Any, classes: Any) -> None:
        optimizer.zero_grad()
        value = loss(parallel(torch.from_numpy(images)), torch.from_numpy(classes))
        value.backward()
        optimizer.step()
        value.item()

    return step


def main(way: str, network: str, rank: str, seconds: str, port: str, folder: str) -> None:
    """Prints the samples/s of both processes."""
    images, classes = batches(Path(folder), int(rank))
    step = gluon(network) if way == "gluon" else pytorch(network, int(rank), port)
    steps, begin = 0, 0.0
    while steps <= WARM_UP or time.monotonic() - begin < float(seconds):
        step(images[steps % len(images)], classes[steps % len(images)])
        steps += 1
        if steps == WARM_UP:
            begin = time.monotonic()
    print("samples/s", 2 * BATCH * (steps - WARM_UP) / (time.monotonic() - begin), flush=True)
    os._exit(0)  # the other process may have done a step less, for which MXNet would wait


if __name__ == "__main__":
    main(*sys.argv[1:])
