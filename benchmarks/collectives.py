"""A sum over all workers through MXNet's kvstore, and over TCP as a ring, a butterfly and binary blocks.

    .venv/bin/python benchmarks/collectives.py --workers 2 3 4

Processes on this machine; takes about 15 s for each number of workers. All ways take turns in the same processes, so
that a busy machine harms all alike. A sum is that of a network's gradients, each array by itself: packing and unpacking
are a part of it. Prints the median milliseconds from when all begin to when the last has the sums, and their ratio to
the kvstore's. The sums are compared: equal but for rounding, and on every worker the same to the bit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from namespace_job import ROOT, Loopback, parameter_server, running

KVSTORE = "kvstore"


def work(network: str, collectives: Sequence[str], repeats: int, output: Path) -> None:
    """As one worker of the cluster that the environment names; rank 0 writes the milliseconds of all repeats."""
    from trainer.watch import prepare_environment

    prepare_environment()
    import numpy as np

    import models
    from algorithms import TransportKind
    from trainer import addresses, roles
    from trainer.clock import RealClock
    from trainer.cluster import Cluster
    from trainer.collectives.connecting import connect
    from trainer.collectives.group import MeshGroup
    from trainer.collectives.schedules import SUMS
    from trainer.engine import mx
    from trainer.parameters import Parameters
    from trainer.transport.collective import CollectiveTransport
    from trainer.transport.protocol import SummedArrays

    cluster = Cluster.from_environment()
    assert cluster is not None
    listener = addresses.listen_anywhere("127.0.0.1")
    with roles.joined(cluster, TransportKind.SUM, 60) as joined:
        rank, attendance = joined.transport.rank, joined.attendance
        of_workers = attendance.gather("addresses", listener.getsockname())
        assert of_workers is not None
        mesh = connect(rank, [(host, port) for host, port in of_workers], listener, "a benchmark")
        clock, sums = RealClock(), dict[str, SummedArrays]({KVSTORE: joined.transport.sums()})
        for name in collectives:
            sums[name] = CollectiveTransport(MeshGroup(mesh, SUMS[name]), clock).sums()
        shapes = [array.shape for array in Parameters(models.build(network, (1, 28, 28), mx.cpu(), 0)).weights]
        random = np.random.RandomState(rank)
        given = [mx.nd.array(random.standard_normal(shape)) for shape in shapes]
        times_ms: dict[str, list[float]] = {name: [] for name in sums}
        results: dict[str, np.ndarray] = {}
        for each in sums.values():
            each.broadcast([mx.nd.zeros(shape) for shape in shapes])
        for repeat in range(-2, repeats):  # the first ones do not count
            for name, each in sums.items():
                arrays = [array.copy() for array in given]
                mx.nd.waitall()
                joined.transport.barrier()
                begin = time.monotonic()
                each.begin_sum(arrays)
                each.finish_sum(arrays)
                took_ms = (time.monotonic() - begin) * 1e3
                if repeat >= 0:
                    times_ms[name].append(took_ms)
                results[name] = np.concatenate([array.asnumpy().ravel() for array in arrays])
        for name in collectives:
            np.testing.assert_allclose(results[name], results[KVSTORE], atol=1e-4)
            assert len(set(map(str, attendance.gather(name, hash(results[name].tobytes())) or []))) == 1
        of_all = attendance.gather("times", times_ms)
        assert of_all is not None
        slowest = {name: np.max([each[name] for each in of_all], axis=0).tolist() for name in sums}
        mesh.close()
    if rank == 0:
        output.write_text(json.dumps(slowest))


def measure(number: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each way to sum, of so many workers."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cluster = stack.enter_context(parameter_server(Loopback(), number, folder))
        command = [sys.executable, __file__, "--output", str(folder / "times.json"), "--network", options.network]
        command += ["--repeats", str(options.repeats), "--collectives", *options.collectives]
        environment = {**cluster, "DMLC_ROLE": "worker", "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
        workers = [
            stack.enter_context(running(command, folder / f"worker{rank}.log", ROOT, **environment))
            for rank in range(number)
        ]
        for rank, worker in enumerate(workers):
            if worker.wait(120):
                raise SystemExit((folder / f"worker{rank}.log").read_text())
        return dict(json.loads((folder / "times.json").read_text()))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--collectives", nargs="*", default=["ring", "butterfly", "binary-blocks"])
    parser.add_argument("--network", default="resnet18-v1")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)  # of a worker
    options = parser.parse_args()
    if os.environ.get("DMLC_ROLE") == "worker":
        work(options.network, options.collectives, options.repeats, options.output)
        return
    names = (KVSTORE, *options.collectives)
    print(f"| N | {' | '.join(names)} |\n|{' --- |' * (1 + len(names))}")
    for number in options.workers:
        medians = {name: statistics.median(times) for name, times in measure(number, options).items()}
        cells = [f"{medians[name]:.3g} ({medians[name] / medians[KVSTORE]:.2f})" for name in names]
        print(f"| {number} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
