r"""A network with two inputs: how does a user like a film? Both are numbers, and a vector is learnt for each.

scripts/local_cluster.sh -m esync --job examples/two_inputs.py --workers 0.02,0.04,0.2 -- \
    --optimizer adam -ll 0.01 --max-seconds 20 -e 10
"""

import mxnet as mx
import numpy as np
from mxnet.gluon import nn

USERS, FILMS, SIZE = 500, 200, 8


class Likes(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.users, self.films = nn.Embedding(USERS, SIZE), nn.Embedding(FILMS, SIZE)
            self.hidden, self.last = nn.Dense(32, activation="relu"), nn.Dense(1)

    def hybrid_forward(self, F, users, films):
        return self.last(self.hidden(F.concat(self.users(users), self.films(films))))


def network():
    return Likes()


def data(folder):
    random = np.random.default_rng(0)
    users, films = random.integers(USERS, size=40000), random.integers(FILMS, size=40000)
    marks = (random.normal(size=USERS)[users] * random.normal(size=FILMS)[films]).reshape(-1, 1)
    return ((users[4000:], films[4000:]), marks[4000:]), ((users[:4000], films[:4000]), marks[:4000])


loss = mx.gluon.loss.L2Loss()
metric = mx.metric.RMSE()
