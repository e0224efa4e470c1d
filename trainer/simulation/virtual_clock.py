"""A clock in virtual time, on which a whole cluster runs in one process.

One worker runs at a time, and computing takes no time at all: a worker sleeps for the duration of a step or a transfer.
A worker hands on when it sleeps or waits; the one whose moment comes first continues, of equals the one that asked
first. So a run is the same every time, and no worker polls.
"""

from __future__ import annotations

import contextlib
import heapq
import math
from collections.abc import Callable
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, Generic

from greenlet import getcurrent, greenlet

from esync.clock import Event, Result, Task


class Deadlock(Exception):
    """Workers wait in virtual time, and nothing is left to happen that could wake them."""


class _Killed(BaseException):
    """Ends a worker at the end of the run; no worker should catch it."""


class _Work(Generic[Result]):
    """A task of the virtual clock: a greenlet, which runs while all others stand still."""

    def __init__(self, clock: VirtualClock, work: Callable[[], Result], name: str) -> None:
        self.name = name
        self._work = work
        self._over = VirtualEvent(clock)
        self._result: Any = None
        self.error: BaseException | None = None
        self.error_is_raised = False  # by `result`
        self.turn = 0  # counts wake-ups; an alarm of an earlier turn does nothing
        self.is_beside = hasattr(clock, "current")  # another task has begun it, and asks for its result
        self.greenlet = greenlet(self._run, clock.hub)

    def _run(self) -> None:
        try:
            self._result = self._work()
        except _Killed:
            pass
        except BaseException as error:  # `result` raises it, or the end of the run
            self.error = error
        del self._work  # it may refer to the task before it, and that one to its predecessor
        self._over.set()

    def done(self) -> bool:
        return self._over.is_set()

    def result(self, timeout: float | None = None) -> Result:
        if not self._over.wait(timeout):
            raise FutureTimeout
        if self.error is not None:
            self.error_is_raised = True
            raise self.error
        result: Result = self._result
        return result


class VirtualEvent:
    """An event of the virtual clock."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock = clock
        self._has_happened = False
        self._waiting: list[tuple[_Work[Any], int]] = []

    def set(self) -> None:
        self._has_happened = True
        waiting, self._waiting = self._waiting, []
        for place in waiting:
            self._clock.wake(*place)

    def clear(self) -> None:
        """It is to happen once more; called by the one that waits for it."""
        self._has_happened = False

    def is_set(self) -> bool:
        return self._has_happened

    def wait(self, patience_s: float | None = None, /) -> bool:
        if not self._has_happened:
            place = (self._clock.current, self._clock.current.turn)
            self._waiting.append(place)
            self._clock.hand_on(patience_s)
            if not self._has_happened:
                self._waiting.remove(place)
        return self._has_happened


class VirtualClock:
    """Runs workers in virtual time, from 0 s on. Only what runs on it may call `sleep`, `wait_until` and `start`."""

    def __init__(self) -> None:
        self.hub = getcurrent()
        self.current: _Work[Any]
        self._now = 0.0
        self._due: list[tuple[float, int, _Work[Any], int]] = []
        self._asked = 0
        self._change = VirtualEvent(self)  # the next call of `changed`
        self._work: dict[_Work[Any], None] = {}  # in the order in which it began

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    def timestamp(self) -> float:
        """Virtual seconds, so that two runs log the same."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Lets the others run until this much virtual time has passed."""
        if seconds > 0:
            self.hand_on(seconds)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Evaluates the condition now and after each call of `changed`."""
        change = self._change  # the condition may take time, and miss it
        while not condition():
            change.wait()
            change = self._change

    def changed(self) -> None:
        """Wakes all workers in `wait_until`."""
        change, self._change = self._change, VirtualEvent(self)
        change.set()

    def start(self, work: Callable[[], Result], name: str) -> Task[Result]:
        """Begins a task at this virtual moment; it runs when the caller waits."""
        begun = _Work(self, work, name)
        self._work[begun] = None
        self._ring(begun, 0.0)
        return begun

    def event(self) -> Event:
        return VirtualEvent(self)

    def lock(self) -> contextlib.AbstractContextManager[Any]:
        """No lock is needed: one task runs at a time, until it waits."""
        return contextlib.nullcontext()

    def run(self, until: float = math.inf, watch: Callable[[float], None] = lambda now: None) -> None:
        """Lets time pass until no task is due, or to `until`; then ends all tasks. `watch` is called with the time
        whenever a task continues. Raises Deadlock where tasks wait, and none is left that could wake them; the error of
        a task whose `result` no task has asked for."""
        try:
            while self._due and self._due[0][0] <= until:
                moment, _, work, turn = heapq.heappop(self._due)
                if work.turn != turn or work.done():
                    continue  # it was woken earlier
                self._now = moment
                watch(moment)
                self._continue(work)
            waiting = [work.name for work in self._work if not work.done()]
            for work in self._work:
                if work.error is not None and not work.error_is_raised:
                    raise work.error
            if waiting and not self._due:
                raise Deadlock(f"nothing is left to happen at {self._now:.6g} s, but these wait: {', '.join(waiting)}")
        finally:
            self._end_all()

    def hand_on(self, seconds: float | None) -> None:
        """Lets the others run; returns after these seconds, or when the task is woken (None: only then)."""
        if seconds is not None:
            self._ring(self.current, seconds)
        self.hub.switch()

    def wake(self, work: _Work[Any], turn: int) -> None:
        """Makes a task due at this moment, after those that are due already, if it still waits since its `turn`."""
        if work.turn == turn:
            self._ring(work, 0.0)

    def _ring(self, work: _Work[Any], seconds: float) -> None:
        self._asked += 1
        heapq.heappush(self._due, (self._now + seconds, self._asked, work, work.turn))

    def _continue(self, work: _Work[Any]) -> None:
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
