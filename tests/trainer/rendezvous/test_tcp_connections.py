"""Generations of workers that are connected over TCP, all in this process."""

from __future__ import annotations

import contextlib
import gc
import socket
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from trainer.clock import RealClock
from trainer.collectives.connecting import Acceptor
from trainer.collectives.schedules import ring
from trainer.collectives.tcp import TcpMesh
from trainer.rendezvous import generations
from trainer.rendezvous.generations import Generations
from trainer.rendezvous.joining import Start
from trainer.rendezvous.tcp_connections import TcpConnections
from trainer.transport.collective import CollectiveTransport
from utils import PeerLost

# isort: split
from server.messages import Member

WAIT_S = 20.0


class Meeting(threading.Barrier):
    """Both workers start each generation together."""

    generation = 1

    def __init__(self) -> None:
        super().__init__(2, self._next, WAIT_S)

    def _next(self) -> None:
        self.generation += 1


class Joining:
    """A rendezvous at which the same workers start each time."""

    patience_s = WAIT_S

    def __init__(self, rank: int, members: tuple[Member, ...], meeting: Meeting) -> None:
        self._rank, self._members, self._meeting = rank, members, meeting

    def start(self, generation: int = 1) -> Start:
        return Start(generation, self._rank, self._members)

    def come_back(self, before: Start, lost: object) -> Start:
        self._meeting.wait()
        return self.start(self._meeting.generation)

    def beat(self, place: Start) -> str:
        return ""

    def leave(self, cause: str = "") -> None: ...


def test_generations_that_are_over_leave_no_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a collection of garbage: where many objects live long, the next one may be hours away."""
    monkeypatch.setattr(generations, "ASK_EVERY_S", 0.01)
    monkeypatch.setattr(generations, "OTHERS_ASK_EVERY_S", 0.01)
    made, threads = weakref.WeakSet[TcpMesh](), list[threading.Thread]()
    begin = TcpMesh.__init__

    def noted(mesh: TcpMesh, *about: object) -> None:
        begin(mesh, *about)  # type: ignore[arg-type]
        made.add(mesh)

    def in_thread(work: object, name: str) -> None:
        threads.append(threading.Thread(target=work, name=name, daemon=True))  # type: ignore[arg-type]
        threads[-1].start()

    monkeypatch.setattr(TcpMesh, "__init__", noted)
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    members = tuple(Member(f"w{n}", "127.0.0.1", each.getsockname()[1], "h", "cpu") for n, each in enumerate(listeners))
    with contextlib.ExitStack() as stack:
        acceptors = [stack.enter_context(contextlib.closing(Acceptor(each))) for each in listeners]
        meeting = Meeting()
        meetings = [Joining(rank, members, meeting) for rank in range(2)]

        def worker(rank: int) -> Generations:
            def connect(*about):
                return TcpConnections(acceptors[rank], ring, WAIT_S, WAIT_S, True, *about)

            return Generations(meetings[rank], connect, RealClock(), in_thread)  # type: ignore[arg-type]

        workers = [worker(rank) for rank in range(2)]
        gc.disable()
        stack.callback(gc.enable)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda rank: workers[rank].begin(meetings[rank].start()), range(2)))
        transports = [CollectiveTransport(each.taken.group, RealClock()) for each in workers]
        for _ in range(3):
            for each, transport in zip(workers, transports, strict=True):
                each.pause()
                with pytest.raises(PeerLost):
                    transport.barrier()
            for each, transport in zip(workers, transports, strict=True):
                transport.go_over_to(each.take().group)
        for each in workers:
            each.let_leave()  # else the second one would take the first for lost
        for each in workers:
            each.leave()
        for thread in threads:
            thread.join(WAIT_S)
        assert len(made) == 2  # of the last generation
