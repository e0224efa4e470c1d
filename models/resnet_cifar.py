"""ResNet-20 and ResNet-32 for small images (He et al., "Deep residual learning for image recognition", CVPR 2016,
section 4.2): a 3x3 convolution with 16 filters, then three stages of n blocks with 16, 32 and 64 filters, global
average pooling and a dense layer; 6n + 2 layers with weights.

Shortcuts are the paper's option A, which has no parameters: where a stage halves the image and doubles the filters, the
shortcut takes every second pixel each way, and the new filters are zeros. Batch normalisation follows each convolution,
which so needs no bias.
"""

from typing import Any

from trainer.engine import mx

nn = mx.gluon.nn

FILTERS = (16, 32, 64)  # of each stage


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
    """(N, C, H, W) images to (N, classes) scores; made for 32x32, but takes any size."""

    def __init__(self, blocks: int, classes: int, **kwargs: Any) -> None:
        """`blocks` is n of each stage."""
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(_convolution(FILTERS[0], stride=1), nn.BatchNorm(), nn.Activation("relu"))
            for stage, filters in enumerate(FILTERS):
                for block in range(blocks):
                    self.add(ResidualBlock(filters, halves=stage > 0 and block == 0))
            self.add(nn.GlobalAvgPool2D(), nn.Dense(classes))
