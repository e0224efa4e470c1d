"""A perceptron with one hidden layer of 32, 784-32-10 on MNIST: about the cheapest network that learns it, for
simulations of many steps."""

from typing import Any

from trainer.engine import mx

nn = mx.gluon.nn
HIDDEN = 32


class Perceptron(nn.HybridSequential):  # type: ignore[name-defined,misc]
    """Two dense layers: (N, C, H, W) images to (N, classes) scores."""

    def __init__(self, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(nn.Dense(HIDDEN, activation="relu"), nn.Dense(classes))
