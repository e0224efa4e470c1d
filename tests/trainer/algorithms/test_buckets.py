"""Arrays in buckets come out as they went in, whatever their shapes, and in few pieces."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import models
from trainer.algorithms import buckets
from trainer.algorithms.buckets import Buckets
from trainer.engine import mx
from trainer.jobs.gluon import GluonNetwork
from trainer.parameters import Parameters

SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), min_size=1, max_size=6)


@given(SHAPES)
def test_what_was_packed_comes_out_as_it_was(shapes):
    arrays = [np.random.default_rng(0).random(shape, np.float32) for shape in shapes]
    grouped = Buckets(arrays)
    packed = grouped.pack(arrays)
    assert len(packed) == len(grouped) and all(flat.ndim == 1 for flat in packed)
    for array, again in zip(arrays, grouped.unpack(packed), strict=True):
        np.testing.assert_array_equal(array, again)


def test_what_was_packed_does_not_change_with_the_arrays():
    for arrays in ([np.zeros((2, 2))], [np.zeros((2, 2)), np.zeros(3)]):
        packed = Buckets(arrays).pack(arrays)
        arrays[0] += 1
        assert not packed[0].any()


@pytest.mark.parametrize(("sizes", "number"), [((4, 4), 1), ((4, 5), 2), ((9, 1), 2), ((1, 9, 1), 3), ((3, 3, 3), 2)])
def test_neighbours_share_a_bucket_while_there_is_room(monkeypatch, sizes, number):
    monkeypatch.setattr(buckets, "MAX_SIZE", 8)
    assert len(Buckets([np.zeros(size) for size in sizes])) == number


def test_lenet_is_one_bucket_also_with_weights_in_the_layout_that_an_inference_pass_leaves():
    network = GluonNetwork(models.build("lenet", (1, 28, 28), 10, mx.cpu(), 0), mx.cpu())
    before = np.concatenate([array.reshape(-1) for array in network.weights])
    network.layers(mx.nd.zeros((2, 1, 28, 28)))
    model = Parameters(network).model()
    (packed,) = Buckets(model).pack(model)
    np.testing.assert_array_equal(packed, before)
