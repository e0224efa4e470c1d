"""Lost workers in a job without a parameter server, and values gathered over its connections."""

from __future__ import annotations

import contextlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest

from trainer.collectives.schedules import ring
from trainer.collectives.tcp import Awaited
from trainer.rendezvous import failure_detector
from trainer.rendezvous.failure_detector import TcpConnections
from trainer.rendezvous.silence import Silence
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_mesh import MemoryNetwork, in_memory

WAIT_S = 20.0


@dataclass
class Exchanges:
    """What a mesh tells of its exchanges."""

    begun: dict[int, int] = field(default_factory=lambda: {1: 5, 2: 7})
    under_way: Awaited | None = None
    idle_since: float = 0.0
    interrupt = close = lambda self: None

    def num_begun(self, rank: int) -> int:
        return self.begun[rank]

    def awaited(self) -> Awaited | None:
        return self.under_way


class Watched:
    """A worker of rank 0 with connections to the ranks 1 and 2."""

    def __init__(
        self,
        silent_s: float = WAIT_S,
        continues: bool = False,
        on_idle: Callable[[float], object] = lambda since: None,
    ) -> None:
        self.lost: list[int] = []
        self.why = ""
        self.told = threading.Event()
        pairs = {rank: socket.socketpair() for rank in (1, 2)}
        self.here = {rank: pair[0] for rank, pair in pairs.items()}
        self.there = {rank: pair[1] for rank, pair in pairs.items()}
        self.exchanges = Exchanges()
        self.detector = TcpConnections(self.exchanges, None, self.here, Silence(silent_s), continues, on_idle)
        self.detector.watch(self._on_lost)

    def beat(self, rank: int, begun: int = 0) -> None:
        with contextlib.suppress(BrokenPipeError):  # the detector has just told a loss
            self.there[rank].sendall(struct.pack("!Q", begun))

    def _on_lost(self, lost: list[int], why: str) -> None:
        self.lost, self.why = lost, why
        self.told.set()


@pytest.fixture(params=[{}])
def watched(request: pytest.FixtureRequest) -> Iterator[Watched]:
    made = Watched(**request.param)
    with contextlib.ExitStack() as stack:
        for each in (*made.here.values(), *made.there.values()):
            stack.enter_context(each)
        stack.callback(made.detector.close)
        yield made


def test_a_connection_that_ends_is_seen(watched: Watched) -> None:
    watched.beat(1)
    assert not watched.told.wait(0.05) and watched.detector.heard() == [1, 2]
    watched.there[2].close()
    assert watched.told.wait(WAIT_S)
    assert (watched.lost, watched.why, watched.detector.heard()) == ([2], "", [1])


@pytest.mark.parametrize("watched", [{"silent_s": 0.5}], indirect=True)
def test_a_worker_that_falls_silent_is_lost_and_one_that_does_not_is_not(watched: Watched) -> None:
    while not watched.told.wait(0.05):
        watched.beat(1)
    assert watched.lost == [2] and watched.detector.heard() == [1]
    assert watched.why == "no sign of life for 0.5 s: it is frozen, or its host or network is down"
    assert watched.there[2].recv(100)[:8] == struct.pack("!Q", 7)  # messages begun to send there


@pytest.mark.parametrize("watched", [{"silent_s": 2.0}], indirect=True)
def test_heard_is_who_sent_a_heartbeat_within_half_the_time_after_which_it_is_lost(watched) -> None:
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        watched.beat(1)
        assert not watched.told.wait(0.05)
    assert watched.detector.heard() == [1]
    watched.there[1].sendall(failure_detector._OVER)
    assert watched.told.wait(WAIT_S) and watched.lost == []


@pytest.mark.parametrize("watched", [{"continues": True}], indirect=True)
def test_others_that_miss_a_worker_hasten_no_heartbeat(watched: Watched) -> None:
    """With 32 workers each would answer each of the others' heartbeats with 31, as fast as the cores allow."""
    began = time.monotonic()
    for _ in range(20):
        watched.there[1].sendall(failure_detector._OVER)
        time.sleep(0.01)
    sent = len(watched.there[2].recv(1 << 12)) // 8
    assert 1 <= sent <= 2 + time.monotonic() - began  # one a second


@pytest.mark.parametrize("watched", [{"silent_s": 0.3}], indirect=True)
def test_a_message_that_both_have_begun_and_of_which_nothing_comes_is_seen(watched: Watched) -> None:
    watched.exchanges.under_way = Awaited(2, 7, 4000)
    while not watched.told.wait(0.02):
        watched.beat(1, 9)
        watched.beat(2, 7)
    assert watched.lost == [2] and watched.why == f"for 0.3 s {failure_detector.STANDS}"
    watched.beat(2, 7)
    assert 2 not in watched.detector.heard()


@pytest.mark.parametrize("watched", [{"silent_s": 0.3}], indirect=True)
@pytest.mark.parametrize("begun, bytes_each", [(6, 0), (7, 1)])
def test_one_that_has_not_begun_and_a_message_of_which_bytes_come_are_waited_for(
    watched: Watched, begun: int, bytes_each: int
) -> None:
    end = time.monotonic() + 0.9
    while time.monotonic() < end:
        watched.exchanges.under_way = Awaited(2, 7, watched.exchanges.begun[2])
        watched.exchanges.begun[2] += bytes_each
        for rank in (1, 2):
            watched.there[rank].sendall(struct.pack("!Q", begun)[:5])  # a part may come first
            watched.there[rank].sendall(struct.pack("!Q", begun)[5:])
        assert not watched.told.wait(0.02), watched.why


