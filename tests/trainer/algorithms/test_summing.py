"""trainer/algorithms/summing.py: what travels beside the arrays of a sum, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.algorithms.summing import Piggyback


def test_numbers_come_back_as_sums_under_their_names():
    mine = Piggyback(1.0, 0.5, (0.25, 0.5), samples=64.0, pause=0.0)
    other = Piggyback(0.0, 1.5, (0.75, 0.5), samples=32.0, pause=1.0)
    assert mine.packed().tolist() == [1.0, 0.5, 0.25, 0.5, 64.0, 0.0]
    sums = mine.unpacked(mine.packed() + other.packed())
    assert sums == Piggyback(1.0, 2.0, (1.0, 1.0), samples=96.0, pause=1.0)


def test_what_is_none_does_not_travel():
    mine = Piggyback(0.0, 1.0, samples=None, pause=5.0)
    assert mine.packed().tolist() == [0.0, 1.0, 5.0]
    assert mine.packed().dtype == np.float32
    assert mine.unpacked([2.0, 3.0, 7.0]) == Piggyback(2.0, 3.0, pause=7.0)


def test_sums_of_another_length_are_refused():
    with pytest.raises(ValueError):
        Piggyback(0.0, 1.0, (1.0,)).unpacked([0.0, 1.0, 1.0, 2.0])
