"""Workers that add up over TCP, each in a thread of this process: exact sums, lost and silent workers, strangers."""

from __future__ import annotations

import contextlib
import gc
import json
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from unittest.mock import Mock

import numpy as np
import pytest

from trainer.collectives import tcp
from trainer.collectives.connecting import MOST_BYTES, Acceptor, Address, connect, unanswered
from trainer.collectives.mesh import MeshGroup, follow
from trainer.collectives.schedules import SUMS, ExchangeSchedule, ring
from trainer.collectives.tcp import Awaited, TcpMesh
from utils import JobError, PeerLost, SetupError

WAIT_S = 20.0
Result = TypeVar("Result")


@contextlib.contextmanager
def listening(number: int) -> Iterator[tuple[list[Acceptor], list[Address]]]:
    """What takes the calls to so many workers, w0 and so on, and their addresses."""
    with contextlib.ExitStack() as stack:
        listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
        addresses = [listener.getsockname() for listener in listeners]
        closing = [contextlib.closing(Acceptor(listener, f"w{rank}")) for rank, listener in enumerate(listeners)]
        yield [stack.enter_context(each) for each in closing], addresses


def beside(work: Callable[[int], Result], number: int) -> list[Result]:
    """What each rank's work returns; all run at once."""
    with ThreadPoolExecutor(number) as pool:
        return [task.result(WAIT_S) for task in [pool.submit(work, rank) for rank in range(number)]]


@contextlib.contextmanager
def meshes(number: int, patience_s: float = WAIT_S) -> Iterator[list[TcpMesh]]:
    """Connected workers."""
    with listening(number) as (listeners, addresses):
        made = beside(lambda rank: connect(rank, addresses, listeners[rank], "a job", WAIT_S), number)
    for mesh in made:
        mesh.patience_s = patience_s
    try:
        yield made
    finally:
        for mesh in made:
            mesh.close()


def barrier(mesh: TcpMesh, value: float = 0.0) -> float:
    return MeshGroup(mesh, ring).barrier(value)


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("number", [1, 2, 3, 4, 6, 7])
def test_the_sum_is_exact_on_every_rank_and_the_bytes_are_the_schedules(
    name: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "CHUNK", 100)  # several to a message
    length = 10_007  # pieces of unequal sizes
    buffers = [(np.arange(length) % 1000 + rank).astype(np.float32) for rank in range(number)]
    total = np.sum(buffers, axis=0)

    with meshes(number) as made:
        for _ in range(2):
            moved = beside(lambda rank: follow(SUMS[name](number, rank), made[rank], buffers[rank], 4 * length), number)
            for buffer in buffers:
                np.testing.assert_array_equal(buffer, total)
            total = total * number
        assert beside(lambda rank: barrier(made[rank], 1.5 * rank), number) == [1.5 * (number - 1)] * number
    assert sum(each.sent for each in moved) == sum(each.received for each in moved)
    if name == "ring":
        assert sum(each.sent for each in moved) == 2 * (number - 1) * 4 * length


def test_large_messages_both_ways_do_not_wait_for_each_other() -> None:
    length = 8 << 20  # 32 MB, more than the kernel keeps for a connection
    buffers = [np.full(length, rank + 1, np.float32) for rank in range(2)]
    with meshes(2) as made:
        beside(lambda rank: follow(ring(2, rank), made[rank], buffers[rank], 4 * length), 2)
    assert all((buffer == 3).all() for buffer in buffers)


@pytest.mark.parametrize("name", SUMS)
def test_when_a_worker_is_gone_in_the_middle_of_a_sum_all_others_are_told_at_once(name: str) -> None:
    number, gone = 4, 2
    buffers = [np.ones(1 << 20, np.float32) for _ in range(number)]

    def work(rank: int) -> float:
        if rank == gone:
            parts, steps = SUMS[name](number, rank)
            follow(ExchangeSchedule(parts, steps[:1]), made[rank], buffers[rank], 4 << 20)
            made[rank].close()
            return 0.0
        began = time.monotonic()
        with pytest.raises(PeerLost):
            follow(SUMS[name](number, rank), made[rank], buffers[rank], 4 << 20)
        with pytest.raises(PeerLost):  # and nothing goes on later
            follow(SUMS[name](number, rank), made[rank], buffers[rank], 4 << 20)
        return time.monotonic() - began

    with meshes(number) as made:
        assert max(beside(work, number)) < 10.0  # far below the patience


