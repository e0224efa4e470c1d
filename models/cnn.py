"""A CNN with two convolutions, as in the experiments of WBSP (Yang et al., Parallel Computing 121, 2024, 103092).

No more is known here of WBSP's network. All sizes are those of McMahan et al. for MNIST ("Communication-efficient
learning of deep networks from decentralized data", AISTATS 2017, section 3): 5x5 convolutions of 32 and 64 filters that
keep the image's size, each followed by 2x2 max pooling, a dense layer of 512 with ReLU, and one of the classes;
1,663,370 weights for MNIST, as in the paper.
"""

from typing import Any

from trainer.engine import mx

nn = mx.gluon.nn


class TwoConvolutions(nn.HybridSequential):  # type: ignore[name-defined,misc]
    """Two convolutions and two dense layers: (N, C, H, W) images to (N, classes) scores."""

    def __init__(self, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            for filters in (32, 64):
                self.add(
                    nn.Conv2D(filters, kernel_size=5, padding=2, activation="relu"),
                    nn.MaxPool2D(pool_size=2, strides=2),
                )
            self.add(nn.Dense(512, activation="relu"), nn.Dense(classes))
