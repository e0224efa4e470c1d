"""LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998), with today's layers:
max pooling and ReLU instead of trainable subsampling and tanh."""

from typing import Any

from models.filled import FilledConv2D, PoolReLU
from trainer.engine import mx

nn = mx.gluon.nn


class LeNet5(nn.HybridSequential):  # type: ignore[name-defined,misc]
    """Two convolutions and three dense layers: (N, C, H, W) images to (N, classes) scores."""

    def __init__(self, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(
                FilledConv2D(6, kernel_size=5, padding=2, activation="relu"),
                PoolReLU(pool_size=2, strides=2),
                FilledConv2D(16, kernel_size=5, activation="relu", reads_filled=True),
                PoolReLU(pool_size=2, strides=2),
                nn.Dense(120, activation="relu"),
                nn.Dense(84, activation="relu"),
                nn.Dense(classes),
            )
