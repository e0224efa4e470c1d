"""Regression on a table of numbers, by ESync on three machines of different speed, which this one stands for:

scripts/local_cluster.sh -m esync --job examples/table.py --workers 0.01,0.02,0.1 -- --max-seconds 20 -ll 0.003 -b 32
"""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn


def network():
    layers = nn.HybridSequential()
    layers.add(nn.Dense(64, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(1))
    return layers


def data(folder):  # of -dd; one's own would be np.loadtxt(folder + "/table.csv", delimiter=","), for example
    table = np.random.default_rng(0).random((12000, 10))
    x = table.T
    y = (
        np.sin(np.pi * x[0] * x[1]) + 2 * (x[2] - 0.5) ** 2 + x[3] + 0.5 * x[4]
    )  # Friedman's, 1991; the others are noise
    targets = y.reshape(-1, 1)
    return (table[:10000], targets[:10000]), (table[10000:], targets[10000:])  # training and test part


loss = mx.gluon.loss.L2Loss()


def r2(targets, outputs):  # of the whole test part
    return 1 - ((targets - outputs) ** 2).mean() / targets.var()


metric = r2
