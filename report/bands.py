"""Curves of several runs of the same job -> their median and its interval at each point. Pure functions.

A value holds from its evaluation to the next, so a curve is a step function without interpolation. A band runs from
the latest first evaluation to the earliest last one: outside not all runs have a known value.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from report import statistics
from report.metrics import Curve

MAX_POINTS = 1000  # of a band; more cannot be seen


class Band(NamedTuple):
    """Medians of runs and the ends of their intervals, each (points,), at the points where a run was evaluated."""

    at: np.ndarray
    median: np.ndarray
    low: np.ndarray
    high: np.ndarray


def band(curves: Sequence[Curve]) -> Band | None:
    """The band of several curves; None where no point has a value on all of them. Raises ValueError for no curves, or
    one without evaluations."""
    if not curves or not all(curves):
        raise ValueError("a band needs curves, and each of them an evaluation")
    begin, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if end < begin:
        return None
    grid = np.array(sorted({at for curve in curves for at, _ in curve if begin <= at <= end}))
    if len(grid) > MAX_POINTS:
        grid = grid[np.linspace(0, len(grid) - 1, MAX_POINTS).round().astype(int)]
    values = []
    for places, its in (np.array(curve).T for curve in curves):
        values.append(its[np.searchsorted(places, grid, side="right") - 1])  # of the last evaluation until each point
    return Band(grid, *statistics.of_sorted(np.sort(values, axis=0)))
