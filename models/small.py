"""Our own networks for small images and slow machines: (N, C, H, W) images to (N, classes) scores."""

from typing import Any

from trainer.engine import mx

nn = mx.gluon.nn
HIDDEN = 32  # of the perceptron
FILTERS = (16, 32, 64)  # of each stage of a ResNet
BLOCK = 8  # channels of a FilledConv2D


class Perceptron(nn.HybridSequential):  # type: ignore[name-defined,misc]
    """One hidden layer of 32, 784-32-10 on MNIST: about the cheapest network that learns it, for simulations of many
    steps."""

    def __init__(self, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(nn.Dense(HIDDEN, activation="relu"), nn.Dense(classes))


class FilledConv2D(nn.Conv2D):  # type: ignore[name-defined,misc]
    """A Conv2D with ReLU, filled up with filters of zeros to a multiple of BLOCK, without its ReLU: PoolReLU has that.

    oneDNN works in blocks of 8 or 16 channels: with 6 filters in place of 8 its convolutions and their gradients take
    up to 1.6 times as long, and without AVX-512 its pooling takes several times as long. Loss and gradients are the
    same but for rounding, and so are the parameters' names and shapes: the filling has outputs of 0, no layer reads
    them, and its gradients are dropped. With `reads_filled` the inputs come from another FilledConv2D; `others` are as
    of a Conv2D.
    """

    def __init__(self, *args: Any, reads_filled: bool = False, **others: Any) -> None:
        super().__init__(*args, **others)
        self._reads_filled = reads_filled

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any) -> Any:
        filters, channels, *taps = self.weight.shape
        more = -filters % BLOCK, -channels % BLOCK if self._reads_filled else 0
        # Pad takes the last axes of five.
        flat = weight.reshape((1, 1, filters, channels, -1))
        filled = F.Pad(flat, mode="constant", pad_width=(0, 0, 0, 0, 0, more[0], 0, more[1], 0, 0))
        weight = filled.reshape((filters + more[0], channels + more[1], *taps))
        bias = F.Pad(bias.reshape((1, 1, 1, -1)), mode="constant", pad_width=(0, 0, 0, 0, 0, 0, 0, more[0]))
        return F.Convolution(x, weight, bias.reshape(-1), **self._kwargs | {"num_filter": filters + more[0]})


class PoolReLU(nn.MaxPool2D):  # type: ignore[name-defined,misc]
    """A MaxPool2D, and the ReLU of the FilledConv2D in front of it. ReLU lets the same values and gradients pass behind
    the pooling as in front of it, where it has four times as many."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(super().hybrid_forward(F, x))


class LeNet5(nn.HybridSequential):  # type: ignore[name-defined,misc]
    """LeNet-5 (LeCun et al., "Gradient-based learning applied to document recognition", 1998), with today's layers:
    max pooling and ReLU instead of trainable subsampling and tanh."""

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


class TwoConvolutions(nn.HybridSequential):  # type: ignore[name-defined,misc]
    """A CNN with two convolutions, as in the experiments of WBSP (Yang et al., Parallel Computing 121, 2024, 103092).

    No more is known here of WBSP's network. All sizes are those of McMahan et al. for MNIST ("Communication-efficient
    learning of deep networks from decentralized data", AISTATS 2017, section 3): 5x5 convolutions of 32 and 64 filters
    that keep the image's size, each followed by 2x2 max pooling, a dense layer of 512 with ReLU, and one of the
    classes; 1,663,370 weights for MNIST, as in the paper.
    """

    def __init__(self, classes: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            for filters in (32, 64):
                self.add(
                    nn.Conv2D(filters, kernel_size=5, padding=2, activation="relu"),
                    nn.MaxPool2D(pool_size=2, strides=2),
                )
            self.add(nn.Dense(512, activation="relu"), nn.Dense(classes))


def _convolution(filters: int, stride: int) -> Any:
    return nn.Conv2D(filters, kernel_size=3, strides=stride, padding=1, use_bias=False)


class ResidualBlock(nn.HybridBlock):  # type: ignore[name-defined,misc]
    """Two convolutions and their shortcut: (N, C, H, W) to (N, C, H, W), or to (N, 2C, H/2, W/2)."""

    def __init__(self, filters: int, halves: bool, **kwargs: Any) -> None:
        """`halves`: the block halves the image (odd sides are rounded up) and doubles the filters."""
        super().__init__(**kwargs)
        self._halves = halves
        with self.name_scope():
            self.body = nn.HybridSequential(prefix="")
            self.body.add(
                _convolution(filters, stride=2 if halves else 1),
                nn.BatchNorm(),
                nn.Activation("relu"),
                _convolution(filters, stride=1),
                nn.BatchNorm(),
            )

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        shortcut = x
        if self._halves:
            # A pool of one pixel is the pixel: this takes every second one.
            shortcut = F.Pooling(x, kernel=(1, 1), stride=(2, 2), pool_type="max")
            shortcut = F.concat(shortcut, F.zeros_like(shortcut), dim=1)
        return F.relu(self.body(x) + shortcut)


class CifarResNet(nn.HybridSequential):  # type: ignore[name-defined,misc]
    """ResNet-20 and ResNet-32 (He et al., "Deep residual learning for image recognition", CVPR 2016, section 4.2): a
    3x3 convolution with 16 filters, then three stages of n blocks with 16, 32 and 64 filters, global average pooling
    and a dense layer; 6n + 2 layers with weights. Made for 32x32, but takes any size.

    Shortcuts are the paper's option A, which has no parameters: where a stage halves the image and doubles the filters,
    the shortcut takes every second pixel each way, and the new filters are zeros. Batch normalisation follows each
    convolution, which so needs no bias.
    """

    def __init__(self, blocks: int, classes: int, **kwargs: Any) -> None:
        """`blocks` is n of each stage."""
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(_convolution(FILTERS[0], stride=1), nn.BatchNorm(), nn.Activation("relu"))
            for stage, filters in enumerate(FILTERS):
                for block in range(blocks):
                    self.add(ResidualBlock(filters, halves=stage > 0 and block == 0))
            self.add(nn.GlobalAvgPool2D(), nn.Dense(classes))
