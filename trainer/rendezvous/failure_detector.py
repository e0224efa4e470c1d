"""The connections among the workers of one generation: exchanges travel over one set, signs of life over another. A
thread beside the training notices lost workers by both.

A worker that dies closes its connections, which all others see at once; one that is frozen, or whose host or network is
down, sends no more heartbeats. Where heartbeats pass and larger packets do not, an exchange stands that both workers
have begun. One that has not begun may compute, evaluate or save, however long: a heartbeat tells how many messages its
sender has begun to send to the other one, which knows how many it has begun to receive, and the bytes that have come.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from trainer.collectives.connecting import TEST, Acceptor, connect
from trainer.collectives.mesh import Group, MeshGroup
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
_SIZE = 8  # bytes of a heartbeat: how many messages its sender has begun to send to its receiver
_OVER = bytes([255]) * _SIZE  # in place of a heartbeat: what they do together is over

# Called with the lost ranks and the reason, empty where their connections have ended; silent ones may be alive. With no
# ranks where an exchange has failed, or another worker has lost some and begins again.
OnLost = Callable[[Sequence[int], str], object]


def connected(
    acceptor: Acceptor,  # of other workers' calls; the caller's
    algorithm: ScheduleMaker,  # of the sums
    connect_s: float,  # until all are connected
    start: Start,
) -> tuple[TcpMesh, Group, Mapping[int, socket.socket]]:
    """Connects a worker with the others of one generation, for exchanges and for heartbeats, as TcpConnections takes
    them. Raises JobError if not all of them could be reached."""
    places = [(member.address, member.port) for member in start.members]
    # `start.id` is known to these workers alone, unless their traffic is read
    all_connected = partial(connect, start.rank, places, acceptor, start.id, connect_s, start.names, start.calls)
    mesh = all_connected()
    mesh.patience_s = connect_s
    group = MeshGroup(mesh, algorithm)
    try:
        group.all_gather(TEST)  # when all have the first connections, a second one is known as such
        beats = all_connected().connections
    except BaseException:
        mesh.close()
        raise
    mesh.patience_s = None  # all wait for the slowest: from here on the detector notices losses
    return mesh, group, beats


class TcpConnections:
    """One worker's connections with the others of a generation."""

    def __init__(
        self,
        mesh: TcpMesh,
        group: Group,  # over the mesh: what the workers do together
        beats: Mapping[int, socket.socket],  # by rank, for heartbeats alone; the thread that watches closes them
        silence: Silence,  # after which a worker counts as lost
        continues: bool = False,  # after a loss the remaining workers are watched; else this one ends
        # Called again and again, with the moment since when this worker has waited for no other one and was not frozen
        on_idle: Callable[[float], object] = lambda since: None,
    ) -> None:
        self.group, self._mesh, self._beats = group, mesh, beats
        self.interrupt = mesh.interrupt  # ends all exchanges, also those that other threads and workers wait for
        self._silence, self._continues, self._on_idle = silence, continues, on_idle
        self._said = dict.fromkeys(beats, b"")  # the newest heartbeat, and what has come of the next one
        self._awake = time.monotonic()  # since when this worker waits for signs of life
        self._heard = dict.fromkeys(beats, self._awake)  # when each was heard last that is not lost
        self._common: Awaited | None = None  # the message that both have begun
        self._moved = self._awake  # when something of it came
        self._has_noticed = threading.Event()
        self._is_over = False  # this worker has told of a silent one, which the others may not see
        self._begins_again = False  # another one has done so
        self._may_leave = False
        self._stopped, self._stops = socket.socketpair()

    def watch(self, on_lost: OnLost) -> None:
        """From here on a thread notices losses."""
        self._mesh.on_error = partial(on_lost, (), "") if self._continues else self.report_before_close
        self._thread = threading.Thread(target=self._run, args=(on_lost,), name="failure detector", daemon=True)
        self._thread.start()

    def _run(self, on_lost: OnLost) -> None:
        with die_on_error("the detector of lost workers failed"), contextlib.ExitStack() as on_end:
            selector = on_end.enter_context(selectors.DefaultSelector())
            for rank, connection in [(None, self._stopped), *self._beats.items()]:
                connection.setblocking(False)
                selector.register(on_end.enter_context(connection), selectors.EVENT_READ, rank)
            now, due = time.monotonic(), 0.0  # the latter is the time of the next heartbeat
            while None not in (ready := [key.data for key, _ in selector.select(max(0.0, due - now))]):
                before, now, silent_s = now, time.monotonic(), self._silence.limit_s()
                if self._may_leave or now - before > silent_s / 2:  # the latter: this worker itself was frozen
                    self._awake = now
                ended = [rank for rank in ready if not self._hear(rank, now)]
                found = self._loss(ended, now, silent_s)
                lost, why = found or ([], "")
                for rank in {*ended, *lost}:
                    selector.unregister(self._beats[rank])
                if found is not None:
                    self._has_noticed.set()
                    for rank in lost:
                        del self._heard[rank]
                    if why:
                        self._is_over, due = True, 0.0
                    on_lost(lost, why)
                    if not self._continues:  # this worker ends in turn, which the others see
                        self.interrupt()  # the training thread saves its model
                        return
                    self._awake = now = time.monotonic()
                if now >= due:
                    due = now + self._silence.beat_s
                    self._on_idle(max(self._awake, self._mesh.idle_since))
                    self._beat()

    def _hear(self, rank: int, now: float) -> bool:
        """Reads what has come; False where the connection has ended."""
        try:
            came = self._beats[rank].recv(1 << 12)
        except BlockingIOError:
            return True
        except OSError:
            return False
        if not came:
            return False
        self._silence.add_gap(now, now - max(self._heard[rank], self._awake))
        self._heard[rank] = now
        said = self._said[rank] + came
        self._said[rank] = said[max(0, len(said) // _SIZE - 1) * _SIZE :]
        return True

    def _loss(self, ended: list[int], now: float, silent_s: float) -> tuple[list[int], str] | None:
        """Ranks and reason as `on_lost` gets them. `ended` are those whose connections have just ended."""
        before, self._common = self._common, self._begun_by_both()
        if self._common is None or self._common != before:
            self._moved = now
        if ended and not self._may_leave:
            return ended, ""
        if not self._begins_again and any(said.startswith(_OVER) for said in self._said.values()):
            self._begins_again = True
            return [], ""
        if self._common is not None and now - max(self._moved, self._awake) > silent_s:
            return [self._common.source], f"for {silent_s:.3g} s {STANDS}"
        silent = [rank for rank, last in self._heard.items() if now - max(last, self._awake) > silent_s]
        return (silent, f"no sign of life for {silent_s:.3g} s: {SILENT}") if silent else None

    def _begun_by_both(self) -> Awaited | None:
        """The message that is being received, once a heartbeat has told that the other one has begun it."""
        awaited = self._mesh.awaited()
        if awaited is None or awaited.source not in self._heard:
            return None
        begun = int.from_bytes(self._said[awaited.source][:_SIZE], "big")  # of a part of a heartbeat: fewer
        return awaited if begun >= awaited.number else None

    def _beat(self) -> None:
        for rank, connection in self._beats.items():
            with contextlib.suppress(OSError):  # full, or closed: both are noticed by `_hear`
                connection.send(_OVER if self._is_over else self._mesh.num_begun(rank).to_bytes(_SIZE, "big"))

    def heard(self) -> list[int]:
        """The ranks that were heard lately."""
        since = time.monotonic() - self._silence.limit_s() / 2
        return [rank for rank, heard in dict(self._heard).items() if heard > since]  # a copy: the thread removes some

    def report_before_close(self) -> None:
        """To be called when a sum has failed, before this worker's connections close: if a worker is lost, `on_lost`
        tells it first, since the others could take this one for the lost one. Afterwards none is lost."""
        if self._has_noticed.wait(NOTICED_S):
            self._thread.join(TOLD_S)
        self.let_leave()

    def let_leave(self) -> None:
        """From here on workers may end without counting as lost; this one still sends heartbeats."""
        self._mesh.patience_s = LEAVING_S
        self._may_leave = True

    def stop_watching(self) -> None:
        """Reports losses no more; the others see that this worker has left."""
        self._stops.close()
        self._thread.join(TOLD_S)

    def close(self) -> None:
        self.stop_watching()
        self._mesh.on_error = lambda: None  # it leads back to what has these connections
        self._mesh.close()
