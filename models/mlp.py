"""A perceptron with one hidden layer of 32: 784-32-10 on MNIST's images, and about the cheapest network that learns
them, for simulations of many steps."""

from __future__ import annotations

from typing import Any

from trainer.engine import mx

nn = mx.gluon.nn
HIDDEN = 32


class Perceptron(nn.HybridSequential):  # type: ignore[name-defined,misc]
    """Two dense layers: (N, C, H, W) images, of which each pixel is an input, to (N, classes) scores."""

    def __init__(self, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(nn.Dense(HIDDEN, activation="relu"), nn.Dense(classes))
