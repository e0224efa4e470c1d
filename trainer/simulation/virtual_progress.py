"""How far a virtual cluster is: a bar on a terminal, else a line now and then; and what else may follow a run."""

import logging
import math
import sys
import time
from collections.abc import Callable

from trainer.context import LearningTask

BAR_EVERY_S, LINE_EVERY_S = 0.2, 10.0  # real ones
WIDTH = 30  # characters of the bar


class Watcher:
    """Follows a run in virtual time, `now`. This base class does nothing."""

    def begins(self, now: float) -> None:
        """A worker begins to train."""

    def continues(self, now: float) -> None:
        """A worker continues."""

    def evaluation(self, task: LearningTask, evaluate: Callable[[], float | None]) -> Callable[[], float | None]:
        """What evaluates the model of a task, in place of `evaluate`."""
        return evaluate


NO_WATCHER = Watcher()


class ProgressLine(Watcher):
    """Shows how far a run is and when it will end.

    Args:
        max_seconds: virtual ones of the run; 0: no limit.
        began: called when training begins.
        alone: no other run writes to the same terminal.
        quiet: only the end is told.
    """

    def __init__(self, max_seconds: float, began: Callable[[], None], alone: bool = True, quiet: bool = False) -> None:
        self._max_s = max_seconds
        self._begins = began
        self._bar = alone and not quiet and sys.stderr.isatty()
        self._every_s = BAR_EVERY_S if self._bar else math.inf if quiet else LINE_EVERY_S
        self._began: tuple[float, float] | None = None  # virtual and real
        self._now = 0.0
        self._told = time.monotonic()

    def begins(self, now: float) -> None:
        if self._began is None:
            self._began = now, time.monotonic()
            self._begins()

    def continues(self, now: float) -> None:
        self._now = now
        real = time.monotonic()
        if self._began is not None and real - self._told >= self._every_s:
            self._told = real
            self._tell(self.text())

    def end(self) -> None:
        if self._bar:
            print(file=sys.stderr)
        if self._began is not None:
            logging.info("progress: %s", self.text())

    def text(self) -> str:
        """Virtual time, real time, speed and estimate."""
        assert self._began is not None
        virtual_s, real_s = self._now - self._began[0], time.monotonic() - self._began[1]
        speed = virtual_s / real_s if real_s else 0.0
        of = f" of {self._max_s:g}" if self._max_s else ""
        parts = [f"{virtual_s:.1f}{of} virtual s", f"{real_s:.1f} real s", f"{speed:.2f} virtual s a real second"]
        if self._max_s and speed:
            parts.append(f"about {max(0.0, self._max_s - virtual_s) / speed:.0f} s left")
        return ", ".join(parts)

    def _tell(self, text: str) -> None:
        if not self._bar:
            logging.info("progress: %s", text)
            return
        share = min(1.0, (self._now - (self._began or (0.0, 0.0))[0]) / self._max_s) if self._max_s else 0.0
        bar = f"[{'#' * round(WIDTH * share):<{WIDTH}}] " if self._max_s else ""
        print(f"\r{bar}{text}\033[K", end="", file=sys.stderr, flush=True)
