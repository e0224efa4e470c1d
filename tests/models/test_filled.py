"""LeNet's filled convolutions and its pooling give what those of gluon give."""

import json

import numpy as np
import pytest

import models
from models.cropped import whole
from trainer.engine import mx


def loss_and_gradients(network, images):
    with mx.autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(network(images), mx.nd.arange(len(images)) % 10)
    loss.backward()
    return [loss.asnumpy(), *(parameter.grad().asnumpy() for parameter in network.collect_params().values())]


def images_of(shape, kind):
    """Random ones; or ones of few values, whose windows have equal outputs, above and below 0."""
    random = np.random.default_rng(2)
    if kind == "random":
        return random.normal(size=(16, *shape))
    blocks = random.integers(0, 2, (16, shape[0], 9, 9))
    return np.kron(blocks, np.ones((1, 1, 4, 4)))[:, :, : shape[1], : shape[2]]


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 31, 33)])
@pytest.mark.parametrize("kind", ["random", "equal"])
@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_loss_gradients_and_scores_are_those_of_gluons_layers(shape, kind, bias):
    network = models.build("lenet", shape, 10, mx.cpu(), seed=0)
    network[0].bias.set_data(mx.nd.full(6, bias))
    images = mx.nd.array(images_of(shape, kind))
    found, scores = loss_and_gradients(network, images), network(images).asnumpy()
    with whole(network):
        network.hybridize()  # forgets the graph
        expected, expected_scores = loss_and_gradients(network, images), network(images).asnumpy()
    for its, other in zip(found, expected, strict=True):
        assert np.abs(its - other).max() <= 1e-5 * np.abs(other).max()
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=1e-5)


def test_parameters_and_the_saved_layers_are_as_they_were():
    network = models.build("lenet", (1, 28, 28), 10, mx.cpu(), seed=0)
    assert list(network.collect_params())[:4] == [
        "lenet_conv0_weight", "lenet_conv0_bias", "lenet_conv1_weight", "lenet_conv1_bias",
    ]  # fmt: skip
    assert list(network._collect_params_with_prefix())[:4] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with whole(network):
        nodes = json.loads(network(mx.sym.var("data")).tojson())["nodes"]
    inside = [node["op"] for node in nodes if node["op"] != "null"]
    assert inside[:6] == 2 * ["Convolution", "Activation", "Pooling"]
    computed = json.loads(network(mx.sym.var("data")).tojson())["nodes"]
    assert [node["attrs"]["num_filter"] for node in computed if node["op"] == "Convolution"] == ["8", "16"]
