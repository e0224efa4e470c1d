"""A convolution with few filters, the max pooling of 2 x 2 that follows, and ReLU, as one convolution and a maximum.

oneDNN has no fast convolution, and without AVX-512 no fast pooling, for a number of filters that does not fill its
blocks of 8 or 16 channels. Here one convolution with a stride of 2 gives the four outputs of each window as channels:
it has the kernel at the four places in one that is a tap larger each way, with zeros around.

Loss and gradients are the same but for rounding, and so are the parameters' names and shapes. Of equal outputs in a
window the first gets the gradient, as in a pooling. Where no output is above 0, ReLU lets no gradient pass, in front of
the maximum or behind it.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from trainer.engine import mx

nn = mx.gluon.nn
PLACES = tuple(product((0, 1), repeat=2))  # down and across, in the order of a pooling


class PooledConv2D(nn.Conv2D):  # type: ignore[name-defined,misc]
    """A Conv2D of stride 1 with ReLU, whose outputs come out of the Pooled behind it."""

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any) -> Any:
        widths = [(0, 0, 0, 0, down, 1 - down, across, 1 - across) for down, across in PLACES]
        placed = [F.Pad(weight, mode="constant", pad_width=width) for width in widths]
        values = self._kwargs | {
            "kernel": tuple(taps + 1 for taps in self._kwargs["kernel"]),
            "stride": (2, 2),
            "num_filter": len(PLACES) * self._channels,
        }
        outputs = F.Convolution(x, F.concat(*placed, dim=0), F.tile(bias, reps=len(PLACES)), **values)
        first, second, third, fourth = F.split(outputs, num_outputs=len(PLACES), axis=1)
        return self.act(F.maximum(F.maximum(first, second), F.maximum(third, fourth)))


class Pooled(nn.MaxPool2D):  # type: ignore[name-defined,misc]
    """The pooling that a PooledConv2D has done."""

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        return x
