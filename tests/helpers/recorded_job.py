"""A small job whose workers record what they trained on and what weights each step left: a job file (`--job`).

The folder of the data (-dd) gets RANK.npz of each worker: x (steps, batch, 3), y (steps, batch, 1) and w (steps + 1,
21), the weights before the first step and after each; of steps that count alone.
"""

from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

SAMPLES = 32  # three workers hold 11, 11 and 10
loss_of = mx.gluon.loss.L2Loss()
folders = []


def network():
    layers = nn.HybridSequential()
    layers.add(nn.Dense(4, activation="tanh", in_units=3), nn.Dense(1, in_units=4))
    layers.hybridize()
    return layers


def data(folder):
    folders[:] = [Path(folder)]
    inputs = np.random.default_rng(0).standard_normal((SAMPLES, 3))
    return (inputs, np.sin(2 * inputs[:, :1]) + inputs[:, 1:2] * inputs[:, 2:]), None


def weights(block):
    return np.concatenate([array.data().asnumpy().ravel() for array in block.collect_params().values()])


def train(worker):
    x, y, w = [], [], [weights(worker.network)]
    for inputs, targets in worker.batches:
        with mx.autograd.record():
            losses = loss_of(worker.network(inputs), targets)
        losses.backward()
        if worker.step(len(targets), losses):
            x.append(inputs.asnumpy())
            y.append(targets.asnumpy())
            w.append(weights(worker.network))
        if worker.is_done:
            break
    np.savez(folders[0] / f"{worker.rank}.npz", x=x, y=y, w=w)
