"""A gluon network as arrays of numpy: whose memory they are, until when, and parameters by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from one_worker import network_with_statistics

from trainer.draws import Draws
from trainer.engine import memory_of, mx
from trainer.jobs.gluon import GluonNetwork, structural_names
from trainer.network import Batch


def gluon(block: Any) -> GluonNetwork:
    block.initialize(mx.init.Xavier())
    return GluonNetwork(block, mx.cpu())


def dense() -> GluonNetwork:
    return gluon(mx.gluon.nn.Dense(1, use_bias=False, in_units=3))


def batch(number: int) -> Batch:
    """Sample n is n, n and n; the targets are 0."""
    return Batch((mx.nd.arange(number).reshape((-1, 1)).tile((1, 3)),), (mx.nd.zeros((number,)),), number)


# ------------------------------------------------------------------------------------------------- host arrays


def test_on_the_cpu_the_arrays_are_the_networks_own_memory_and_the_same_ones_until_it_is_used() -> None:
    network = network_with_statistics()
    block = network.layers
    parameters = block.collect_params()
    for arrays, own in (
        (network.weights, [parameters[name].data() for name in network.names]),
        (network.gradients, [parameters[name].grad() for name in network.names]),
        (network.statistics, [block[1].running_mean.data(), block[1].running_var.data()]),
    ):
        for array, its in zip(arrays, own, strict=True):
            assert np.shares_memory(array, memory_of(its)) and array.shape == its.shape
            assert array.dtype == np.float32 and array.flags.c_contiguous and array.flags.writeable
    for kind in ("weights", "gradients", "statistics"):
        before = getattr(network, kind)
        assert getattr(network, kind) is before
        network.begin()
        assert getattr(network, kind) is not before


def test_what_the_host_writes_the_network_computes_with() -> None:
    network = dense()
    network.weights[0][:] = [[1, 2, 4]]
    assert network.outputs(batch(3)).asnumpy().ravel().tolist() == [0, 7, 14]
    network.weights[0][:] = 1
    assert network.outputs(batch(3)).asnumpy().ravel().tolist() == [0, 3, 6]


def test_after_a_pass_the_arrays_are_got_again_wait_for_it_and_have_its_values() -> None:
    """Of the loss sum(w x) the gradient is sum(x) = n (n - 1) / 2. Without a wait for so many samples it would be that
    of the pass before."""
    network = dense()
    passes = network.passes(lambda outputs, targets: outputs[:, 0] - targets, Draws(network.seed), lambda: 0)
    for number in (1 << 10, 1 << 12, 1 << 10):
        weights = network.weights
        passes.forward(batch(number))
        assert network.weights is not weights
        gradients = network.gradients
        passes.backward()
        assert network.gradients is not gradients
        np.testing.assert_allclose(network.gradients[0], np.full((1, 3), number * (number - 1) / 2), rtol=1e-5)
        assert passes.loss() == pytest.approx(network.weights[0].sum() * (number - 1) / 2, rel=1e-4)


def test_a_write_waits_for_the_passes_that_read() -> None:
    network, size = gluon(mx.gluon.nn.Dense(2000, use_bias=False, in_units=2000)), 2000
    network.weights[0][:] = 1
    outputs = network.layers(mx.nd.ones((200, size)))  # takes some 10 ms
    network.weights[0][:] = 0
    assert (outputs.asnumpy() == size).all()
    assert not network.layers(mx.nd.ones((1, size))).asnumpy().any()


def test_weights_in_the_layout_that_an_inference_pass_leaves_are_read_and_written_in_their_own_order() -> None:
    network, inputs = gluon(mx.gluon.nn.Conv2D(512, 3, in_channels=512, use_bias=False)), mx.nd.ones((2, 512, 8, 8))
    before = network.weights[0].copy()
    once = network.layers(inputs).asnumpy()
    np.testing.assert_array_equal(network.weights[0], before)
    network.weights[0][:] *= 2
    np.testing.assert_allclose(network.layers(inputs).asnumpy(), 2 * once, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(network.weights[0], 2 * before)
    np.testing.assert_array_equal(network.state()["weight"], 2 * before)


def test_frozen_weights_are_apart_from_those_that_are_trained_and_from_the_statistics() -> None:
    block = network_with_statistics().layers
    block[0].collect_params().setattr("grad_req", "null")
    network = GluonNetwork(block, mx.cpu())
    assert [array.shape for array in network.frozen] == [(4, 1, 3, 3), (4,)]
    assert [name.partition("_")[2] for name in network.names] == ["gamma", "beta", "weight", "bias"]
    assert [array.shape for array in network.statistics] == [(4,), (4,)]


# ------------------------------------------------------------------------------------------- parameters by name


def test_the_state_is_a_copy_of_all_parameters_and_loads_into_another_network() -> None:
    first, other = (network_with_statistics() for _ in range(2))
    for number, array in enumerate((*first.weights, *first.statistics)):
        array[:] = number
    state = first.state()
    assert {*state} == {
        *("0.weight", "0.bias", "1.gamma", "1.beta", "1.running_mean", "1.running_var", "3.weight", "3.bias")
    }
    first.weights[0][:] = 100
    weights = other.weights
    other.load(state)
    assert other.weights is not weights
    assert [array.min() for array in (*other.weights, *other.statistics)] == [*range(8)]
    assert [array.max() for array in (*other.weights, *other.statistics)] == [*range(8)]
    other.load({"3.bias": np.full(10, 9.0)})  # the others stay
    assert [array.max() for array in other.weights] == [0, 1, 2, 3, 4, 9]


def test_a_shared_parameter_is_there_once_by_the_first_of_its_names() -> None:
    block = mx.gluon.nn.HybridSequential()
    first = mx.gluon.nn.Dense(3, in_units=3)
    block.add(first, mx.gluon.nn.Dense(3, in_units=3, params=first.params), mx.gluon.nn.Dense(2, in_units=3))
    network = gluon(block)
    assert [*structural_names(block).values()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [array.shape for array in network.weights] == [(3, 3), (3,), (2, 3), (2,)]
    network.load({name: np.ones_like(array) for name, array in network.state().items()})
    assert network.outputs(Batch((mx.nd.ones((1, 3)),), (), 1)).asnumpy().tolist() == [[40, 40]]
