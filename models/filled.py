"""Convolutions with few filters, filled up with filters of zeros, and ReLU behind the max pooling that follows.

oneDNN works in blocks of 8 or 16 channels: with 6 filters in place of 8 its convolutions and their gradients take up to
1.6 times as long, and without AVX-512 its pooling takes several times as long.

Loss and gradients are the same but for rounding, and so are the parameters' names and shapes: the filling has outputs
of 0, no layer reads them, and its gradients are dropped. ReLU lets the same values and gradients pass behind the
pooling as in front of it, where it has four times as many.
"""

from typing import Any

from trainer.engine import mx

nn = mx.gluon.nn
BLOCK = 8  # channels


class FilledConv2D(nn.Conv2D):  # type: ignore[name-defined,misc]
    """A Conv2D with ReLU, whose outputs are those of a multiple of BLOCK filters, before ReLU. With `reads_filled` the
    inputs come from another FilledConv2D; `others` are as of a Conv2D."""

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
    """A MaxPool2D, and the ReLU of the FilledConv2D in front of it."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return F.relu(super().hybrid_forward(F, x))
