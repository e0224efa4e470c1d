"""Arrays of zeros do what MXNet's own do."""

from __future__ import annotations

import operator

import numpy as np
import pytest

from trainer.engine import mx
from trainer.simulation.zeros import Zeros

SHAPE = (2, 3)


def ones():
    return mx.nd.ones(SHAPE)


IN_PLACE = [operator.iadd, operator.isub, operator.imul]
EXPRESSIONS = [
    *(lambda x, other, op=op: op(x, other) for op in (operator.add, operator.sub, operator.mul, *IN_PLACE)),
    *(lambda x, other, op=op: op(ones(), x) for op in (operator.add, operator.sub, operator.mul, *IN_PLACE)),
    *(lambda x, other, op=op: op(x, 2) for op in (operator.add, operator.sub, operator.mul, operator.truediv)),
    *(lambda x, other, op=op: op(x, 2.5) for op in (operator.imul, operator.itruediv)),
    *(lambda x, other, op=op: op(2, x) for op in (operator.add, operator.sub, operator.mul)),
    *(lambda x, other, op=op: op(x, ones()) for op in (operator.add, operator.sub, operator.mul, operator.truediv)),
    *(lambda x, other, shape=shape: x.reshape(shape) for shape in (-1, (-1,), (3, 2), (0, -1))),
    lambda x, other: x.reshape(3, 2),
    lambda x, other: x.copy(),
    lambda x, other: x.copyto(other),
    lambda x, other: x.copyto(ones()),
    lambda x, other: x.zeros_like(),
    lambda x, other: x.as_in_context(mx.cpu()),
    lambda x, other: x.astype("float16"),
    lambda x, other: (x + 1e-7).sqrt(),
    lambda x, other: x[1],
    lambda x, other: mx.nd.add_n(x, ones(), other),
    lambda x, other: mx.nd.concat(x, other, dim=0),
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_comes_out_is_what_comes_out_of_mxnets(expression):
    found, wanted = (expression(make(SHAPE), make(SHAPE)) for make in (Zeros, mx.nd.zeros))
    assert (found.shape, found.dtype, found.size, found.context) == (
        wanted.shape,
        wanted.dtype,
        wanted.size,
        wanted.context,
    )
    np.testing.assert_array_equal(found.asnumpy(), wanted.asnumpy())


def test_zeros_that_are_written_to_them_stay_zeros():
    written = Zeros(SHAPE)
    written[:] = Zeros(SHAPE)
    written[:] = 0
    mx.nd.sgd_update(written, Zeros(SHAPE), lr=1.0, out=written)
    assert not written.asnumpy().any()
