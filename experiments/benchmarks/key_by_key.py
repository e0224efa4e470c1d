"""SSGD and ASGD on the preprint's cluster in virtual time, as the published program probably sends.

    .venv/bin/python experiments/benchmarks/key_by_key.py

Takes some seconds. That program pushes a key, pulls it and waits for it, then takes the next. This project's trainers
push all keys and then pull all (scripts/reproduce.sh --parts cluster). With SSGD the paces differ on the same link: key
by key, the GPUs have sent one key when the CPUs end their step; here, they have sent all. With ASGD, where no worker
waits for others, they hardly differ.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from algorithms import TransportKind
from flag_parser import FlagParser
from trainer import straggler_trace
from trainer.engine import mx
from trainer.simulation import cluster_file
from trainer.simulation.cluster_file import Worker
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock, run_all
from trainer.simulation.virtual_server import MemoryServer, MemoryTransport

SECONDS = 300.0
BATCH = 64
MODEL_BYTES = 44.7e6
# Sizes of ResNet-18's larger arrays, in its order; the others are below 1 % of its bytes.
SIZES = [36864] * 4 + [73728, 147456, 8192, 147456, 147456, 294912, 589824, 32768, 589824, 589824]
SIZES += [1179648, 2359296, 131072, 2359296, 2359296, 5130]
PUBLISHED = {TransportKind.SUM: ("SSGD", 45), TransportKind.SERVER: ("ASGD", 120)}


def size_of(array: mx.nd.NDArray) -> int:
    """The bytes of ResNet-18's array number i, which an array of i + 1 numbers stands for."""
    return round(SIZES[array.size - 1] * MODEL_BYTES / sum(SIZES))


def first_step_longer_s(row: Worker) -> float:
    """Seconds by which the cluster file makes the first step longer."""
    entries = straggler_trace.read(row.straggler_trace) if row.straggler_trace else ()
    return sum(entry.extra_s for entry in entries)


def samples_per_s(kind: TransportKind) -> float:
    """The throughput of all workers."""
    cluster, clock, steps = cluster_file.read(cluster_file.find("paper")), VirtualClock(), 0
    links = [WorkerLink()] * len(cluster.workers)
    server = MemoryServer(clock, kind, links, cluster.server_bandwidth_mbit_s * 1e6 / 8, size_of)
    if kind is TransportKind.SERVER:
        server.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, wd=0.0))

    def worker(rank: int, row: Worker) -> Callable[[], None]:
        def work() -> None:
            nonlocal steps
            transport = MemoryTransport(server, rank)
            keys = [(transport.arrays(key), [mx.nd.zeros((key + 1,))]) for key in range(len(SIZES))]
            for shared, array in keys:
                shared.define(array)
            clock.sleep(first_step_longer_s(row))
            while True:
                clock.sleep(row.step_time_s)
                for shared, array in keys:
                    shared.push(array)
                    shared.pull(array)
                    shared.wait(array)
                steps += 1

        return work

    run_all(clock, [worker(rank, row) for rank, row in enumerate(cluster.workers)], SECONDS)
    return BATCH * steps / SECONDS


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    FlagParser(description=__doc__).parse_args(arguments)
    print("| key by key | samples/s | published |\n| --- | --- | --- |")
    for kind, (title, published) in PUBLISHED.items():
        simulated = samples_per_s(kind)
        print(f"| {title} | {simulated:.0f} | {published} ({simulated / published:.2f}) |", flush=True)


if __name__ == "__main__":
    start.run(main)
