"""Convolutions without the taps that meet nothing but padding give what the whole ones give."""

import numpy as np
import pytest
from hypothesis import assume, given, strategies as st

import models
from models.cropped import CroppedConv2D, crop, used_taps, whole
from trainer.engine import mx

CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # float32, summed in another order


def convolution(size, kernel, stride=1, padding=0):
    """A layer and four images of 3 channels for it; always the same weights."""
    layer = mx.gluon.nn.Conv2D(5, kernel, stride, padding, in_channels=3, activation="relu", prefix="conv_")
    layer.initialize()
    values = np.random.default_rng(0)
    layer.weight.set_data(mx.nd.array(values.normal(size=layer.weight.shape)))
    layer.bias.set_data(mx.nd.array(values.normal(size=5)))
    return layer, mx.nd.array(values.normal(size=(4, 3, *size)))


def outputs_and_gradients(network, images):
    images.attach_grad()
    with mx.autograd.record():
        outputs = network(images)
        loss = (outputs * outputs).sum()
    loss.backward()
    learned = [its.grad() for its in network.collect_params().values() if its.grad_req != "null"]
    return [each.asnumpy() for each in (outputs, images.grad, *learned)]


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 5), st.integers(0, 5))
def test_the_taps_that_are_left_out_never_meet_the_image_and_the_others_fall_on_the_same_pixels(
    size, kernel, stride, padding
):
    assume(size + 2 * padding >= kernel)
    first, behind = used_taps(size, kernel, stride, padding)
    begins = [output * stride - padding for output in range((size + 2 * padding - kernel) // stride + 1)]
    for begin in begins:
        assert not any(0 <= begin + tap < size for tap in (*range(first), *range(behind, kernel)))
    less = padding - first
    assert less >= 0
    assert begins == [
        output * stride - less - first for output in range((size + 2 * less - behind + first) // stride + 1)
    ]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "taps"),
    [
        ((1, 1), 3, 1, 1, ((1, 2), (1, 2))),  # ResNet's last convolutions
        ((2, 2), 3, 2, 1, ((1, 3), (1, 3))),  # the one before
        ((1, 4), 3, 1, 1, ((1, 2), (0, 3))),
        ((2, 3), 7, 1, 3, ((2, 5), (1, 6))),
    ],
)
@pytest.mark.parametrize("hybrid", [False, True])
def test_outputs_and_gradients_are_those_of_the_whole_convolution(size, kernel, stride, padding, taps, hybrid):
    uncropped, images = convolution(size, kernel, stride, padding)
    expected = outputs_and_gradients(uncropped, images)
    layer, _ = convolution(size, kernel, stride, padding)
    crop(layer, images.shape[1:])
    assert (type(layer), layer.taps) == (CroppedConv2D, taps)
    layer.hybridize(hybrid)
    for its, other in zip(outputs_and_gradients(layer, images), expected, strict=True):
        np.testing.assert_allclose(its, other, **CLOSE)


@pytest.mark.parametrize(("size", "kernel", "padding"), [((2, 2), 3, 1), ((1, 1), 1, 0), ((5, 5), 5, 0)])
def test_a_convolution_that_needs_all_its_taps_is_left_alone(size, kernel, padding):
    layer, images = convolution(size, kernel, padding=padding)
    crop(layer, images.shape[1:])
    assert type(layer) is mx.gluon.nn.Conv2D


def test_a_layer_that_is_used_for_images_of_two_sizes_is_left_alone():
    class Twice(mx.gluon.HybridBlock):
        def __init__(self):
            super().__init__(prefix="twice_")
            self.conv = mx.gluon.nn.Conv2D(3, 3, padding=1, in_channels=3, prefix="conv_")

        def hybrid_forward(self, F, x):
            return self.conv(F.Pooling(self.conv(x), kernel=(2, 2), stride=(2, 2)))

    network = Twice()
    crop(network, (3, 2, 2))
    assert type(network.conv) is mx.gluon.nn.Conv2D


def cropped_layers(network):
    found = []
    network.apply(lambda layer: found.append(layer.name) if type(layer) is CroppedConv2D else None)
    return found


def test_resnet18_on_small_images_computes_the_same_with_its_last_stage_cropped(monkeypatch):
    images = mx.nd.array(np.random.default_rng(1).normal(size=(8, 1, 28, 28)))
    network = models.build("resnet18-v1", (1, 28, 28), 10, mx.cpu(), seed=0)
    assert cropped_layers(network) == [f"resnet18_v1_stage4_conv{number}" for number in (0, 1, 3, 4)]
    monkeypatch.setattr(models.cropped, "crop", lambda *_: None)
    uncropped = models.build("resnet18-v1", (1, 28, 28), 10, mx.cpu(), seed=0)
    assert not cropped_layers(uncropped)
    pairs = zip(network.collect_params().values(), uncropped.collect_params().values(), strict=True)
    assert all(its.name == other.name and (its.data() == other.data()).min().asscalar() for its, other in pairs)
    for its, other in zip(
        outputs_and_gradients(network, images), outputs_and_gradients(uncropped, images), strict=True
    ):
        assert np.abs(its - other).max() <= 1e-3 * np.abs(other).max()


@pytest.mark.parametrize("name", ["resnet18-v1", "mobilenet-v1"])
def test_a_symbol_of_the_whole_network_is_right_for_images_of_any_size_and_the_network_stays_cropped(name):
    network = models.build(name, (1, 28, 28), 10, mx.cpu(), seed=0)
    before = cropped_layers(network)
    with whole(network):
        assert not cropped_layers(network)
        symbol = network(mx.sym.var("data"))
    assert cropped_layers(network) == before != []
    images = mx.nd.array(np.random.default_rng(1).normal(size=(2, 1, 64, 64)))
    module = mx.mod.Module(symbol, label_names=None)
    module.bind([("data", images.shape)], for_training=False)
    values = {its.name: its.data() for its in network.collect_params().values()}
    auxiliary = set(symbol.list_auxiliary_states())
    module.set_params(
        {key: value for key, value in values.items() if key not in auxiliary},
        {key: value for key, value in values.items() if key in auxiliary},
    )
    module.forward(mx.io.DataBatch([images]))
    uncropped = models.build(name, (1, 64, 64), 10, mx.cpu(), seed=0)
    assert not set(before) & set(cropped_layers(uncropped))
    np.testing.assert_allclose(module.get_outputs()[0].asnumpy(), uncropped(images).asnumpy(), **CLOSE)


def test_resnet18_on_large_images_needs_all_its_taps():
    assert not cropped_layers(models.build("resnet18-v1", (3, 224, 224), 10, mx.cpu(), seed=0))
