"""The trainers' only source of time: a protocol, and the real clock. simulation/virtual_clock.py has a virtual one."""

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

Result = TypeVar("Result")
Result_co = TypeVar("Result_co", covariant=True)

MAX_THREADS = 64
SHORTEST_PAUSE_S = 0.001
LONGEST_PAUSE_S = 0.01
SHARE = 0.05  # a pause as part of the time waited so far: a long wait polls less often and ends at most 5 % late


class Task(Protocol[Result_co]):
    """Work that runs beside its caller."""

    def done(self) -> bool: ...

    def result(self, timeout: float | None = None) -> Result_co:
        """Waits for the end; returns the work's result or raises its error. Raises concurrent.futures.TimeoutError,
        which is Python's own from 3.11 on, if the work has not ended in `timeout` seconds."""


class Event(Protocol):
    """As threading.Event, which is never cleared: a thread that waits continues as soon as it is set."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, patience_s: float | None = None, /) -> bool:
        """Waits at most this long (None: for ever); returns whether the event is set."""


class Clock(Protocol):
    """A trainer's use of time."""

    def now(self) -> float:
        """Seconds; only differences mean anything."""

    def timestamp(self) -> float:
        """Seconds since 1970, for messages to others; on a virtual clock since the beginning of virtual time."""

    def sleep(self, seconds: float) -> None:
        """Returns at once unless `seconds` is above 0."""

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds. Only other workers may change it; evaluating it may take time."""

    def start(self, work: Callable[[], Result], name: str) -> Task[Result]:
        """Begins work beside the caller. The name is for the error message if the work never ends."""

    def event(self) -> Event: ...

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """A lock. A thread that holds it must not wait or sleep."""


class RealClock:
    """The machine's clock, with a pool of threads."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(MAX_THREADS, thread_name_prefix="beside")

    def now(self) -> float:
        return time.monotonic()

    def timestamp(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            time.sleep(seconds)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        begin = time.monotonic()
        while not condition():  # polls: a kvstore announces no changes
            time.sleep(min(LONGEST_PAUSE_S, max(SHORTEST_PAUSE_S, SHARE * (time.monotonic() - begin))))

    def start(self, work: Callable[[], Result], name: str) -> Task[Result]:
        return self._threads.submit(work)

    def event(self) -> Event:
        return threading.Event()

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        return threading.Lock()
