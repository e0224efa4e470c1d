"""A sum over all workers through MXNet's kvstore, and over TCP as a ring, a butterfly and binary blocks.

    .venv/bin/python experiments/benchmarks/collectives.py --workers 2 3 4
    .venv/bin/python experiments/benchmarks/collectives.py --workers 2 3 4 --iteration
    .venv/bin/python experiments/benchmarks/collectives.py --tables results/collectives  # of raw files

Processes on this machine, about 15 s for each number of workers. All ways take turns in the same processes, so that
other load slows all alike. A sum is that of a network's gradients, each array by itself, with packing and unpacking.
With --iteration it is a whole iteration of SSGD: forward and backward pass, the sum, which begins while the backward
pass runs, and the step. Prints the median milliseconds from the common start to the last worker's end, and their ratio
to the kvstore's. The sums must be equal but for rounding, and have the same bits on every worker. With `mpi` among the
collectives mpiexec starts the workers, and MPI's own Allreduce takes turns too. With --tables nothing is measured: the
tables of the raw files in a folder are printed, and written into its README.md.
"""

if __name__ == "__main__":
    import sys
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import markdown
from flag_parser import FlagParser
from scripts.launch.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
KVSTORE, MPI = "kvstore", "mpi"
RATE = 1e-6  # of steps that hardly change the network


class Sum:
    """Only the sum, of random gradients."""

    def __init__(self, network: Any, rank: int) -> None:
        import numpy as np

        from trainer.engine import mx
        from trainer.parameters import Parameters

        random = np.random.RandomState(rank)
        shapes = [array.shape for array in Parameters(network).weights]
        self._given = [mx.nd.array(random.standard_normal(shape)) for shape in shapes]
        self.prepare()

    def prepare(self) -> None:
        """New copies: a sum overwrites its gradients."""
        self.arrays = [array.copy() for array in self._given]

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass


class Iteration:
    """Both passes of a batch, the sum, and a step."""

    def __init__(self, network: Any, batch_size: int) -> None:
        from trainer.engine import mx
        from trainer.parameters import Parameters
        from trainer.passes import NetworkPasses, cross_entropy

        self._passes, self._parameters = NetworkPasses(network, cross_entropy()), Parameters(network)
        self._batch = (mx.nd.random.uniform(shape=(batch_size, 1, 28, 28)),), (mx.nd.zeros((batch_size,)),)
        self.arrays = self._parameters.gradients

    def prepare(self) -> None:
        pass

    def begin(self) -> None:
        """Begins both passes; does not wait for them."""
        self._passes.forward(*self._batch)
        self._passes.backward()

    def end(self) -> None:
        from trainer.engine import mx

        for weight, gradient in zip(self._parameters.weights, self.arrays, strict=True):
            mx.nd.sgd_update(weight, gradient, out=weight, lr=RATE)


def work(options: argparse.Namespace) -> None:
    """A worker of the cluster that the environment names; rank 0 writes the milliseconds of all repeats."""
    from trainer.runtime.environment import prepare_environment

    prepare_environment()
    import numpy as np

    import models
    from algorithms import TransportKind
    from trainer.clock import RealClock
    from trainer.collectives import mpi
    from trainer.collectives.connecting import Acceptor, connect
    from trainer.collectives.group import MeshGroup
    from trainer.collectives.schedules import SUMS
    from trainer.engine import mx
    from trainer.rendezvous import addresses, roles
    from trainer.rendezvous.cluster import ClusterSpec
    from trainer.transport.collective import CollectiveTransport
    from trainer.transport.protocol import SummedArrays

    cluster = ClusterSpec.from_environment()
    assert cluster is not None
    listener = addresses.listen_anywhere("127.0.0.1")
    with roles.join(cluster, TransportKind.SUM, 60) as joined:
        rank = joined.transport.rank
        of_workers = joined.gather("addresses", listener.getsockname())
        assert of_workers is not None
        mesh = connect(rank, [(host, port) for host, port in of_workers], Acceptor(listener), "a benchmark")
        clock, sums = RealClock(), dict[str, SummedArrays]({KVSTORE: joined.transport.sums()})
        for name in options.collectives:
            group = mpi.MpiGroup(mpi.world()) if name == MPI else MeshGroup(mesh, SUMS[name])
            sums[name] = CollectiveTransport(group, clock).sums()
        network = models.build(options.network, (1, 28, 28), 10, mx.cpu(), 0)
        task = Iteration(network, options.batch_size) if options.iteration else Sum(network, rank)
        times_ms: dict[str, list[float]] = {name: [] for name in sums}
        results: dict[str, np.ndarray] = {}
        for each in sums.values():
            each.broadcast([mx.nd.zeros_like(array) for array in task.arrays])
        for repeat in range(-2, options.repeats):  # the first ones do not count
            for name, each in sums.items():
                task.prepare()
                mx.nd.waitall()
                joined.transport.barrier()
                begin = time.monotonic()
                task.begin()
                each.begin_sum(task.arrays)
                each.finish_sum(task.arrays)
                task.end()
                mx.nd.waitall()
                took_ms = (time.monotonic() - begin) * 1e3
                if repeat >= 0:
                    times_ms[name].append(round(took_ms, 2))
                results[name] = np.concatenate([array.asnumpy().ravel() for array in task.arrays])
        for name in options.collectives:
            if options.iteration:
                break  # of other weights each
            np.testing.assert_allclose(results[name], results[KVSTORE], atol=1e-4)
            assert len(set(map(str, joined.gather(name, hash(results[name].tobytes())) or []))) == 1
        of_all = joined.gather("times", times_ms)
        assert of_all is not None
        slowest = {name: np.max([each[name] for each in of_all], axis=0).tolist() for name in sums}
        mesh.close()
    if rank == 0:
        options.output.write_text(json.dumps(slowest))