def test_a_mesh_tells_what_is_begun_and_how_much_of_it_has_come() -> None:
    with meshes(2) as made:
        beside(lambda rank: barrier(made[rank]), 2)
        assert [made[0].num_begun(1), made[0].awaited()] == [1, None]
        thread = threading.Thread(target=lambda: barrier(made[0]))
        thread.start()
        while made[0].awaited() is None:
            time.sleep(0.001)
        assert made[0].awaited() == Awaited(1, 2, 20)  # the header and a number of the barrier before
        assert [each.num_begun(1 - rank) for rank, each in enumerate(made)] == [2, 1]
        barrier(made[1])
        thread.join(WAIT_S)


def test_a_worker_that_is_silent_is_named_after_the_patience() -> None:
    with meshes(2, patience_s=0.1) as made:
        with pytest.raises(PeerLost, match=r"nothing came from worker 1 for 0\.1 s"):
            follow(ring(2, 0), made[0], np.ones(2, np.float32), 8)
        with pytest.raises(PeerLost, match="worker 0 closed its connection"):  # which it did in turn
            follow(ring(2, 1), made[1], np.ones(2, np.float32), 8)


def test_workers_that_do_not_do_the_same_are_told() -> None:
    with meshes(2) as made:

        def work(rank: int) -> None:
            follow(ring(2, rank), made[rank], np.ones(10 + rank * 10, np.float32), 40)

        with pytest.raises(JobError, match=r"worker \d sent .* bytes as message 0, where .* start all workers with"):
            beside(work, 2)


def test_a_thread_that_waits_in_a_mesh_is_told_when_it_is_closed() -> None:
    told = threading.Event()
    with meshes(2) as made:

        def waits() -> None:
            with pytest.raises(PeerLost):
                barrier(made[0])
            told.set()

        thread = threading.Thread(target=waits)
        thread.start()
        made[0].close()
        thread.join(WAIT_S)
    assert told.is_set()


def frame(words: bytes) -> bytes:
    return b"esync-1\n" + len(words).to_bytes(2, "big") + words


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
        frame(b"[]"),
        frame(b"{}"),
        frame(b"\xff"),
        frame(b"[" * MOST_BYTES),
        frame(json.dumps({"job": "\ud800", "from": 1, "to": 0}).encode()),
        frame(json.dumps({"job": "another", "from": 1, "to": 0}).encode()),
        frame(json.dumps({"job": "a job", "from": 1, "to": 5}).encode()),
        frame(json.dumps({"job": "a job", "from": 7, "to": 0}).encode()),
        frame(b" " * (MOST_BYTES + 1)),
    ],
)
def test_strangers_are_hung_up_on_and_the_workers_connect(said: bytes) -> None:
    with listening(2) as (listeners, addresses), socket.create_connection(addresses[0]) as stranger:
        stranger.sendall(said)
        made = beside(lambda rank: connect(rank, addresses, listeners[rank], "a job", WAIT_S), 2)
        beside(lambda rank: barrier(made[rank]), 2)
        if not said:  # it may still say the right words
            listeners[0].close()
        stranger.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionResetError):  # there was more to read than was read
            assert stranger.recv(1) == b""
        for mesh in made:
            mesh.close()


def test_callers_that_are_dropped_or_get_no_thread_are_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(1) as ((acceptor,), (address,)):
        ours, theirs = socket.socketpair()
        theirs.sendall(frame(json.dumps({"job": "a job", "from": 1, "to": 0}).encode()))
        acceptor._hear(ours)  # others have come in its place while it was read
        monkeypatch.setattr(threading.Thread, "start", Mock(side_effect=RuntimeError("can't start new thread")))
        with socket.create_connection(address, WAIT_S) as caller:
            assert caller.recv(1) == theirs.recv(1) == b""
        assert acceptor.take("a job", 0, [1], (), 0.0) == {}


def complaint(rank: int, addresses: list[Address], listener: Acceptor, job: str = "a job", wait_s: float = 0.3) -> str:
    """What keeps a worker from being connected with the others; else nothing."""
    try:
        connect(rank, addresses, listener, job, wait_s).close()
    except (PeerLost, SetupError) as error:
        return str(error)
    return ""


