"""Small tasks beside the training, of which only the newest matters."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from trainer.clock import Clock, Task


class Background:
    """Does one task at a time beside its caller. Of those that come meanwhile only the newest is done.

    A task must not raise.
    """

    def __init__(self, clock: Clock, name: str, rest_s: float = 0.0) -> None:
        """
        Args:
            name: of the work.
            rest_s: seconds between two tasks, in which a newer one may come.
        """
        self._clock = clock
        self._name = name
        self._rest_s = rest_s
        self._lock = clock.lock()
        self._next: Callable[[], None] | None = None
        self._working: Task[None] | None = None

    def do(self, task: Callable[[], None]) -> None:
        """Leaves a task to be done."""
        with self._lock:
            self._next = task
            if self._working is None:
                self._working = self._clock.start(self._work, self._name)

    def wait_until_idle(self, patience_s: float) -> None:
        """Waits so long for the end of what was left to be done."""
        working = self._working
        if working is not None:
            with contextlib.suppress(TimeoutError):
                working.result(patience_s)

    def _work(self) -> None:
        while True:
            with self._lock:
                task, self._next = self._next, None
                if task is None:
                    self._working = None
                    return
            task()
            self._clock.sleep(self._rest_s)
