r"""Regression on a table of numbers, by ESync on three workers of different speed (seconds a step):

scripts/local_cluster.sh -m esync --job examples/torch_table.py --workers 0.02,0.04,0.2 -- \
    --optimizer adam -ll 0.005 --max-seconds 20 -e 10
"""

import numpy as np
from torch import nn


def network():
    return nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def data(folder):  # folder is -dd
    table = np.random.default_rng(0).random((12000, 10))  # or np.loadtxt(f"{folder}/table.csv", delimiter=",")
    x = table.T
    y = np.sin(np.pi * x[0] * x[1]) + 2 * (x[2] - 0.5) ** 2 + x[3] + 0.5 * x[4]  # by Friedman, 1991
    targets = y.reshape(-1, 1)
    return (table[:10000], targets[:10000]), (table[10000:], targets[10000:])  # training and test part


loss = nn.MSELoss()


def r2(targets, outputs):  # of the whole test part
    return 1 - ((targets - outputs) ** 2).mean() / targets.var()


metric = r2
