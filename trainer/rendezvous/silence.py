"""How long the other workers of a job without a parameter server may be silent."""

from __future__ import annotations

import math
import statistics
from collections import deque

SHORTEST_S, LONGEST_S = 1.0, 10.0
BEAT_S = 1.0  # between two heartbeats, at most
ROUNDS, FEWEST = 20, 5  # the newest that count; with fewer nothing is known of them
GAPS = 3.0  # times the longest gap between two heartbeats: where all cores are busy they come late
REMEMBERED_S = 60.0  # a gap


class Silence:
    """What one worker has measured of its rounds and of others' heartbeats; any thread may use it."""

    def __init__(self, fixed_s: float | None = None) -> None:
        """`fixed_s`: the limit, whatever is measured."""
        self._fixed_s = fixed_s
        # Between two heartbeats: others may be sooner at the end of their patience than this worker.
        self.beat_s = min(BEAT_S, (fixed_s or SHORTEST_S) / 4)
        self._rounds_s: deque[float] = deque(maxlen=ROUNDS)
        self._gaps: deque[tuple[float, float]] = deque()  # when, and seconds: each longer than those after it

    def add_round(self, took_s: float) -> None:
        self._rounds_s.append(took_s)

    def add_gap(self, now: float, gap_s: float) -> None:
        while self._gaps and self._gaps[-1][1] <= gap_s:
            self._gaps.pop()
        self._gaps.append((now, gap_s))
        while now - self._gaps[0][0] > REMEMBERED_S:
            self._gaps.popleft()

    def limit_s(self) -> float:
        """Seconds without a sign of life after which a worker counts as lost. Short rounds make a long wait dear: it is
        a round that is longer than usual."""
        rounds_s, gaps = tuple(self._rounds_s), tuple(self._gaps)
        if self._fixed_s or len(rounds_s) < FEWEST:
            return self._fixed_s or LONGEST_S
        mean_s = statistics.fmean(rounds_s)
        # statistics.pstdev is slow
        unusual_s = mean_s + 3 * math.dist(rounds_s, [mean_s] * len(rounds_s)) / math.sqrt(len(rounds_s))
        return min(LONGEST_S, max(SHORTEST_S, unusual_s, GAPS * gaps[0][1] if gaps else 0.0))
