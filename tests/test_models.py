"""Every network trains a step on the CPU at its own input size."""

import math

import pytest

import models
from config import NETWORKS
from report.definitions import MODEL_BYTES
from trainer.engine import device_context, mx
from trainer.parameters import Parameters
from trainer.steps import PLAIN, Stepper
from utils import SetupError

# As published, for one grey channel and ten classes (counted once from the definitions of the papers' layers).
LENET_WEIGHTS = 6 * 25 + 6 + 16 * 6 * 25 + 16 + 400 * 120 + 120 + 120 * 84 + 84 + 84 * 10 + 10


def test_the_registry_holds_the_networks_of_the_command_line():
    assert tuple(models.REGISTRY) == NETWORKS


def test_the_sizes_for_the_published_traffic_are_those_of_the_networks():
    def size(name):
        side = models.REGISTRY[name].input_size or 28
        return Parameters(models.build(name, (1, side, side), mx.cpu(), seed=0)).num_bytes()

    assert {name: size(name) for name in NETWORKS} == MODEL_BYTES


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_trains_a_step_at_its_own_input_size(name):
    size = models.REGISTRY[name].input_size or 28
    network = models.build(name, (1, size, size), mx.cpu(), seed=3)
    mx.random.seed(0)
    images, labels = mx.nd.random.uniform(shape=(2, 1, size, size)), mx.nd.array([1, 8])
    loss_function = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    with mx.autograd.record():
        scores = network(images)
        loss = loss_function(scores, labels)
    loss.backward()
    parameters = Parameters(network)
    before = [weight.copy() for weight in parameters.weights]
    Stepper(PLAIN).step(parameters.weights, parameters.gradients, 0.01)
    assert scores.shape == (2, models.NUM_CLASSES)
    assert math.isfinite(loss.mean().asscalar())
    moved = [(new - old).abs().max().asscalar() for new, old in zip(parameters.weights, before, strict=True)]
    assert all(map(math.isfinite, moved))
    assert max(moved) > 0


def test_colour_images_of_cifar10_fit_too():
    network = models.build("resnet18-v1", (3, 32, 32), mx.cpu(), seed=0)
    assert network(mx.nd.zeros((2, 3, 32, 32))).shape == (2, 10)


def test_lenet_has_the_size_of_lenet5():
    network = models.build("lenet", (1, 28, 28), mx.cpu(), seed=0)
    assert Parameters(network).num_bytes() == 4 * LENET_WEIGHTS


def test_the_seed_decides_the_initial_weights():
    def first_weights(seed):
        return Parameters(models.build("lenet", (1, 28, 28), mx.cpu(), seed)).weights[0].asnumpy().tolist()

    assert first_weights(1) == first_weights(1)
    assert first_weights(1) != first_weights(2)


def test_a_gpu_that_is_not_there_is_an_error_that_names_the_cpu_flag():
    with pytest.raises(SetupError, match="-c 1"):
        device_context(use_cpu=False, gpu=99)
    assert device_context(use_cpu=True, gpu=99) == mx.cpu()
