"""The connections among the workers of one generation: exchanges travel over one set, signs of life over another. A
thread beside the training notices lost workers by both.

A worker that dies closes its connections, which all others see at once; one that is frozen, or whose host or network is
down, sends no more heartbeats. Where heartbeats pass and larger packets do not, an exchange stands that both workers
have begun. One that has not begun may compute, evaluate or save, however long: a heartbeat tells how many messages its
sender has begun to send to the other one, which knows how many it has begun to receive, and the bytes that have come.
"""

from __future__ import annotations

import contextlib
import functools
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from trainer.collectives.connecting import TEST, Acceptor, connect
from trainer.collectives.mesh import MeshGroup
from trainer.collectives.schedules import ScheduleMaker
from trainer.collectives.tcp import Awaited, TcpMesh
from trainer.hub.wire import SILENT
from trainer.rendezvous.joining import Start
from trainer.rendezvous.silence import Silence
from utils import die_on_error

NOTICED_S = 1.0  # within which the detector sees a loss that broke a sum
TOLD_S = 10.0  # within which `on_lost` has told the loss
LEAVING_S = 60.0  # for the last exchange, in which workers that end are not lost
STANDS = "nothing of a message that both have begun has come from there: large packets are lost on the way, or it hangs"
_BEAT = struct.Struct("!Q")  # messages begun to send to the receiver of the heartbeat
_OVER = bytes([255]) * _BEAT.size  # in place of a heartbeat: what they do together is over


