"""Small tasks beside the training, of which only the newest matters."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Does one task at a time in a thread of its own. Of those that come meanwhile only the newest is done.

    The end of the process does not wait for it. A task must not raise.
    """

    def __init__(self, name: str) -> None:
        """
        Args:
            name: of the thread.
        """
        self._name = name
        self._changed = threading.Condition()
        self._next: Callable[[], None] | None = None
        self._is_busy = False
        self._has_begun = False

    def do(self, task: Callable[[], None]) -> None:
        """Leaves a task to the thread, which is started with the first one."""
        with self._changed:
            self._next, self._is_busy = task, True
            self._changed.notify_all()
            if self._has_begun:
                return
            self._has_begun = True
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def wait_until_idle(self, patience_s: float) -> None:
        """Waits so long for the end of what was left to the thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_busy, patience_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = self._next is not None
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._next is not None)
                task, self._next = self._next, None
            assert task is not None
            task()
