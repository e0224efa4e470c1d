"""One suite over both transports: MXNet's kvstore in real processes, and the memory of this one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_processes import ROOT, cluster
from transport_worker import SCENARIOS, two

from algorithms import TransportKind
from trainer.clock import VirtualClock, run_all
from trainer.transport.memory import MemoryServer, MemoryTransport
from trainer.transport.network import Link
from utils import PeerLost

Saw = list[dict[str, Any]]  # what each worker saw, by rank


def through_the_kvstore(kind: TransportKind, folder: Path) -> Saw:
    with cluster(folder, num_workers=2) as processes:
        for rank in range(2):
            processes.start_worker(
                rank, str(ROOT / "tests/transport_worker.py"), kind.name, str(folder / f"{rank}.json")
            )
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    return sorted((json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)), key=lambda saw: saw["rank"])


def through_memory(kind: TransportKind, folder: Path) -> Saw:
    clock = VirtualClock()
    server = MemoryServer(clock, kind, [Link(1e3, 0.1), Link(1e2, 0.2)])
    saw: Saw = [{"rank": rank} for rank in range(2)]

    def worker(rank: int) -> Callable[[], None]:
        return lambda: saw[rank].update(SCENARIOS[kind](MemoryTransport(server, rank)))

    run_all(clock, [worker(rank) for rank in range(2)])
    return saw


TRANSPORTS = {"kvstore": through_the_kvstore, "memory": through_memory}
BYTES = 4 * (3 + 4)  # of both arrays


@pytest.fixture(scope="module", params=TRANSPORTS)
def summed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saw:
    return TRANSPORTS[request.param](TransportKind.SUM, tmp_path_factory.mktemp("sum"))


@pytest.fixture(scope="module", params=TRANSPORTS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Saw:
    return TRANSPORTS[request.param](TransportKind.SERVER, tmp_path_factory.mktemp("server"))


def of_both(saw: Saw, what: str) -> list[Any]:
    return [one[what] for one in saw]


def test_all_begin_with_rank_0s_values(summed, served) -> None:
    for saw in (summed, served):
        assert of_both(saw, "broadcast") == [[1.0, 10.0]] * 2


def test_every_worker_gets_the_sum_over_all_of_each_round(summed) -> None:
    assert of_both(summed, "sum 1") == [[1.0 + 2.0, 10.0 + 20.0]] * 2
    assert of_both(summed, "sum 2") == [[2.0 + 3.0, 20.0 + 30.0]] * 2


def test_the_bytes_of_the_rounds_are_counted_once_and_those_of_the_beginning_are_not(summed, served) -> None:
    nothing = {"bytes_pushed": 0, "bytes_pulled": 0}
    for saw in (summed, served):
        assert of_both(saw, "bytes at first") == [nothing] * 2
    assert of_both(summed, "bytes") == [{"bytes_pushed": 2 * BYTES, "bytes_pulled": 2 * BYTES}] * 2
    assert of_both(summed, "bytes, taken again") == [nothing] * 2
    assert of_both(served, "bytes") == [{"bytes_pushed": sent, "bytes_pulled": BYTES} for sent in (0, BYTES)]
    assert of_both(served, "bytes of a part") == [{"bytes_pushed": sent, "bytes_pulled": 16} for sent in (BYTES, 0)]


def test_an_optimizer_on_the_server_is_told_of_each_push_and_of_its_key(served) -> None:
    assert of_both(served, "pushed by one, seen by all") == [[1.0 + 2.0, 10.0 + 4.0]] * 2
    assert of_both(served, "the second one alone") == [[3 * 0.25]] * 2


def test_pushes_of_two_workers_at_once_both_count(served) -> None:
    assert of_both(served, "pushed by both") == [[3.0 + 2 * (1.0 + 2.0), 14.0]] * 2


def in_memory(*workers: Callable[[MemoryTransport], None], kind: TransportKind = TransportKind.SUM) -> MemoryServer:
    clock = VirtualClock()
    server = MemoryServer(clock, kind, [Link()] * len(workers))
    run_all(
        clock, [lambda rank=rank, work=work: work(MemoryTransport(server, rank)) for rank, work in enumerate(workers)]
    )
    return server


def test_whoever_waits_for_a_worker_that_is_lost_is_told() -> None:
    told: list[str] = []

    def waits(transport: MemoryTransport) -> None:
        shared, arrays = transport.sums(), two(1.0, 1.0)
        shared.broadcast(arrays)
        shared.begin_sum(arrays)
        with pytest.raises(PeerLost, match="worker 1 was lost"):
            shared.finish_sum(arrays)
        with pytest.raises(PeerLost, match="worker 1 was lost"):
            transport.barrier()
        told.append("twice")

    def is_lost(transport: MemoryTransport) -> None:
        transport.sums().broadcast(two(1.0, 1.0))
        transport.server.clock.sleep(5)
        transport.server.lose(transport.rank)

    in_memory(waits, is_lost)
    assert told == ["twice"]


def test_the_time_of_a_transfer_is_told_without_the_wait_for_others() -> None:
    clock = VirtualClock()
    server = MemoryServer(clock, TransportKind.SUM, [Link(BYTES / 2, 0.5)] * 2)
    took_s: list[float | None] = []

    def worker(rank: int) -> None:
        shared, arrays = MemoryTransport(server, rank).sums(), two(1.0, 1.0)
        shared.broadcast(arrays)
        clock.sleep(7.0 * rank)
        shared.begin_sum(arrays)
        took_s.append(shared.finish_sum(arrays, timed=True))

    run_all(clock, [lambda: worker(0), lambda: worker(1)])
    assert took_s == [pytest.approx(2.5)] * 2
