"""Sees which of a worker's peers are gone, whatever this worker does meanwhile.

A worker that dies closes its connections, so all others see it at once; one that is frozen, or whose host or network is
down, falls silent.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from trainer.rendezvous.heartbeat import SILENT
from utils import die_on_error

NOTICED_S = 1.0  # in which a loss that broke a sum is seen by the watch too
TOLD_S = 10.0  # in which what is told of it ends the process
BEAT_S = 1.0  # between two signs of life
SILENT_S = 10.0  # a machine whose cores are all busy may take some seconds to give one


class Watch:
    """Sees in a thread of its own which workers are gone, whatever this one does meanwhile.

    Each sends a byte a second to each other one, over connections that carry nothing else.
    """

    def __init__(
        self,
        connections: Mapping[int, socket.socket],
        on_lost: Callable[[list[int], str], Any],
        silent_s: float = SILENT_S,
        goes_on: bool = False,
    ) -> None:
        """
        Args:
            connections: by rank, for this watch alone; it closes them.
            on_lost: told of the ranks that are gone, and why that is if it is not that they have ended.
            silent_s: after so long without a sign of life a worker counts as lost.
            goes_on: it watches those that are left; else it is over with the first loss.
        """
        self._connections = dict(connections)
        self._goes_on = goes_on
        self._on_lost = on_lost
        self._silent_s = silent_s
        self._has_noticed = threading.Event()
        self._may_leave = False
        self._stopped, self._stops = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with die_on_error("the watch over the other workers failed"), selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            watched = dict(self._connections)
            for rank, connection in watched.items():
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, rank)
            while True:
                lost, why = self._watch(selector, watched)
                if not lost:
                    return
                self._has_noticed.set()
                self._on_lost(lost, why)
                if not self._goes_on:
                    return
                for rank in lost:
                    selector.unregister(watched.pop(rank))

    def _watch(self, selector: selectors.BaseSelector, watched: Mapping[int, socket.socket]) -> tuple[list[int], str]:
        """Until somebody is lost, or nobody watches any more."""
        beat_s = min(BEAT_S, self._silent_s / 4)
        now = beat = time.monotonic()
        heard = dict.fromkeys(watched, now)
        while True:
            ready = [key.data for key, _ in selector.select(max(0.0, beat - now))]
            if None in ready:
                return [], ""
            ended = [rank for rank in ready if not _has_sent(watched[rank])]
            if ended and not self._may_leave:
                return ended, ""
            for rank in ended:
                selector.unregister(watched[rank])
            before, now = now, time.monotonic()
            heard |= dict.fromkeys(ready, now)
            if self._may_leave or now - before > self._silent_s / 2:  # in that case it was this worker that stood still
                heard = dict.fromkeys(watched, now)
            if silent := [rank for rank, last in heard.items() if now - last > self._silent_s]:
                return silent, f"no sign of life for {self._silent_s:g} s: {SILENT}"
            if now >= beat:
                beat = now + beat_s
                for connection in watched.values():
                    with contextlib.suppress(OSError):  # nobody reads it, or it has ended: both are seen above
                        connection.send(b".")

    def speak_first(self) -> None:
        """A sum has failed. Where a worker is lost, `on_lost` ends this process before its own connections close: else
        others could take it for the one that was lost. If nobody is, there is nothing to watch any more."""
        if self._has_noticed.wait(NOTICED_S):
            self._thread.join(TOLD_S)
        self.stop()

    def let_leave(self) -> None:
        """From here on others may end. Those that have not come so far go on to hear that this worker is alive."""
        self._may_leave = True

    def stop(self) -> None:
        """Nobody watches any more."""
        with contextlib.suppress(OSError):
            self._stops.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(TOLD_S)

    def close(self) -> None:
        """Nobody watches any more, and the others see that this worker has ended."""
        self.stop()
        for each in (self._stopped, self._stops, *self._connections.values()):
            each.close()


def _has_sent(connection: socket.socket) -> bool:
    """Reads what is there; False where the connection has ended."""
    try:
        return bool(connection.recv(1 << 12))
    except BlockingIOError:
        return True
    except OSError:
        return False
