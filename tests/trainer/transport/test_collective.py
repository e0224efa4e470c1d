"""A transport without a parameter server: flat buffers, what the virtual network takes, and how a sum is timed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, strategies as st
from run_all import run_all

from trainer.collectives.mesh import Parcel, follow
from trainer.collectives.schedules import SUMS, ring
from trainer.simulation import virtual_mesh
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_mesh import MemoryMesh, MemoryNetwork, in_memory
from trainer.transport import flat
from trainer.transport.collective import CollectiveSums, CollectiveTransport
from trainer.transport.flat import FULL, IN_PLACE, LEFT_OVER, buffers_of, plan
from trainer.transport.protocol import num_bytes
from utils import PeerLost

# ------------------------------------------------------------------------------------------------- flat buffers


SOME, HALF = LEFT_OVER, FULL // 4


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([600, 24, 9600, 64], [[3, 2, 1, 0]]),  # a small model is one buffer
        # Large arrays are buffers by themselves, and the last layers go first.
        ([SOME, IN_PLACE, SOME, 2 * IN_PLACE, SOME], [[3], [1], [4, 2, 0]]),
        ([HALF - 1] * 6, [[5, 4, 3, 2, 1], [0]]),  # a full one leaves before those of earlier layers
        ([3 * IN_PLACE, 2 * IN_PLACE, 4 * IN_PLACE, 4], [[2], [0], [1, 3]]),  # a few bytes more make none of their own
    ],
)
def test_arrays_are_packed_into_buffers(sizes: list[int], groups: list[list[int]]) -> None:
    assert plan(sizes) == groups


@given(st.lists(st.integers(1, 2 * FULL), min_size=1, max_size=30))
def test_every_array_is_in_one_buffer(sizes: list[int]) -> None:
    groups = plan(sizes)
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))


def summed(shared: CollectiveSums, arrays: list[np.ndarray], timed: bool = False) -> float | None:
    """Adds them up; how long it took where that is asked."""
    shared.begin_sum(arrays)
    return shared.finish_sum(arrays, timed)


def arrays_of(*shapes: tuple[int, ...]) -> list[np.ndarray]:
    return [np.random.default_rng(0).standard_normal(shape, np.float32) for shape in shapes]


def test_what_a_buffer_takes_it_gives_back_and_a_large_array_is_its_own_buffer() -> None:
    arrays = arrays_of((3, 2), (1 << 19,), (5,), (FULL,))
    before = [array.copy() for array in arrays]
    for buffer in buffers_of(arrays):
        content = buffer.take(arrays)
        content += 1
        buffer.give(arrays)
    for array, was in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, was + 1)
    *_, largest = arrays
    assert any(np.shares_memory(buffer.take(arrays), largest) for buffer in buffers_of(arrays))


def test_only_float32_is_added_up() -> None:
    with pytest.raises(TypeError, match="arrays to be added up are float32, not float64"):
        buffers_of([np.zeros(2)])


# ------------------------------------------------------------------------------------------- the virtual network


def parcel(count: int) -> Parcel:
    """So many bytes."""
    return Parcel(np.zeros(count // 4, np.float32), count)


@pytest.mark.parametrize(
    ("held", "receives_at_s", "sent_s", "received_s"),
    [
        (99, 0.0, 1.0, 3.0),  # the receiver was first: latency, then the bytes
        (99, 1.0, 2.0, 3.0),  # of 2 s of latency one is over when it comes, and the first bytes arrive at 2 s
        (99, 10.0, 11.0, 11.0),  # they wait for the receiver
        (100, 0.0, 0.0, 3.0),  # the kernels hold it: its sender goes on
        (100, 10.0, 0.0, 10.0),  # and it is there when the receiver comes
    ],
)
def test_a_message_takes_both_latencies_and_the_slower_link(
    held, receives_at_s, sent_s, received_s, monkeypatch
) -> None:
    monkeypatch.setattr(virtual_mesh, "HELD", held)
    clock, done_s = VirtualClock(), {}
    network = MemoryNetwork(clock, [WorkerLink(100.0, 0.5), WorkerLink(400.0, 1.5)])

    def sends() -> None:
        MemoryMesh(network, 0).exchange(1, parcel(100), None, parcel(0), False)
        done_s["sent"] = clock.now()

    def receives() -> None:
        clock.sleep(receives_at_s)
        MemoryMesh(network, 1).exchange(None, parcel(0), 0, parcel(100), False)
        done_s["received"] = clock.now()

    run_all(clock, [sends, receives])
    assert done_s == {"sent": pytest.approx(sent_s), "received": pytest.approx(received_s)}


def test_what_the_kernels_hold_goes_one_after_the_other_and_stays_what_it_was() -> None:
    clock, done_s = VirtualClock(), []
    network = MemoryNetwork(clock, [WorkerLink(100.0, 1.0), WorkerLink(100.0, 1.0)])
    sent, received = Parcel(np.zeros(25, np.float32), 100), parcel(100)

    def sends() -> None:
        for number in (1.0, 2.0):
            sent.array[:] = number
            MemoryMesh(network, 0).exchange(1, sent, None, parcel(0), False)
        assert clock.now() == 0.0

    def receives() -> None:
        clock.sleep(0.5)
        for number in (1.0, 2.0):
            MemoryMesh(network, 1).exchange(None, parcel(0), 0, received, False)
            assert (received.array == number).all()
            done_s.append(clock.now())

    run_all(clock, [sends, receives])
    assert done_s == pytest.approx([1.0 + 2.0, 2.0 + 2.0])


@pytest.mark.parametrize(
    ("name", "number", "link", "bytes_per_s", "seconds"),
    [
        ("ring", 4, WorkerLink(1000.0, 0.25), float("inf"), 6 * 0.5 + 1.5 * 4000 / 1000),
        ("butterfly", 4, WorkerLink(1000.0, 0.25), float("inf"), 4 * 0.5 + 1.5 * 4000 / 1000),
        ("ring", 2, WorkerLink(), 50.0, 2 * 2000 / 50),  # no link is faster than the network
    ],
)
def test_a_sum_takes_its_steps_and_its_bytes(name, number, link, bytes_per_s, seconds) -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock, [link] * number, bytes_per_s=bytes_per_s)
    data = [np.ones(1000, np.float32) for _ in range(number)]

    def work(rank: int) -> Callable[[], object]:
        return lambda: follow(SUMS[name](number, rank), MemoryMesh(network, rank), data[rank], 4000)

    run_all(clock, [work(rank) for rank in range(number)])
    assert clock.now() == pytest.approx(seconds)


# ------------------------------------------------------------------------------------------------- the transport


def together(
    number: int,
    work: Callable[[CollectiveTransport], None],
    link: WorkerLink = WorkerLink(),  # noqa: B008
    name: str = "ring",
    size_of: Callable[[np.ndarray], int] = num_bytes,
) -> VirtualClock:
    """Lets so many workers do the same in virtual time."""
    clock = VirtualClock()
    network = MemoryNetwork(clock, [link] * number)
    places = [in_memory(network, SUMS[name], rank, size_of) for rank in range(number)]
    run_all(clock, [lambda place=place: work(place) for place in places])
    return clock


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("number", [1, 3, 5])
def test_arrays_of_all_sizes_are_summed_on_all_workers(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat, "IN_PLACE", 400)
    monkeypatch.setattr(flat, "FULL", 100)
    monkeypatch.setattr(flat, "LEFT_OVER", 0)
    shapes = [(2, 3), (10, 11), (1,), (7, 5), (120,)]

    def work(place: CollectiveTransport) -> None:
        shared = place.sums()
        first = [array * (place.rank + 1) for array in arrays_of(*shapes)]
        shared.broadcast(first)
        for array, given_ in zip(first, arrays_of(*shapes), strict=True):
            np.testing.assert_array_equal(array, given_)
        for round_ in range(2):
            arrays = [np.full(shape, index + place.rank + round_, np.float32) for index, shape in enumerate(shapes)]
            summed(shared, arrays)
            for index, array in enumerate(arrays):
                assert (array == sum(index + rank + round_ for rank in range(number))).all()

    together(number, work, name=name)


def test_a_timed_sum_tells_the_time_of_the_collective_and_not_of_the_wait_for_the_straggler() -> None:
    took_s: list[tuple[float | None, ...]] = []
    link, length = WorkerLink(400.0, 0.5), 200

    def work(place: CollectiveTransport) -> None:
        shared, arrays = place.sums(), [np.ones(length, np.float32)]
        shared.broadcast(arrays)
        seen = []
        for _ in range(2):
            place.clock.sleep(100.0 * place.rank)
            seen.append(summed(shared, arrays, timed=True))
        took_s.append(tuple(seen))

    together(2, work, link)
    expected = pytest.approx(2 * (1.0 + 1.0), abs=0.011)  # the four bytes of the barrier are still on their way
    assert took_s == [(expected, expected)] * 2


def test_all_are_told_the_same_time_the_longest_although_one_gets_its_sum_later() -> None:
    """Of three, the butterfly folds rank 1 into rank 0, and sends it the sum at the end, 1 s after its own."""
    took_s: dict[int, list[float | None]] = {}

    def work(place: CollectiveTransport) -> None:
        shared, arrays = place.sums(), [np.ones(100, np.float32)]
        shared.broadcast(arrays)
        took_s[place.rank] = [summed(shared, arrays, timed=True) for _ in range(3)]

    together(3, work, WorkerLink(400.0), name="butterfly")
    assert took_s[1][0] == pytest.approx(took_s[2][0] + 1.0)
    assert took_s[0][1:] == took_s[1][1:] == took_s[2][1:]
    assert took_s[0][1] == pytest.approx(took_s[1][0])


def test_without_a_timed_first_sum_no_later_one_waits_for_a_barrier() -> None:
    ended_s: list[float] = []

    def work(place: CollectiveTransport) -> None:
        shared, arrays = place.sums(), [np.ones(200, np.float32)]
        shared.broadcast(arrays)
        for moment in (100.0, 200.0):
            place.clock.sleep(moment - place.clock.now())
            assert summed(shared, arrays) is None
            ended_s.append(place.clock.now() - moment)

    together(2, work, WorkerLink(400.0, 0.5))
    barrier_s = 1.0 + 4 / 400
    assert sorted(ended_s) == [pytest.approx(4.0)] * 2 + [pytest.approx(4.0 + barrier_s)] * 2


def test_the_worker_goes_on_while_its_arrays_travel() -> None:
    def work(place: CollectiveTransport) -> None:
        shared, arrays = place.sums(), [np.ones(200, np.float32)]
        shared.broadcast(arrays)
        place.clock.sleep(100.0 - place.clock.now())
        shared.begin_sum(arrays)
        assert place.clock.now() == 100.0
        place.clock.sleep(3.0)
        shared.finish_sum(arrays)
        assert place.clock.now() == pytest.approx(105.0, abs=0.02)  # and not 108

    together(2, work, WorkerLink(400.0, 0.5))


def test_traffic_is_what_a_workers_own_link_carries_each_way_as_large_as_the_arrays_count() -> None:
    sent: dict[int, dict[str, int]] = {}

    def work(place: CollectiveTransport) -> None:
        shared, arrays = place.sums(), [np.ones(2, np.float32), np.ones(1, np.float32)]
        shared.broadcast(arrays)
        summed(shared, arrays)
        sent[place.rank] = shared.take_traffic()

    together(3, work, name="butterfly", size_of=lambda array: 500 * array.size)
    assert sent == {
        0: {"bytes_pushed": 3750, "bytes_pulled": 2250 + 750},
        1: {"bytes_pushed": 1500, "bytes_pulled": 2250},
        2: {"bytes_pushed": 1500, "bytes_pulled": 1500},
    }


def test_a_wait_for_a_lost_worker_fails_now_and_later() -> None:
    clock, told = VirtualClock(), []
    network = MemoryNetwork(clock, [WorkerLink()] * 3)

    def waits(rank: int) -> None:
        place, arrays = in_memory(network, ring, rank), [np.ones(2, np.float32)]
        shared = place.sums()
        shared.broadcast(arrays)
        shared.begin_sum(arrays)
        for wait in (lambda: shared.finish_sum(arrays), place.barrier):
            with pytest.raises(PeerLost, match="worker 2 was lost"):
                wait()
        told.append(clock.now())

    def is_lost() -> None:
        in_memory(network, ring, 2).sums().broadcast([np.ones(2, np.float32)])
        clock.sleep(5)
        network.lose(2)

    run_all(clock, [lambda: waits(0), lambda: waits(1), is_lost])
    assert told == [5.0, 5.0]
