"""Convolutions without the taps of their kernels that only meet padding.

The last convolutions of gluon's ResNets have inputs of 1 x 1 for images of 28 x 28: eight of the nine taps of a 3 x 3
kernel only multiply zeros. Here the kernel is cropped to the taps that meet the image. Outputs and gradients are the
same but for rounding (those of the other taps are 0 as before), and the parameter keeps its name and shape.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from models.small import FilledConv2D, PoolReLU
from trainer.engine import mx


def used_taps(size: int, kernel: int, stride: int, padding: int) -> tuple[int, int]:
    """The first tap that meets the image in one direction, and the one after the last.

    All taps if without those at the end the kernel would fit once more, and give one more output.

    Args:
        size: pixels of the image.
        kernel: taps.
        stride: pixels from one output to the next.
        padding: zeros on either side.
    """
    begins = range(-padding, size + padding - kernel + 1, stride)
    used = [tap for tap in range(kernel) if any(0 <= begin + tap < size for begin in begins)]
    first, end = (used[0], used[-1] + 1) if used else (0, kernel)
    cropped = range(first - padding, size + padding - end + 1, stride)
    return (first, end) if len(cropped) == len(begins) else (0, kernel)


class CroppedConv2D(mx.gluon.nn.Conv2D):  # type: ignore[misc]
    """A Conv2D with `taps` alone: down and across, the first and the one after the last.

    It is correct only for the image size that `crop`, which makes these layers, was given.
    """

    taps: tuple[tuple[int, int], tuple[int, int]]

    def hybrid_forward(self, F: Any, x: Any, weight: Any, bias: Any = None) -> Any:
        begins, ends = zip(*self.taps, strict=True)
        values = self._kwargs | {
            "kernel": tuple(end - begin for begin, end in self.taps),
            "pad": tuple(pad - begin for pad, begin in zip(self._kwargs["pad"], begins, strict=True)),
        }
        weight = F.slice(weight, begin=(None, None, *begins), end=(None, None, *ends))
        y = F.Convolution(*(each for each in (x, weight, bias) if each is not None), name="fwd", **values)
        return y if self.act is None else self.act(y)


FORMS = (CroppedConv2D, FilledConv2D, PoolReLU)  # of their base classes' layers


def crop(network: Any, image_shape: tuple[int, int, int]) -> None:
    """Makes each Conv2D with superfluous taps a CroppedConv2D. The network is not hybridized, and its parameters have
    known shapes; `image_shape` is (C, H, W) of its inputs."""
    sizes = _image_sizes(network, image_shape)

    def of(layer: Any) -> None:
        image = sizes.get(layer.name)
        if type(layer) is not mx.gluon.nn.Conv2D or image is None:
            return
        kernel, stride, pad, dilate = (layer._kwargs[key] for key in ("kernel", "stride", "pad", "dilate"))
        along = list(zip(image, kernel, stride, pad, strict=True))
        taps = tuple(used_taps(*each) for each in along)
        if set(dilate) == {1} and taps != tuple((0, number) for number in kernel):
            layer.__class__, layer.taps = CroppedConv2D, taps

    network.apply(of)


@contextmanager
def whole(network: Any) -> Iterator[None]:
    """The layers are gluon's own inside the context: for a symbol that takes images of any size."""
    own: list[tuple[Any, Any]] = []
    network.apply(lambda layer: own.append((layer, type(layer))) if isinstance(layer, FORMS) else None)
    for layer, form in own:
        layer.__class__ = form.__base__
    try:
        yield
    finally:
        for layer, form in own:
            layer.__class__ = form


def _image_sizes(network: Any, image_shape: tuple[int, int, int]) -> dict[str, tuple[int, int] | None]:
    """The (H, W) of each convolution's input by its layer's name; None where it is unknown, or where a layer has inputs
    of several sizes."""
    graph = network(mx.sym.Variable("data"))
    inside = graph.get_internals()
    _, shapes, _ = inside.infer_shape(data=(2, *image_shape))
    of_output = dict(zip(inside.list_outputs(), shapes, strict=True))
    nodes = json.loads(graph.tojson())["nodes"]
    sizes: dict[str, tuple[int, int] | None] = {}
    for node in nodes:
        if node["op"] == "Convolution":
            source = nodes[node["inputs"][0][0]]["name"]
            shape = of_output.get(source if source == "data" else f"{source}_output")
            layer, size = node["name"].removesuffix("_fwd"), shape and shape[2:]
            sizes[layer] = size if sizes.get(layer, size) == size else None
    return sizes
