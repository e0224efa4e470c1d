"""Every network trains a step on the CPU at its own input size; those that are written here have the papers' sizes."""

import math

import numpy as np
import pytest

import models
from config import NETWORKS
from models.small import ResidualBlock
from report.definitions import MODEL_BYTES
from trainer.engine import device_context, mx
from trainer.jobs.gluon import GluonNetwork
from trainer.network import Parameters
from trainer.steps import PLAIN, Stepper, which_decay
from utils import SetupError


def network_of(name, shape, classes=10, seed=0):
    return GluonNetwork(models.build(name, shape, classes, mx.cpu(), seed), mx.cpu())


def test_the_registry_holds_the_networks_of_the_command_line():
    assert tuple(models.REGISTRY) == NETWORKS


def test_the_sizes_for_the_published_traffic_are_those_of_the_networks():
    def size(name):
        side = models.REGISTRY[name].input_size or 28
        return Parameters(network_of(name, (1, side, side))).num_bytes()

    assert {name: size(name) for name in NETWORKS} == MODEL_BYTES


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_a_step_at_its_own_input_size(name):
    size = models.REGISTRY[name].input_size or 28
    network = network_of(name, (1, size, size), seed=3)
    mx.random.seed(0)
    images, labels = mx.nd.random.uniform(shape=(2, 1, size, size)), mx.nd.array([1, 8])
    loss_function = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    with mx.autograd.record():
        scores = network.layers(images)
        loss = loss_function(scores, labels)
    loss.backward()
    parameters = Parameters(network)
    before = [weight.copy() for weight in parameters.weights]
    Stepper(PLAIN, which_decay(parameters.weights)).step(parameters.weights, parameters.gradients, 0.01)
    assert scores.shape == (2, 10)
    assert math.isfinite(loss.mean().asscalar())
    moved = [np.abs(new - old).max() for new, old in zip(parameters.weights, before, strict=True)]
    assert all(map(math.isfinite, moved))
    assert max(moved) > 0
    every = network.layers.collect_params(".*running_var").values()
    assert all((variances.data() != 1).min().asscalar() for variances in every)  # also those of an input


@pytest.mark.parametrize("name", [name for name in NETWORKS if not models.REGISTRY[name].input_size])
def test_colour_images_of_cifar100_and_its_classes_fit_too(name):
    network = network_of(name, (3, 32, 32), 100)
    assert network.layers(mx.nd.zeros((2, 3, 32, 32))).shape == (2, 100)


# Of the published layers, by hand: a k x k convolution has k * k * inputs * outputs weights, and as many biases as
# outputs where no BatchNorm follows; a dense layer inputs * outputs + outputs. BatchNorm learns a scale and a shift for
# each filter; its running mean and variance, as many, are no weights.
#   ResNet-20 has 7, 6 and 6 convolutions of 16, 32 and 64 filters, the first of which sees the image's channels:
#       9 * 16 * C + 6 * 9 * 16 * 16 + 9 * 16 * 32 + 5 * 9 * 32 * 32 + 9 * 32 * 64 + 5 * 9 * 64 * 64 = 144 C + 267,264
#       BatchNorm: 2 * (7 * 16 + 6 * 32 + 6 * 64) = 1,376;  dense: 65 K.   For C = 3, K = 10: 269,722 (paper: 0.27 M)
#   ResNet-32 has 11, 10 and 10:
#       144 C + 10 * 2,304 + 4,608 + 9 * 9,216 + 18,432 + 9 * 36,864 = 144 C + 460,800
#       BatchNorm: 2 * (11 * 16 + 10 * 32 + 10 * 64) = 2,272;  dense: 65 K.          464,154 (paper: 0.46 M)
#   The CNN halves images of S x S pixels twice:
#       25 * 32 * C + 32 + 25 * 32 * 64 + 64 + 64 * (S / 4)^2 * 512 + 512 + 513 K.   C = 1, S = 28, K = 10: 1,663,370
#       (published by McMahan et al.)
#   The perceptron: 32 * C * S * S + 32 + 33 K.   784 * 32 + 32 + 32 * 10 + 10 = 25,450
#   LeNet-5: 150 C + 6 + 16 * 151 + 16 * ((S / 2 - 4) / 2)^2 * 120 + 120 + 121 * 84 + 85 K = 61,706 of C = 1, S = 28
IMAGES = ((1, 28, 10), (3, 32, 10), (3, 32, 100), (1, 28, 100))  # C, S, K
WRITTEN_HERE = {  # weights for each of IMAGES, and BatchNorm's statistics
    "lenet": ((61_706, 83_126, 90_776, 69_356), 0),
    "resnet20": ((269_434, 269_722, 275_572, 275_284), 1_376),
    "resnet32": ((463_866, 464_154, 470_004, 469_716), 2_272),
    "cnn": ((1_663_370, 2_156_490, 2_202_660, 1_709_540), 0),
    "mlp": ((25_450, 98_666, 101_636, 28_420), 0),
}


@pytest.mark.parametrize("name", WRITTEN_HERE)
def test_a_network_has_exactly_the_published_number_of_parameters(name):
    weights, statistics = WRITTEN_HERE[name]
    for expected, (channels, side, classes) in zip(weights, IMAGES, strict=True):
        parameters = Parameters(network_of(name, (channels, side, side), classes))
        assert sum(weight.size for weight in parameters.weights) == expected
        assert sum(flat.size for flat in parameters.statistics()) == statistics


def test_a_shortcut_takes_every_second_pixel_and_has_zeros_for_the_new_filters():
    block = ResidualBlock(4, halves=True)
    block.initialize(mx.init.Zero())  # what is added to the shortcut is zero then
    images = np.random.default_rng(0).normal(size=(2, 2, 5, 6)).astype(np.float32)
    out = block(mx.nd.array(images)).asnumpy()
    assert out.shape == (2, 4, 3, 3)
    np.testing.assert_array_equal(out[:, :2], np.maximum(images[:, :, ::2, ::2], 0))
    np.testing.assert_array_equal(out[:, 2:], 0)


def test_the_seed_decides_the_initial_weights():
    def first_weights(seed):
        return network_of("lenet", (1, 28, 28), seed=seed).weights[0].tolist()

    assert first_weights(1) == first_weights(1)
    assert first_weights(1) != first_weights(2)


def test_a_gpu_that_is_not_there_is_an_error_that_names_the_cpu_flag():
    with pytest.raises(SetupError, match="-c 1"):
        device_context(use_cpu=False, gpu=99)
    assert device_context(use_cpu=True, gpu=99) == mx.cpu()
