"""Notices lost workers in a job without a parameter server, in a thread beside the training.

A worker that dies closes its connections, which all others see at once; one that is frozen, or whose host or network is
down, sends no more heartbeats.
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

NOTICED_S = 1.0  # within which the detector sees a loss that broke a sum
TOLD_S = 10.0  # within which `on_lost` ends the process
BEAT_S = 1.0  # between two heartbeats
SILENT_S = 10.0  # a machine whose cores are all busy may send one some seconds late


class FailureDetector:
    """Each worker sends a byte a second to each other one, over connections that carry nothing else."""

    def __init__(
        self,
        connections: Mapping[int, socket.socket],  # by rank, for the detector alone; it closes them
        # Called with the lost ranks and the reason; empty where their connections have ended
        on_lost: Callable[[list[int], str], Any],
        silent_s: float = SILENT_S,  # time without a heartbeat after which a worker counts as lost
        continues: bool = False,  # after a loss it watches the remaining workers; else it stops
    ) -> None:
        self._connections = dict(connections)
        self._continues = continues
        self._on_lost = on_lost
        self._silent_s = silent_s
        self._has_noticed = threading.Event()
        self._may_leave = False
        self._stopped, self._stops = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="failure detector", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with die_on_error("the detector of lost workers failed"), selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            watched = dict(self._connections)
            for rank, connection in watched.items():
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, rank)
            while True:
                lost, why = self._next_loss(selector, watched)
                if not lost:
                    return
                self._has_noticed.set()
                self._on_lost(lost, why)
                if not self._continues:
                    return
                for rank in lost:
                    selector.unregister(watched.pop(rank))

    def _next_loss(
        self, selector: selectors.BaseSelector, watched: Mapping[int, socket.socket]
    ) -> tuple[list[int], str]:
        """Waits for a loss; returns the ranks and the reason. No ranks: the detector was stopped."""
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
            if self._may_leave or now - before > self._silent_s / 2:  # the latter: this worker itself was frozen
                heard = dict.fromkeys(watched, now)
            if silent := [rank for rank, last in heard.items() if now - last > self._silent_s]:
                return silent, f"no sign of life for {self._silent_s:g} s: {SILENT}"
            if now >= beat:
                beat = now + beat_s
                for connection in watched.values():
                    with contextlib.suppress(OSError):  # full, or closed: both are noticed above
                        connection.send(b".")

    def report_before_close(self) -> None:
        """To be called when a sum has failed, before this worker's connections close: if a worker is lost, `on_lost`
        ends this process first, since the others could take it for the lost one. Then stops the detector."""
        if self._has_noticed.wait(NOTICED_S):
            self._thread.join(TOLD_S)
        self.stop()

    def let_leave(self) -> None:
        """From here on workers may end without counting as lost; this one still sends heartbeats."""
        self._may_leave = True

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._stops.send(b"x")
        if threading.current_thread() is not self._thread:
            self._thread.join(TOLD_S)

    def close(self) -> None:
        """Stops, and closes the connections: the others see that this worker has ended."""
        self.stop()
        self._on_lost = lambda lost, why: None  # it leads back to what has this detector
        for each in (self._stopped, self._stops, *self._connections.values()):
            each.close()


def _has_sent(connection: socket.socket) -> bool:
    """Reads what has come; False where the connection has ended."""
    try:
        return bool(connection.recv(1 << 12))
    except BlockingIOError:
        return True
    except OSError:
        return False