@pytest.mark.parametrize("watched", [{"continues": True}], indirect=True)
def test_one_that_continues_sees_later_losses_too(watched: Watched) -> None:
    for rank in (2, 1):
        watched.there[rank].close()
        assert watched.told.wait(WAIT_S)
        watched.told.clear()
        assert watched.lost == [rank]


@pytest.mark.parametrize("watched", [{"silent_s": 0.2, "continues": True}], indirect=True)
def test_one_that_loses_a_silent_worker_tells_the_others_which_may_hear_it(watched: Watched) -> None:
    while not watched.told.wait(0.02):
        watched.beat(1)
    assert watched.lost == [2]
    for rank in (1, 2):
        watched.there[rank].settimeout(WAIT_S)
        while not watched.there[rank].recv(800).endswith(bytes([255]) * 8):
            pass
    watched.told.clear()
    watched.beat(1, 2**64 - 1)
    assert watched.told.wait(WAIT_S) and (watched.lost, watched.why) == ([], "")


def test_the_detector_says_since_when_its_worker_waits_for_no_other_one() -> None:
    heard: queue.SimpleQueue[float] = queue.SimpleQueue()
    began = time.monotonic()
    made = Watched(0.4, on_idle=heard.put)
    with contextlib.closing(made.detector):
        assert began <= heard.get(timeout=WAIT_S) <= time.monotonic()
        made.exchanges.idle_since = 1e9
        while heard.get(timeout=WAIT_S) < 1e9:
            pass


@pytest.mark.parametrize("watched", [{"silent_s": 0.4}], indirect=True)
def test_who_may_leave_is_not_lost_and_the_others_hear_that_this_worker_is_alive(watched: Watched) -> None:
    watched.detector.let_leave()
    watched.there[1].close()
    watched.there[2].settimeout(WAIT_S)
    heard = b""
    while len(heard) < 80:  # 10 beats, in more than twice the time after which a silent worker is lost
        heard += watched.there[2].recv(100)
    assert not watched.told.is_set()


def test_a_sum_that_fails_for_a_lost_worker_leaves_the_report_to_the_detector(watched: Watched) -> None:
    watched.there[1].close()
    watched.detector.report_before_close()
    assert watched.told.is_set() and watched.lost == [1]


def test_after_a_sum_that_fails_otherwise_nobody_is_lost(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_detector, "NOTICED_S", 0.01)
    watched.detector.report_before_close()
    watched.here[1].shutdown(socket.SHUT_RDWR)  # as the mesh does then
    assert not watched.told.wait(0.05)


@pytest.mark.parametrize(
    ("rounds_s", "gap_s", "expected"),
    [
        ([], 0.25, 10.0),
        ([0.3] * 4, 0.25, 10.0),  # too few
        ([0.3] * 5, 0.25, 1.0),
        ([1.6] * 20, 0.25, 1.6),
        ([1.0, 3.0] * 10, 0.25, 5.0),  # a spread of 1: 2 + 3
        ([5.0, 9.0] * 10, 0.25, 10.0),
        ([0.3] * 20, 0.5, 1.5),  # heartbeats are late
        ([0.3] * 20, 9.0, 10.0),
    ],
)
def test_short_even_rounds_and_punctual_heartbeats_shorten_the_silence(
    rounds_s: list[float], gap_s: float, expected: float
) -> None:
    silence = Silence()
    silence.add_gap(0.0, gap_s)
    for took_s in rounds_s:
        silence.add_round(took_s)
    assert silence.limit_s() == pytest.approx(expected)


def test_the_longest_gap_between_heartbeats_counts_for_a_minute_and_only_the_newest_rounds_do() -> None:
    silence = Silence()
    for took_s in [9.0] * 5 + [0.3] * 20:
        silence.add_round(took_s)
    for now, gap_s in ((0.0, 0.3), (1.0, 2.0), (2.0, 0.3), (30.0, 1.0)):
        silence.add_gap(now, gap_s)
    assert silence.limit_s() == 6.0
    silence.add_gap(61.5, 0.25)
    assert silence.limit_s() == 3.0
    silence.add_gap(91.0, 0.25)
    assert silence.limit_s() == 1.0
    assert (Silence(7.5).limit_s(), Silence(7.5).beat_s, silence.beat_s) == (7.5, 1.0, 0.25)


@pytest.mark.parametrize("number", [1, 2, 3, 5, 7, 32])
def test_what_each_brings_all_have_by_rank(clock: VirtualClock, number: int) -> None:
    network = MemoryNetwork(clock, [WorkerLink(1e6, 0.01)] * number)
    values = [{"rank": rank, "name": "é" * rank, "number": 1 / 3} for rank in range(number)]
    ways = [in_memory(network, ring, rank).gather for rank in range(number)]
    tasks = [clock.start(partial(way, "values", value), "worker") for way, value in zip(ways, values, strict=True)]
    assert [task.result() for task in tasks] == [values] * number
