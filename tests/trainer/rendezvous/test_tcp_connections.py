"""Generations of workers that are connected over TCP: in this process, and on hosts of their own."""

from __future__ import annotations

import contextlib
import gc
import shutil
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import namespaces
import pytest
from cluster_processes import ROOT

from esync.clock import RealClock
from server.messages import Member
from trainer.collectives.connecting import Acceptor
from trainer.collectives.schedules import ring
from trainer.collectives.tcp import TcpMesh
from trainer.rendezvous import generations
from trainer.rendezvous.failure_detector import STANDS, TcpConnections, connected
from trainer.rendezvous.generations import Generations
from trainer.rendezvous.joining import Start
from trainer.rendezvous.silence import Silence
from trainer.transport.collective import CollectiveTransport
from utils import PeerLost

WAIT_S = 20.0


class Joining:
    """A rendezvous at which the same workers start each time, together."""

    def __init__(self, meeting: threading.Barrier) -> None:
        self._meeting = meeting

    def wait(self, timeout_s: float, before: Start, lost: object, heard: object) -> Start:
        self._meeting.wait()
        return msgspec.structs.replace(before, generation=before.generation + 1, id=f"g{before.generation}")

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
        joining = Joining(threading.Barrier(2, timeout=WAIT_S))

        def worker(rank: int) -> Generations:
            def connect(start: Start) -> TcpConnections:
                return TcpConnections(*connected(acceptors[rank], ring, WAIT_S, start), Silence(WAIT_S), True)

            return Generations(joining, connect, RealClock(), Start(1, rank, members), in_thread)  # type: ignore[arg-type]

        gc.disable()
        stack.callback(gc.enable)
        with ThreadPoolExecutor(2) as pool:
            workers = list(pool.map(worker, range(2)))
        transports = [CollectiveTransport(each.taken.connections.group, RealClock()) for each in workers]
        for _ in range(3):
            for each, transport in zip(workers, transports, strict=True):
                each.pause()
                with pytest.raises(PeerLost):
                    transport.barrier()
            for each, transport in zip(workers, transports, strict=True):
                transport.go_over_to(each.take().connections.group)
        for each in workers:
            each.taken.connections.let_leave()  # else the second one would take the first for lost
        for each in workers:
            each.leave()
        for thread in threads:
            thread.join(WAIT_S)
        assert len(made) == 2  # of the last generation


SUMS_AND_TESTS = """
import socket, sys, threading, time
sys.path.insert(0, "SimpleStateServer")
import numpy as np
from trainer.collectives import connecting
from trainer.collectives.schedules import ring
from trainer.rendezvous.joining import Start
from trainer.rendezvous.silence import Silence
from trainer.rendezvous.failure_detector import TcpConnections, connected
from server.messages import Member
from utils import PeerLost

connecting.TEST_S = 0.5
rank, *addresses = int(sys.argv[1]), *sys.argv[2:]
acceptor = connecting.Acceptor(socket.create_server((addresses[rank], 4000)), f"w{rank}")
members = tuple(Member(f"w{n}", each, 4000, "h", "cpu") for n, each in enumerate(addresses))
print("here", flush=True)
sys.stdin.readline()

def report(lost, why):
    if why:
        print("lost", *lost, why, flush=True)
    connections.interrupt()

connections = TcpConnections(*connected(acceptor, ring, 10.0, Start(1, rank, members)), Silence(1.0), True)
connections.watch(report)
buffer = np.ones(1 << 20, np.float32)
try:
    while True:
        connections.group.all_reduce(buffer, buffer.nbytes)
        print("sum", flush=True)
        time.sleep(0.1)
except PeerLost:
    other, found = 1 - rank, "none"
    while found:
        if found != (found := connecting.unanswered((addresses[other], 4000), f"w{other}", 5.0)):
            print("test", found, flush=True)
        time.sleep(0.05)
sys.stdin.read()
"""


@pytest.mark.usefixtures("namespaces_can_be_made")
@pytest.mark.skipif(not shutil.which("nft"), reason="no nft: apt-get install nftables")
def test_a_way_on_which_large_packets_are_lost_is_a_cut_link_though_heartbeats_pass(tmp_path: Path) -> None:
    with namespaces.network(tmp_path, 2) as net, contextlib.ExitStack() as stack:

        def started(rank: int) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", SUMS_AND_TESTS, str(rank), *(host.address for host in net.hosts)]
            ends = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            one = subprocess.Popen(net.hosts[rank].command(*command), cwd=ROOT, text=True, **ends)
            stack.callback(one.communicate)
            stack.callback(one.kill)
            return one

        def said(one: subprocess.Popen[str]) -> str:
            assert one.stdout is not None
            return next(line for line in one.stdout if line != "sum\n")

        workers = [started(rank) for rank in range(2)]
        assert [said(each) for each in workers] == ["here\n"] * 2
        for each in workers:
            assert each.stdin is not None and each.stdout is not None
            each.stdin.write("\n")
            each.stdin.flush()
        assert [each.stdout.readline() for each in workers] == ["sum\n"] * 2
        drop = "type filter hook output priority 0; meta oifname != lo meta length gt 1000 drop;"
        net.hosts[1].nft(f"table inet hole {{\nchain out {{ {drop} }}\n}}\n")
        assert said(workers[0]) == f"lost 1 for 1 s {STANDS}\n"  # it hears worker 1, of which nothing more comes
        assert [said(each) for each in workers] == ["test large packets do not pass\n"] * 2
        net.hosts[1].heal()
        assert [said(each) for each in workers] == ["test \n"] * 2
