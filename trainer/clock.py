"""Time, as the trainers know it: a real clock, and a virtual one on which a whole cluster runs in one process.

On the virtual clock one worker runs at a time, and computing takes no time at all: what a step or a transfer takes is
what the worker sleeps for it. A worker hands on when it sleeps or waits; the one whose moment comes first goes on, of
equals the one that asked first. So a run is the same every time, and nobody polls.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
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


class Deadlock(Exception):
    """Workers wait in virtual time, and nothing is left to happen that could wake them."""


class _Killed(BaseException):
    """Ends a worker that nobody needs any more; no worker should catch it."""


class _Work(Generic[Result]):
    """A task of the virtual clock: a greenlet, which runs while all others stand still."""

    def __init__(self, clock: VirtualClock, work: Callable[[], Result], name: str) -> None:
        from greenlet import greenlet

        self.name = name
        self._clock = clock
        self._work = work
        self._is_over = False
        self._result: Any = None
        self.error: BaseException | None = None
        self.is_told = False  # the error, to somebody who has asked
        self._waiting: list[tuple[_Work[Any], int]] = []
        self.turn = 0  # how often it was woken: an alarm that was set before is none any more
        self.is_beside = hasattr(clock, "current")  # begun by another one, which asks for its result
        self.greenlet = greenlet(self._run, clock.hub)

    def _run(self) -> None:
        try:
            self._result = self._work()
        except _Killed:
            pass
        except BaseException as error:  # told to whoever asks for the result, or at the end of the run
            self.error = error
        del self._work  # it may hold on to the work before it, and that to the one before
        self._is_over = True
        for waiting, turn in self._waiting:
            self._clock.wake(waiting, turn)

    def done(self) -> bool:
        """Whether it has ended."""
        return self._is_over

    def result(self, timeout: float | None = None) -> Result:
        """As Task says."""
        if not self._is_over:
            current = self._clock.current
            self._waiting.append((current, current.turn))
            self._clock.hand_on(timeout)
            if not self._is_over:
                raise TimeoutError
        if self.error is not None:
            self.is_told = True
            raise self.error
        result: Result = self._result
        return result


class Parked:
    """A place where one worker waits to be woken, with an alarm or without."""

    def __init__(self, work: _Work[Any]) -> None:
        self.work = work
        self.turn: int | None = None


class _VirtualEvent:
    """An event of the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._has_happened = False
        self._waiting: list[tuple[_Work[Any], int]] = []

    def set(self) -> None:
        """As Event says."""
        self._has_happened = True
        waiting, self._waiting = self._waiting, []
        for place in waiting:
            self._clock.wake(*place)

    def is_set(self) -> bool:
        """As Event says."""
        return self._has_happened

    def wait(self, patience_s: float | None = None, /) -> bool:
        """As Event says."""
        if not self._has_happened:
            place = (self._clock.current, self._clock.current.turn)
            self._waiting.append(place)
            self._clock.hand_on(patience_s)
            if not self._has_happened:
                self._waiting.remove(place)
        return self._has_happened


class VirtualClock:
    """Runs workers in virtual time. Only what runs on it may call `sleep`, `wait_until` and `start`.

    Args:
        started: what it shows at first, in seconds.
    """

    def __init__(self, started: float = 0.0) -> None:
        from greenlet import getcurrent

        self.hub = getcurrent()
        self.current: _Work[Any]
        self._now = started
        self._due: list[tuple[float, int, _Work[Any], int]] = []
        self._asked = 0
        self._changes = 0
        self._parked: deque[tuple[_Work[Any], int]] = deque()
        self._work: dict[_Work[Any], None] = {}  # in the order in which it began

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def timestamp(self) -> float:
        """Virtual seconds, so that the same run says the same."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Lets others go on until so much virtual time has passed."""
        if seconds > 0:
            self.hand_on(seconds)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Asks again after each change that `changed` tells of, and at no other moment."""
        while True:
            seen = self._changes
            if condition():
                return
            if seen == self._changes:  # else it has changed while it was asked
                self._parked.append((self.current, self.current.turn))
                self.hand_on(None)

    def changed(self) -> None:
        """Something has changed that somebody may wait for."""
        self._changes += 1
        while self._parked:
            self.wake(*self._parked.popleft())

    def parked(self) -> Parked:
        """A place where the caller can wait to be woken."""
        return Parked(self.current)

    def park(self, place: Parked, seconds: float | None) -> None:
        """Waits there to be woken, or for so long."""
        place.turn = self.current.turn
        self.hand_on(seconds)

    def unpark(self, place: Parked) -> None:
        """Wakes whoever waits there; nobody, where nobody does."""
        if place.turn is not None and place.work is not self.current:
            self.wake(place.work, place.turn)

    def start(self, work: Callable[[], Result], name: str) -> Task[Result]:
        """Begins work that goes on in the same virtual time; its first moment is now, once the caller hands on."""
        begun = _Work(self, work, name)
        self._work[begun] = None
        self._ring(begun, 0.0)
        return begun

    def event(self) -> Event:
        """For those who run on this clock."""
        return _VirtualEvent(self)

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """Nobody has to be kept out: one runs at a time, until it waits."""
        return contextlib.nullcontext()

    def run(self, until: float = math.inf, watch: Callable[[float], None] = lambda now: None) -> None:
        """Lets time pass until nothing is left to do, or to `until`; then ends whatever still runs.

        Args:
            watch: told the time whenever somebody goes on.

        Raises:
            Deadlock: some wait, and nobody is left who could wake them.
            Exception: what a worker raised that nobody has asked for.
        """
        try:
            while self._due and self._due[0][0] <= until:
                moment, _, work, turn = heapq.heappop(self._due)
                if work.turn != turn or work.done():
                    continue  # it was woken before
                self._now = moment
                watch(moment)
                self._go_on(work)
            waiting = [work.name for work in self._work if not work.done()]
            for work in self._work:
                if work.error is not None and not work.is_told:
                    raise work.error
            if waiting and not self._due:
                raise Deadlock(f"nothing is left to happen at {self._now:.6g} s, but these wait: {', '.join(waiting)}")
        finally:
            self._end_all()

    def hand_on(self, seconds: float | None) -> None:
        """Lets others go on; comes back after so long, or when it is woken (None: only then)."""
        if seconds is not None:
            self._ring(self.current, seconds)
        self.hub.switch()

    def wake(self, work: _Work[Any], turn: int) -> None:
        """Lets one that waits since its `turn` go on at this moment, after those that are due already."""
        if work.turn == turn:
            self._ring(work, 0.0)

    def _ring(self, work: _Work[Any], seconds: float) -> None:
        self._asked += 1
        heapq.heappush(self._due, (self._now + seconds, self._asked, work, work.turn))

    def _go_on(self, work: _Work[Any]) -> None:
        work.turn += 1
        self.current = work
        work.greenlet.switch()
        if work.done() and work.error is None:
            del self._work[work]
        elif work.error is not None and not work.is_beside:
            raise work.error

    def _end_all(self) -> None:
        for work in list(self._work):
            if not work.done() and work.greenlet:
                work.greenlet.throw(_Killed)
        self._work.clear()
        self._due.clear()


def run_all(clock: VirtualClock, workers: Sequence[Callable[[], None]], until: float = math.inf) -> None:
    """Runs workers on a virtual clock from one moment on, until all have ended."""
    for number, worker in enumerate(workers):
        clock.start(worker, f"worker {number}")
    clock.run(until)