def test_a_worker_of_another_job_is_told_so_and_the_first_misses_its_own() -> None:
    with listening(2) as (listeners, addresses):
        missed, refused = beside(lambda rank: complaint(rank, addresses, listeners[rank], f"job {rank}"), 2)
    assert missed == "worker 1 did not call in time: see the logs there"
    assert "hung up: it has ended, or it belongs to another job or program" in refused


def test_a_list_of_addresses_in_another_order_is_noticed() -> None:
    with listening(3) as (listeners, addresses):
        swapped = [addresses[1], addresses[0], addresses[2]]
        *_, last = beside(lambda rank: complaint(rank, swapped if rank == 2 else addresses, listeners[rank]), 3)
    assert "worker 0 at 127.0.0.1:" in last


def test_a_worker_that_listens_nowhere_is_missed_in_time() -> None:
    with listening(2) as (listeners, addresses):
        listeners[0].close()
        with pytest.raises(PeerLost, match="worker 0 has ended"):
            connect(1, addresses, listeners[1], "a job", 0.1)


def test_one_that_answers_nothing_is_missed_in_time() -> None:
    with (
        listening(2) as (listeners, addresses),
        pytest.raises(PeerLost, match=r"worker 0 at 127\.0\.0\.1:\d+ does not answer"),
    ):
        connect(1, addresses, listeners[1], "a job", 0.1)


def test_of_two_workers_the_lower_rank_calls_where_only_it_reaches_the_other() -> None:
    """Rank 0 cannot be called, and calls rank 2; rank 1 is called by rank 2 as usual."""
    with listening(3) as (listeners, addresses):
        places = [("127.0.0.1", 1), *addresses[1:]]
        calls = {(0, 1), (0, 2)}
        made = beside(lambda rank: connect(rank, places, listeners[rank], "a job", WAIT_S, calls=calls), 3)
        assert beside(lambda rank: barrier(made[rank], rank), 3) == [2.0] * 3
        for mesh in made:
            mesh.close()


def test_a_call_finds_out_whether_the_worker_of_a_name_answers_also_in_the_middle_of_a_job() -> None:
    with meshes(2) as made, listening(2) as (listeners, addresses):
        assert unanswered(addresses[0], "w0", WAIT_S) == ""
        assert unanswered(addresses[0], "w1", WAIT_S)
        listeners[1].close()
        assert unanswered(addresses[1], "w1", WAIT_S) == "Connection refused"
        with socket.create_server(("127.0.0.1", 0)) as silent:
            assert unanswered(silent.getsockname(), "w1", 0.05) == "no answer"
        assert beside(lambda rank: barrier(made[rank]), 2) == [0.0] * 2


# ---------------------------------------------------------------------------------------- workers that have ended


@pytest.mark.parametrize("ended", [0, 2])
def test_one_that_has_ended_is_told_to_those_who_call_it_and_to_those_who_wait_for_its_call(ended: int) -> None:
    with listening(3) as (listeners, addresses):
        listeners[ended].close()
        left = [rank for rank in range(3) if rank != ended]
        begin = time.monotonic()
        told = beside(lambda place: complaint(left[place], addresses, listeners[left[place]], wait_s=WAIT_S), 2)
        assert time.monotonic() - begin < WAIT_S / 2
    assert any(f"worker {ended} has ended" in line for line in told)


def test_one_that_hangs_up_again_ends_the_wait_for_another() -> None:
    """Worker 1 is connected with worker 0, and waits for worker 2, which is slow; then worker 0 goes."""
    with listening(3) as (listeners, addresses), socket.create_server(("127.0.0.1", 0)) as elsewhere:
        places = [elsewhere.getsockname(), addresses[1], addresses[2]]

        def work(index: int) -> str:
            if index == 0:
                with elsewhere.accept()[0]:
                    return ""
            return complaint(1, places, listeners[1], wait_s=WAIT_S)

        assert beside(work, 2)[1].startswith("another worker hung up again")


def test_a_mesh_that_failed_goes_with_its_buffers_once_it_is_closed() -> None:
    with meshes(2) as made:
        made[1].close()
        with contextlib.suppress(PeerLost):
            barrier(made[0], 0.0)
        made[0].close()  # by its user, after the error
        left = weakref.ref(made[0])
        gc.disable()  # a collection would find a cycle, but late where many objects live long
        try:
            made.clear()
            assert left() is None
        finally:
            gc.enable()
