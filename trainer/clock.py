"""Time, as the trainers know it: a real clock, and a virtual one on which a whole cluster runs in one process.

On the virtual clock one worker runs at a time, and computing takes no time at all: what a step or a transfer takes is
what the worker sleeps for it. A worker hands on when it sleeps or waits; the one whose moment comes first goes on, of
equals the one that asked first. So a run is the same every time, and nobody polls.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic, Protocol, TypeVar

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

MAX_THREADS = 64
SHORTEST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.01
SHARE = 0.05  # of the time waited so far: a long wait is looked at less often, and still ends at most 5 % late


class Task(Protocol[Result_co]):
    """Work that was begun beside its caller."""

    def done(self) -> bool:
        """Whether it has ended."""

    def result(self, timeout: float | None = None) -> Result_co:
        """Waits for its end, and returns what it returned or raises what it raised.

        Args:
            timeout: seconds to wait at most; None: for ever.

        Raises:
            TimeoutError: it has not ended by then.
        """


class Event(Protocol):
    """Something that happens once. Whoever waits for it goes on at that moment: it is told, and does not look."""

    def set(self) -> None:
        """It has happened."""

    def is_set(self) -> bool:
        """Whether it has happened."""

    def wait(self, patience_s: float | None = None, /) -> bool:
        """Waits for it, for so long at most (None: for ever); returns whether it has happened."""


class Clock(Protocol):
    """What a trainer may do with time."""

    def now(self) -> float:
        """Seconds; only differences mean anything."""

    def timestamp(self) -> float:
        """Seconds since 1970 in messages that others read; since the beginning of virtual time on a virtual clock."""

    def sleep(self, seconds: float) -> None:
        """Lets so much time pass; none where it is not above 0."""

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds. It may change by the work of others only, and asking may take time."""

    def start(self, work: Callable[[], Result], name: str) -> Task[Result]:
        """Begins work beside the caller.

        Args:
            name: what it is called where it never ends.
        """

    def event(self) -> Event:
        """Something that has not happened yet."""

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Keeps out others who hold the same lock. Nobody may wait or sleep while holding it."""


class _Threaded(Generic[Result]):
    """A task of the real clock, in one of its threads."""

    def __init__(self, future: Future[Result]) -> None:
        self._future = future
        self.done = future.done

    def result(self, timeout: float | None = None) -> Result:
        """As Task says."""
        try:
            return self._future.result(timeout)
        except FutureTimeout:  # another class than Python's own before 3.11
            raise TimeoutError from None


class RealClock:
    """The machine's. Threads that have nothing to do any more take what is begun next."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="beside")

    def now(self) -> float:
        """Seconds on the monotonic clock."""
        return time.monotonic()

    def timestamp(self) -> float:
        """By the machine's wall clock."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Sleeps."""
        if seconds > 0:
            time.sleep(seconds)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Looks until the condition holds: a kvstore tells nobody of a change, it has to be looked at again."""
        begin = time.monotonic()
        while not condition():
            time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, SHARE * (time.monotonic() - begin))))

    def start(self, work: Callable[[], Result], name: str) -> Task[Result]:
        """Begins work in another thread."""
        return _Threaded(self._threads.submit(work))

    def event(self) -> Event:
        """For threads."""
        return threading.Event()

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """For threads."""
        return threading.Lock()