HEADS = {  # of the raw files' tables, in their order on the page
    "sum-resnet18": "A sum of ResNet-18's 62 arrays (11.2 million float32), ms",
    "sum-resnet18-mpi": "The same sum, with MPI's Allreduce, ms",
    "sum-lenet": "A sum of LeNet-5's 10 arrays (61,706 float32), ms",
    "iteration-resnet18": "An iteration of SSGD with ResNet-18, 16 samples a worker, ms",
}
HOSTS = "four-hosts"  # raw file of a benchmark that is gone; the page names its last commit


def table(by_workers: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Medians of each way to sum, by the number of workers, and their ratio to the kvstore's."""
    rows = [["N", *next(iter(by_workers.values()))]]
    for number, measured in by_workers.items():
        medians = {name: statistics.median(times) for name, times in measured.items()}
        rows.append([number, *(f"{median:.3g} ({median / medians[KVSTORE]:.2f})" for median in medians.values())])
    return markdown.table(rows)


def tables(folder: Path) -> str:
    """The tables of all raw files."""
    parts = []
    for name, title in HEADS.items():
        by_workers = json.loads((folder / f"{name}.json").read_text())["milliseconds_by_workers"]
        parts += [f"{title}:", table(by_workers)]
    rows = [["collective", "real, s a round", "virtual, s a round", "virtual / real"]]
    for way, its in json.loads((folder / f"{HOSTS}.json").read_text())["seconds_a_round"].items():
        real_s, virtual_s = its["real_s"], its["virtual_s"]
        rows.append([way, f"{real_s:.3f}", f"{virtual_s:.3f}", f"{virtual_s / real_s:.2f}"])
    return "\n\n".join([*parts, "Four hosts, median seconds of a round:", markdown.table(rows)])


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, env={**os.environ, "OMP_NUM_THREADS": "1", **environment}
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def measure(number: int, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds of each way to sum, with this number of workers."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        cluster = {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_ports(1)[0]), "DMLC_NUM_SERVER": "1"}
        cluster |= {"DMLC_NUM_WORKER": str(number), "DMLC_INTERFACE": "lo"}
        for role in ("scheduler", "server"):
            main = [sys.executable, "main.py"]
            stack.enter_context(running(main, folder / f"{role}.log", DMLC_ROLE=role, **cluster))
        command = [sys.executable, __file__, "--output", str(folder / "times.json"), "--network", options.network]
        command += ["--repeats", str(options.repeats), "--batch-size", str(options.batch_size)]
        command += ["--iteration"] * options.iteration + ["--collectives", *options.collectives]
        environment = {**cluster, "DMLC_ROLE": "worker", "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
        if MPI in options.collectives:
            mpiexec = str(Path(sys.executable).parent / "mpiexec")
            command = [mpiexec, "--map-by", ":OVERSUBSCRIBE", "-n", str(number), *command]
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        workers = [
            stack.enter_context(running(command, folder / f"worker{rank}.log", **environment))
            for rank in range(1 if MPI in options.collectives else number)
        ]
        for rank, worker in enumerate(workers):
            if worker.wait(170):
                raise SystemExit((folder / f"worker{rank}.log").read_text())
        return dict(json.loads((folder / "times.json").read_text()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = FlagParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--collectives", nargs="*", default=["ring", "butterfly", "binary-blocks"])
    parser.add_argument("--network", default="resnet18-v1")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--iteration", action="store_true", help="a whole iteration of SSGD")
    parser.add_argument("--batch-size", type=int, default=16, help="of an iteration")
    parser.add_argument("--raw", type=Path, help="JSON file for the milliseconds of all repeats")
    parser.add_argument("--tables", type=Path, metavar="FOLDER", help="only the tables of its raw files")
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)  # of a worker
    options = parser.parse_args(arguments)
    if os.environ.get("DMLC_ROLE") == "worker":
        work(options)
        return
    if options.tables is not None:
        part = tables(options.tables)
        print(part)
        markdown.write(options.tables / "README.md", part)
        return
    raw = {str(number): measure(number, options) for number in options.workers}
    print(table(raw))
    if options.raw is not None:
        about = {"network": options.network, "iteration": options.iteration, "batch_size": options.batch_size}
        options.raw.write_text(json.dumps({**about, "milliseconds_by_workers": raw}) + "\n")


if __name__ == "__main__":
    start.run(main)
