"""How pushes and pulls overlap on slow links: MXNet's kvstore on a real network beside the virtual one.

    .venv/bin/python experiments/benchmarks/both_ways.py

Needs root (network namespaces); takes about two minutes, most of them waiting. Two workers send arrays of ResNet-18's
sizes, a tenth of each: 4.5 MB, 1.8 s each way at 20 Mbit/s (the kernel's token bucket, both ways). Rows: both at once
without a wait between push and pull, and with one; on equal links, and where the other worker's is twice as fast.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from algorithms import TransportKind
from experiments.benchmarks.key_by_key import SIZES
from experiments.benchmarks.namespace_job import ROOT, missing, network, parameter_server, running
from trainer.clock import Clock, RealClock
from trainer.simulation.network import WorkerLink
from trainer.simulation.virtual_clock import VirtualClock, run_all
from trainer.transport.protocol import Transport

MBIT_S = 20
REPEATS = 3
SCALE = 0.1
SETTINGS = [(kind, ratio) for kind in (TransportKind.SUM, TransportKind.SERVER) for ratio in (1, 2)]


def measure(transport: Transport, kind: TransportKind, clock: Clock) -> dict[str, float]:
    """Median seconds of a push and a pull, without a wait between them and with one."""
    from trainer.engine import mx

    if kind is TransportKind.SERVER and transport.rank == 0:
        transport.set_optimizer(mx.optimizer.SGD(learning_rate=0.1, wd=0.0))
    arrays = [mx.nd.zeros((round(SCALE * size),)) for size in SIZES]
    sums, shared = transport.sums(), transport.arrays()
    (sums if kind is TransportKind.SUM else shared).broadcast(arrays)
    times_s: dict[str, list[float]] = {"at once": [], "with a wait": []}
    for _ in range(REPEATS):
        for name, seen in times_s.items():
            transport.barrier()
            begin, waits = clock.now(), name == "with a wait"
            if kind is TransportKind.SUM:
                sums.begin_sum(arrays)
                sums.finish_sum(arrays, timed=waits)
            else:
                shared.push(arrays)
                if waits:
                    shared.wait_until_arrived(arrays)
                shared.pull(arrays)
                transport.wait_all()
            seen.append(clock.now() - begin)
    transport.barrier()
    return {name: statistics.median(seen) for name, seen in times_s.items()}


def virtual(kind: TransportKind, ratio: int) -> list[dict[str, float]]:
    """By rank, on the virtual network."""
    from trainer.simulation.virtual_server import MemoryServer, MemoryTransport

    clock, rate = VirtualClock(), MBIT_S * 1e6 / 8
    server = MemoryServer(clock, kind, [WorkerLink(rate), WorkerLink(ratio * rate)])
    out: list[dict[str, float]] = [{}, {}]

    def work(rank: int) -> Callable[[], None]:
        return lambda: out[rank].update(measure(MemoryTransport(server, rank), kind, clock))

    run_all(clock, [work(0), work(1)])
    return out


def real(kind: TransportKind, ratio: int) -> list[dict[str, float]]:
    """By host, of which the second has the faster link where they differ."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        servers, *hosts = stack.enter_context(network(folder / "net", 3)).hosts
        for host, mbit_s in zip(hosts, (MBIT_S, ratio * MBIT_S), strict=True):
            host.narrow(mbit_s)
        cluster = stack.enter_context(parameter_server(servers, len(hosts), folder))
        workers, outs = [], [folder / f"{number}.json" for number in range(2)]
        for host, out in zip(hosts, outs, strict=True):
            command = host.command(sys.executable, __file__, kind.name, out)
            workers.append(stack.enter_context(running(command, out.with_suffix(".log"), ROOT, **cluster)))
        for worker, out in zip(workers, outs, strict=True):
            if worker.wait(120):
                raise SystemExit(out.with_suffix(".log").read_text())
        return [json.loads(out.read_text()) for out in outs]


def work_as_worker(kind: TransportKind, out: Path) -> None:
    """One worker of a real cluster."""
    import os

    os.environ["DMLC_ROLE"] = "worker"
    from trainer.rendezvous import roles
    from trainer.rendezvous.cluster import ClusterSpec
    from trainer.runtime.environment import prepare_environment

    prepare_environment()
    cluster = ClusterSpec.from_environment()
    assert cluster is not None
    with roles.join(cluster, kind, 60) as joined:
        out.write_text(json.dumps(measure(joined.transport, kind, RealClock())))


def main() -> None:
    """Prints the table, as the rows are done."""
    if why := missing():
        raise SystemExit(why)
    print("| kind | link | push and pull | real, s | virtual, s |\n| --- | --- | --- | --- | --- |")
    for kind, ratio in SETTINGS:
        rows = list(zip((1, ratio), real(kind, ratio), virtual(kind, ratio), strict=True))
        for of_link, really, virtually in rows if ratio > 1 else rows[:1]:
            beside = f", beside {MBIT_S * (ratio if of_link == 1 else 1)}"
            for name in really:
                times = f"{really[name]:.2f} | {virtually[name]:.2f}"
                print(f"| {kind.name} | {of_link * MBIT_S} Mbit/s{beside} | {name} | {times} |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work_as_worker(TransportKind[sys.argv[1]], Path(sys.argv[2]))
    else:
        main()
