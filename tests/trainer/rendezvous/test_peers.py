"""Lost workers in a job without a parameter server, and values gathered over its connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from trainer.collectives.schedules import ring
from trainer.rendezvous import failure_detector
from trainer.rendezvous.failure_detector import FailureDetector
from trainer.rendezvous.peers import gather_over
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock, run_all
from trainer.simulation.virtual_mesh import MemoryNetwork, in_memory

WAIT_S = 20.0


class Watched:
    """A worker of rank 0 with connections to the ranks 1 and 2."""

    def __init__(self, silent_s: float = failure_detector.SILENT_S, continues: bool = False) -> None:
        self.lost: list[int] = []
        self.why = ""
        self.told = threading.Event()
        pairs = {rank: socket.socketpair() for rank in (1, 2)}
        self.here = {rank: pair[0] for rank, pair in pairs.items()}
        self.there = {rank: pair[1] for rank, pair in pairs.items()}
        self.detector = FailureDetector(self.here, self._on_lost, silent_s, continues)

    def _on_lost(self, lost: list[int], why: str) -> None:
        self.lost, self.why = lost, why
        self.told.set()


@pytest.fixture(params=[failure_detector.SILENT_S])
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(request.param)
    with contextlib.ExitStack() as stack:
        for each in (*made.here.values(), *made.there.values()):
            stack.enter_context(each)
        stack.callback(made.detector.close)
        yield made


def test_a_connection_that_ends_is_seen(watched: Watched) -> None:
    watched.there[1].sendall(b".")
    assert not watched.told.wait(0.05)
    watched.there[2].close()
    assert watched.told.wait(WAIT_S)
    assert (watched.lost, watched.why) == ([2], "")


@pytest.mark.parametrize("watched", [3.0], indirect=True)
def test_a_worker_that_falls_silent_is_lost_and_one_that_does_not_is_not(watched: Watched) -> None:
    while not watched.told.wait(0.05):
        watched.there[1].sendall(b".")
    assert watched.lost == [2]
    assert watched.why == "no sign of life for 3 s: it is frozen, or its host or network is down"
    assert set(watched.there[2].recv(100)) == set(b".")  # of this worker


def test_one_that_continues_sees_later_losses_too() -> None:
    made = Watched(continues=True)
    with contextlib.closing(made.detector):
        for number, rank in enumerate((2, 1), start=1):
            made.there[rank].close()
            assert made.told.wait(WAIT_S)
            made.told.clear()
            assert made.lost == [rank], number


def test_once_it_is_stopped_connections_may_end(watched: Watched) -> None:
    watched.detector.stop()
    for each in watched.there.values():
        each.close()
    assert not watched.told.wait(0.05)
    watched.detector.stop()  # once more does no harm


@pytest.mark.parametrize("watched", [0.4], indirect=True)
def test_who_may_leave_is_not_lost_and_the_others_hear_that_this_worker_is_alive(watched: Watched) -> None:
    watched.detector.let_leave()
    watched.there[1].close()
    watched.there[2].settimeout(WAIT_S)
    heard = b""
    while len(heard) < 10:  # beats, in more than twice the time after which a silent worker is lost
        heard += watched.there[2].recv(100)
    assert not watched.told.is_set()


def test_a_sum_that_fails_for_a_lost_worker_leaves_the_report_to_the_detector(watched: Watched) -> None:
    watched.there[1].close()
    watched.detector.report_before_close()
    assert watched.told.is_set() and watched.lost == [1]


def test_a_sum_that_fails_otherwise_stops_the_detector(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "NOTICED_S", 0.01)
    watched.detector.report_before_close()
    watched.here[1].shutdown(socket.SHUT_RDWR)  # as the mesh does then
    assert not watched.told.wait(0.05)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_what_each_brings_all_have_by_rank(number: int) -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock, [WorkerLink(1e6, 0.01)] * number)
    values = [{"rank": rank, "name": "é" * rank, "number": 1 / 3} for rank in range(number)]
    found: dict[int, list[object] | None] = {}

    def worker(rank: int) -> None:
        found[rank] = gather_over(in_memory(network, ring, rank))("values", values[rank])

    run_all(clock, [lambda rank=rank: worker(rank) for rank in range(number)])  # type: ignore[misc]
    assert found == dict.fromkeys(range(number), values)
