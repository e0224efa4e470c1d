"""Arithmetic by pieces sees each number once, in the arrays themselves; a sum has the order of MXNet's add_n."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.engine import mx
from trainer.steps import PIECE, pieces, sum_of


@pytest.mark.parametrize("size", [1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE])
def test_the_pieces_of_two_arrays_are_their_own_memory_in_turn(size: int) -> None:
    first, second = np.zeros((size, 1), np.float32), np.arange(size).reshape(size, 1)
    lengths = []
    for number, (mine, other) in enumerate(pieces(first, second)):
        assert mine.shape == other.shape
        lengths.append(mine.size)
        mine += other
        mine += number
    np.testing.assert_array_equal(first, second + second // PIECE)
    assert lengths == [PIECE] * (size // PIECE) + [size % PIECE] * (size % PIECE > 0)


def test_a_large_array_whose_pieces_would_be_copies_is_refused() -> None:
    array = np.zeros((PIECE, 4))
    for other in (array.T, array[:, :2]):
        with pytest.raises(AttributeError):
            next(pieces(other))


@pytest.mark.parametrize("number", range(1, 9))
def test_a_sum_is_mxnets_to_the_bit_in_an_array_of_its_own(number: int) -> None:
    random = np.random.default_rng(number)
    arrays = [random.standard_normal((3, 500), np.float32) for _ in range(number)]
    before = [array.copy() for array in arrays]
    total = sum_of(arrays)
    np.testing.assert_array_equal(total, mx.nd.add_n(*map(mx.nd.array, arrays)).asnumpy())
    assert not any(np.shares_memory(total, array) for array in arrays)
    np.testing.assert_array_equal(arrays, before)
