"""Measured times of which one outlier must not show."""

from __future__ import annotations

import statistics
from collections import deque

WINDOW = 5  # times that the smoothed one is taken from


class Smoothed:
    """The lower median of the last five times, as the state server smooths step times: one outlier does not show, and a
    lasting change shows after three."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        """Adds a time in seconds."""
        self._values.append(value)

    @property
    def value(self) -> float:
        return statistics.median_low(self._values) if self._values else 0.0
