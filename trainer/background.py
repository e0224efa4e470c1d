"""Small tasks beside the training, of which only the newest matters."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Does one task at a time in a thread of its own. Of those that come meanwhile only the newest is done.

    Nobody waits for it, not even the end of the process. A task must not raise.
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
            self._changed.notify()
            if self._has_begun:
                return
            self._has_begun = True
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_busy = self._next is not None
                self._changed.wait_for(lambda: self._next is not None)
                task, self._next = self._next, None
            assert task is not None
            task()
