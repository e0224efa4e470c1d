"""The networks by name: gluon's model zoo, and own ones for small images and slow machines."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from models import cropped
from models.small import CifarResNet, LeNet5, Perceptron, TwoConvolutions
from trainer.engine import mx

zoo = mx.gluon.model_zoo.vision


class Network(NamedTuple):
    """How to build a network."""

    factory: Callable[..., Any]
    input_size: int = 0  # side of its square inputs; 0: that of the images


REGISTRY = {
    "alexnet": Network(zoo.alexnet, 224),
    "resnet18-v1": Network(zoo.resnet18_v1),
    "resnet50-v1": Network(zoo.resnet50_v1),
    "resnet50-v2": Network(zoo.resnet50_v2),
    "mobilenet-v1": Network(zoo.mobilenet1_0),
    "mobilenet-v2": Network(zoo.mobilenet_v2_1_0),
    "inception-v3": Network(zoo.inception_v3, 299),
    "lenet": Network(LeNet5),
    "resnet20": Network(partial(CifarResNet, 3)),
    "resnet32": Network(partial(CifarResNet, 5)),
    "cnn": Network(TwoConvolutions),
    "mlp": Network(Perceptron),
}


def build(name: str, image_shape: tuple[int, int, int], classes: int, context: mx.Context | None, seed: int) -> Any:
    """Builds a network of REGISTRY with initial weights on `context`, hybridized.

    The shapes are inferred without a forward pass, which would leave convolution weights in oneDNN's own layout, which
    the kvstore cannot take. `image_shape`: (C, H, W) of its inputs. `seed`: of the initial weights, which are then the
    same in every process.
    """
    # Without a prefix the parameters' names would count the networks that this process has built.
    network = REGISTRY[name].factory(classes=classes, prefix=f"{name.replace('-', '_')}_")
    network.apply(_with_backward_pass)
    # Shapes do not depend on the batch size, but their inference in BatchNorm needs more than one sample.
    with cropped.whole(network):
        network.infer_shape(mx.nd.zeros((2, *image_shape), ctx=context))
        cropped.crop(network, image_shape)
    mx.random.seed(seed)
    network.initialize(mx.init.Xavier(), ctx=context)
    network.hybridize()
    return network


def _with_backward_pass(layer: Any) -> None:
    """Gives a BatchNorm without trained parameters a gradient, of zeros, for its fixed gamma.

    On a CPU MXNet updates the running statistics in the backward pass, and leaves that out at an input that needs no
    gradient: those of ResNet-v2's first layer stayed 0 and 1, and its evaluations were no better than chance.
    """
    if isinstance(layer, mx.gluon.nn.BatchNorm) and layer.gamma.grad_req == layer.beta.grad_req == "null":
        layer.gamma._differentiable = True
        layer.gamma.grad_req = "write"
