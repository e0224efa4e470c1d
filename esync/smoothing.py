"""Smoothed measured times."""

from __future__ import annotations

import statistics
from collections import deque

WINDOW = 5  # times


class Smoothed:
    """The lower median of the last five times, as the state server smooths step times: one outlier has no effect, a
    lasting change has after three."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def add(self, value: float) -> None:
        """Adds a time in seconds."""
        self._values.append(value)

    @property
    def value(self) -> float:
        return statistics.median_low(self._values) if self._values else 0.0