class FailureDetector:
    """Each worker sends heartbeats to each other one, over connections that carry nothing else."""

    def __init__(
        self,
        connections: Mapping[int, socket.socket],  # by rank, for the detector alone; it closes them
        exchanges: TcpMesh,  # with the same workers
        # Called with the lost ranks and the reason, empty where their connections have ended; with no ranks where
        # another worker has lost some and begins again
        on_lost: Callable[[list[int], str], Any],
        silence: Silence,  # after which a worker counts as lost
        continues: bool = False,  # after a loss it watches the remaining workers; else it stops
        # Called again and again, with the moment since when this worker has waited for no other one and was not frozen
        on_idle: Callable[[float], object] = lambda since: None,
    ) -> None:
        self._connections = dict(connections)
        self._exchanges = exchanges
        self._said = dict.fromkeys(connections, b"")  # the newest heartbeat, and what has come of the next one
        self._heard = dict.fromkeys(connections, time.monotonic())  # when each was heard last that is not lost
        self._continues = continues
        self._on_lost, self._on_idle = on_lost, on_idle
        self._silence = silence
        self._has_noticed = threading.Event()
        self._is_over = False  # this worker has told of a silent one, which the others may not see
        self._begins_again = False  # another one has done so
        self._due = 0.0  # the time of the next heartbeat
        self._may_leave = False
        self._stopped, self._stops = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="failure detector", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with die_on_error("the detector of lost workers failed"), selectors.DefaultSelector() as selector:
            selector.register(self._stopped, selectors.EVENT_READ)
            for rank, connection in self._connections.items():
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ, rank)
            while found := self._next_loss(selector):
                lost, why = found
                self._has_noticed.set()
                for rank in lost:
                    del self._heard[rank]
                if why:
                    self._is_over, self._due = True, 0.0
                self._on_lost(lost, why)
                if not self._continues:  # this worker ends in turn
                    for connection in self._connections.values():
                        with contextlib.suppress(OSError):
                            connection.shutdown(socket.SHUT_RDWR)
                    return
                for rank in lost:
                    selector.unregister(self._connections[rank])

    def _next_loss(self, selector: selectors.BaseSelector) -> tuple[list[int], str] | None:
        """Waits for a loss; returns ranks and reason as `on_lost` gets them. None: the detector was stopped."""
        now = awake = time.monotonic()
        heard, common, moved = dict.fromkeys(self._heard, now), self._begun_by_both(), now
        while True:
            ready = [key.data for key, _ in selector.select(max(0.0, self._due - now))]
            if None in ready:
                return None
            ended = [rank for rank in ready if not self._hear(rank)]
            if ended and not self._may_leave:
                return ended, ""
            for rank in ended:
                selector.unregister(self._connections[rank])
            for rank in ready:
                if self._said[rank].startswith(_OVER):
                    self._said[rank] = b""
                    if not self._begins_again:
                        self._begins_again = True
                        return [], ""
            before, now, silent_s = now, time.monotonic(), self._silence.limit_s()
            if self._may_leave or now - before > silent_s / 2:  # the latter: this worker itself was frozen
                heard, moved, awake = dict.fromkeys(self._heard, now), now, now
            for rank in ready:
                self._silence.add_gap(now, now - heard[rank])
                heard[rank] = now
            last, common = common, self._begun_by_both()
            if common is None or common != last:
                moved = now
            elif now - moved > silent_s:
                return [common.source], f"for {silent_s:.3g} s {STANDS}"
            if silent := [rank for rank, last in heard.items() if now - last > silent_s]:
                return silent, f"no sign of life for {silent_s:.3g} s: {SILENT}"
            if now >= self._due:
                self._due = now + self._silence.beat_s
                self._on_idle(max(awake, self._exchanges.idle_since))
                for rank, connection in self._connections.items():
                    with contextlib.suppress(OSError):  # full, or closed: both are noticed above
                        connection.send(_OVER if self._is_over else _BEAT.pack(self._exchanges.num_begun(rank)))

    def _hear(self, rank: int) -> bool:
        """Reads what has come; False where the connection has ended."""
        try:
            came = self._connections[rank].recv(1 << 12)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not came:
            return False
        self._heard[rank] = time.monotonic()
        said = self._said[rank] + came
        self._said[rank] = said[max(0, len(said) // _BEAT.size - 1) * _BEAT.size :]
        return True

    def _begun_by_both(self) -> Awaited | None:
        """The message that is being received, once a heartbeat has told that the other one has begun it."""
        awaited = self._exchanges.awaited()
        if awaited is None or awaited.source not in self._heard:
            return None
        said = self._said[awaited.source]
        begun = _BEAT.unpack(said[: _BEAT.size])[0] if len(said) >= _BEAT.size else 0
        return awaited if begun >= awaited.number else None

    def heard(self) -> list[int]:
        """The ranks that were heard lately."""
        since = time.monotonic() - self._silence.limit_s() / 2
        return [rank for rank, heard in dict(self._heard).items() if heard > since]  # a copy: the thread removes some

    def report_before_close(self) -> None:
        """To be called when a sum has failed, before this worker's connections close: if a worker is lost, `on_lost`
        tells it first, since the others could take this one for the lost one. Then stops the detector."""
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


class TcpConnections:
    """Connects a worker with the others of one generation; raises JobError where not all of them could be reached.

    `group` is what the workers do together. `interrupt()` ends all exchanges, also those that another thread or another
    worker waits for. `heard()` returns the ranks that FailureDetector.heard does. `stop_watching()` reports losses no
    more; the others see that this worker has left."""

    def __init__(
        self,
        acceptor: Acceptor,  # of other workers' calls; the caller's
        algorithm: ScheduleMaker,  # of the sums
        connect_s: float,  # until all are connected
        silence: Silence,  # after which a worker is reported
        continues: bool,  # after a loss the others are watched
        start: Start,
        names: Sequence[str],  # of all workers by rank, for messages
        report: Callable[[Sequence[int], str], object],  # as generations.Report
        on_idle: Callable[[float], object] = lambda since: None,  # as the detector calls it
    ) -> None:
        places = [(member.address, member.port) for member in start.members]
        all_connected = functools.partial(
            connect, start.rank, places, acceptor, start.secret, connect_s, names, start.calls
        )
        self._mesh = all_connected()
        self._mesh.patience_s = connect_s
        self.group = MeshGroup(self._mesh, algorithm)
        try:
            self.group.all_gather(TEST)  # when all have the first connections, a second one is known as such
            alive = all_connected()
        except BaseException:
            self._mesh.close()
            raise
        self._mesh.patience_s = None  # all wait for the slowest: from here on the detector notices losses
        self._detector = FailureDetector(alive.connections, self._mesh, report, silence, continues, on_idle)
        self._mesh.on_error = (lambda: report((), "")) if continues else self._detector.report_before_close
        self.interrupt, self.heard = self._mesh.interrupt, self._detector.heard
        self.stop_watching = self._detector.close

    def let_leave(self) -> None:
        """From here on a worker that ends is not lost."""
        self._mesh.patience_s = LEAVING_S
        self._detector.let_leave()

    def close(self) -> None:
        self._detector.close()
        self._mesh.on_error = lambda: None  # the report leads back to this object
        self._mesh.close()
