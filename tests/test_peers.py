"""How workers without a parameter server watch their connections, and what they bring together over them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from trainer import peers
from trainer.clock import VirtualClock, run_all
from trainer.collectives.memory import MemoryNetwork
from trainer.collectives.schedules import ring
from trainer.peers import Attendance, Watch
from trainer.transport.collective import in_memory
from trainer.transport.network import Link

WAIT_S = 20.0


class Watched:
    """A worker of rank 0 with connections to the ranks 1 and 2."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.told = threading.Event()
        pairs = {rank: socket.socketpair() for rank in (1, 2)}
        self.here = {rank: pair[0] for rank, pair in pairs.items()}
        self.there = {rank: pair[1] for rank, pair in pairs.items()}
        self.watch = Watch(self.here, self._on_lost)

    def _on_lost(self, lost: list[int]) -> None:
        self.lost = lost
        self.told.set()


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    with contextlib.ExitStack() as stack:
        for each in (*made.here.values(), *made.there.values()):
            stack.enter_context(each)
        stack.callback(made.watch.stop)
        yield made


def test_a_connection_that_ends_is_seen_whatever_is_left_to_read(watched: Watched) -> None:
    watched.there[1].sendall(b"a piece of a sum")
    assert not watched.told.wait(0.05)
    watched.there[2].sendall(b"another piece")
    watched.there[2].close()
    assert watched.told.wait(WAIT_S)
    assert watched.lost == [2]


def test_once_it_is_stopped_connections_may_end(watched: Watched) -> None:
    watched.watch.stop()
    for each in watched.there.values():
        each.close()
    assert not watched.told.wait(0.05)
    watched.watch.stop()  # once more does no harm


def test_a_sum_that_fails_for_a_lost_worker_leaves_the_word_to_the_watch(watched: Watched) -> None:
    watched.there[1].close()
    watched.watch.speak_first()
    assert watched.told.is_set() and watched.lost == [1]


def test_a_sum_that_fails_otherwise_ends_the_watch(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "NOTICED_S", 0.01)
    watched.watch.speak_first()
    watched.here[1].shutdown(socket.SHUT_RDWR)  # as the mesh does then
    assert not watched.told.wait(0.05)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_what_each_brings_all_have_by_rank(number: int) -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock, [Link(1e6, 0.01)] * number)
    values = [{"rank": rank, "name": "é" * rank, "number": 1 / 3} for rank in range(number)]
    found: dict[int, list[object]] = {}

    def worker(rank: int) -> None:
        attendance = Attendance(in_memory(network, ring, rank))
        found[rank] = attendance.gather("values", values[rank])

    run_all(clock, [lambda rank=rank: worker(rank) for rank in range(number)])  # type: ignore[misc]
    assert found == dict.fromkeys(range(number), values)
