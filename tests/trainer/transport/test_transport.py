"""One suite over all transports: MXNet's kvstore and TCP in real processes, and the memory of this one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_processes import DEADLINE_S, ROOT, cluster
from run_all import run_all
from transport_worker import SCENARIOS, seen, two

from config import Config
from trainer.collectives.schedules import SUMS
from trainer.hub.sums import HubSums
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock
from trainer.simulation.virtual_hub import VirtualExchange, VirtualHub
from trainer.simulation.virtual_kvstore import VirtualKVStore, VirtualServer
from trainer.simulation.virtual_mesh import MemoryNetwork, in_memory
from trainer.transport.protocol import Transport

Saw = list[dict[str, Any]]  # what each worker saw, by rank


def through_the_kvstore(scenario: str, folder: Path) -> Saw:
    program = str(ROOT / "tests/helpers/transport_worker.py")
    with cluster(folder, num_workers=2) as processes:
        for rank in range(2):
            processes.start_worker(rank, program, scenario, str(folder / f"{rank}.json"))
        assert set(processes.exit_codes().values()) == {0}, processes.log("worker0")
    return sorted((json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)), key=lambda saw: saw["rank"])


LINKS = (WorkerLink(1e3, 0.1), WorkerLink(1e2, 0.2))


def in_this_process(scenario: str, clock: VirtualClock, place: Callable[[int], Transport]) -> Saw:
    saw: Saw = [{"rank": rank} for rank in range(2)]

    def worker(rank: int) -> Callable[[], None]:
        return lambda: saw[rank].update(SCENARIOS[scenario](place(rank)))

    run_all(clock, [worker(rank) for rank in range(2)])
    return saw


def through_memory(scenario: str, folder: Path) -> Saw:
    clock = VirtualClock()
    server = VirtualServer(clock, LINKS)
    return in_this_process(scenario, clock, lambda rank: VirtualKVStore(server, rank))


def through_the_hub(scenario: str, folder: Path) -> Saw:
    clock, config = VirtualClock(), Config()
    hub = VirtualHub(clock, config, LINKS)
    return in_this_process(scenario, clock, lambda rank: HubSums(VirtualExchange(hub, rank), config, hub.gather))


def through_a_collective(name: str) -> Callable[[str, Path], Saw]:
    def through(scenario: str, folder: Path) -> Saw:
        clock = VirtualClock()
        network = MemoryNetwork(clock, LINKS)
        return in_this_process(scenario, clock, lambda rank: in_memory(network, SUMS[name], rank))

    return through


def over_tcp(scenario: str, folder: Path) -> Saw:
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in listeners]
    outputs, processes = [folder / f"{rank}.json" for rank in range(2)], []
    for rank, (listener, output) in enumerate(zip(listeners, outputs, strict=True)):
        words = [scenario, str(output), str(rank), str(listener.fileno()), *addresses]
        command = [sys.executable, str(ROOT / "tests/helpers/transport_worker.py"), *words]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        processes.append(subprocess.Popen(command, cwd=ROOT, pass_fds=[listener.fileno()], env=environment))
        listener.close()
    try:
        assert [process.wait(DEADLINE_S) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [{"rank": rank, **json.loads(output.read_text())} for rank, output in enumerate(outputs)]


TRANSPORTS = {
    "kvstore": through_the_kvstore,
    "memory": through_memory,
    **{name: through_a_collective(name) for name in SUMS},
    "tcp": over_tcp,
    "hub": through_the_hub,
}
COMPRESSING = (
    pytest.param("kvstore", marks=pytest.mark.cluster), "memory", *SUMS,
    pytest.param("tcp", marks=pytest.mark.cluster),
)  # fmt: skip
BYTES = 4 * (3 + 4)  # of both arrays


NO_BYTES = {"bytes_pushed": 0, "bytes_pulled": 0}


@pytest.mark.parametrize("transport", [*COMPRESSING, "hub"])
def test_all_begin_with_rank_0s_values_and_get_the_sum_over_all_of_each_round(transport: str, tmp_path: Path) -> None:
    for rank, saw in enumerate(TRANSPORTS[transport]("sums", tmp_path)):
        assert saw == {
            "rank": rank,
            "agreed": [0.5, 3.0],
            "broadcast": [1.0, 10.0],
            "bytes at first": NO_BYTES,  # what all begin with is no traffic of the rounds
            "sum 1": [1.0 + 2.0, 10.0 + 20.0],
            "sum 2": [2.0 + 3.0, 20.0 + 30.0],
            "bytes": {"bytes_pushed": 2 * BYTES, "bytes_pulled": 2 * BYTES},
            "bytes, taken again": NO_BYTES,
        }


@pytest.mark.parametrize("transport", COMPRESSING)
def test_what_travels_as_float16_begins_as_it_is_and_is_summed_with_11_bits_the_same_on_all(
    transport: str, tmp_path: Path
) -> None:
    sent = 2 * 2 + 4 * 2
    for rank, saw in enumerate(TRANSPORTS[transport]("halves", tmp_path)):
        assert saw == {
            "rank": rank,
            "fp16, broadcast": [[2049.0, np.float32(1 / 3)], [60001.0, np.float32(0.1)]],
            # 2048 + 1.5, of which float16 has every second number; the counts are as they were.
            "fp16, sum": [[2050.0, 0.5], [120003.0, np.float32(0.1)]],
            "fp16, bytes": {"bytes_pushed": sent, "bytes_pulled": sent},
            "fp16, largest": 2.0**15 / 2,
        }


def test_the_time_of_a_transfer_is_told_without_the_wait_for_others() -> None:
    clock = VirtualClock()
    server = VirtualServer(clock, [WorkerLink(BYTES / 2, 0.5)] * 2)
    took_s: list[float | None] = []

    def worker(rank: int) -> None:
        shared, arrays = VirtualKVStore(server, rank).sums(), two(1.0, 1.0)
        shared.broadcast(arrays)
        clock.sleep(7.0 * rank)
        shared.begin_sum(arrays)
        took_s.append(shared.finish_sum(arrays, timed=True))

    run_all(clock, [lambda: worker(0), lambda: worker(1)])
    assert took_s == [pytest.approx(2.5)] * 2


@pytest.mark.parametrize(
    ("late", "starts_s", "timed", "ended_s"),
    [
        # The array of 12 bytes has come while the late worker pushed, that of 16 waits for its last bytes.
        (WorkerLink(14.0), 0.0, False, 2.0 + 16 / 28),
        (WorkerLink(14.0), 0.0, True, 2.0 + 1.0),
        (WorkerLink(14.0, 0.5), 0.0, False, 2.5 + 0.5 + 16 / 28),  # each way has its latency
        (WorkerLink(14.0, 0.5), 0.0, True, 2.5 + 0.5 + 1.0),
        # The late worker's push is over before those 12 bytes are, so the others follow them.
        (WorkerLink(280.0), 5.0, False, 5.0 + 1.0),
        (WorkerLink(280.0, 0.5), 5.0, False, 5.5 + 0.5 + 1.0),
    ],
)
def test_an_early_worker_gets_sums_while_the_last_one_still_pushes(
    late: WorkerLink, starts_s: float, timed: bool, ended_s: float
) -> None:
    clock = VirtualClock()
    early = WorkerLink(28.0, late.latency_s)  # both arrays in 1 s
    server = VirtualServer(clock, [early, late])
    ended, begin = [0.0, 0.0], 100.0

    def worker(rank: int) -> None:
        transport, arrays = VirtualKVStore(server, rank), two(1.0, 1.0)
        shared = transport.sums()
        shared.broadcast(arrays)
        clock.sleep(begin - clock.now() + starts_s * rank)
        shared.begin_sum(arrays)
        shared.finish_sum(arrays, timed)
        ended[rank] = clock.now() - begin
        assert seen(arrays) == [2.0, 2.0]

    run_all(clock, [lambda: worker(0), lambda: worker(1)])
    assert ended[0] == pytest.approx(ended_s)
    assert ended[1] == pytest.approx(starts_s + 2 * (late.latency_s + BYTES / late.bytes_per_s))
