"""What results/own-job/README.md says: a job file under all algorithms beside a plain loop, and what a job file costs.

python -m experiments.own_job plain --output FILE     # a gluon loop alone, with the job's network, data and metric
python -m experiments.own_job cost --output FILE      # LeNet as a job file against built in, in alternating pairs
python -m experiments.own_job table FOLDER            # the table, of FOLDER/virtual, FOLDER/real and FOLDER/plain.json
"""

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import csv
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.markdown import table as as_table
from flag_parser import FlagParser
from trainer.run_logs.round_log import read_rounds

ROOT = Path(__file__).resolve().parent.parent
JOB = ROOT / "results" / "own-job" / "text_regression.py"
BATCH, RATE, EVERY = 32, 0.01, 20  # samples; of the summed loss; steps between two values
T_OF_10 = 2.262  # Student's t of ten pairs
LENET = """
import gzip
import numpy as np
from mxnet.gluon import nn

def network():
    layers = nn.HybridSequential()
    layers.add(nn.Conv2D(6, 5, padding=2, activation="relu"), nn.MaxPool2D(), nn.Conv2D(16, 5, activation="relu"))
    layers.add(nn.MaxPool2D(), nn.Dense(120, activation="relu"), nn.Dense(84, activation="relu"), nn.Dense(10))
    layers.hybridize()
    return layers

def read(path, begin):
    return np.frombuffer(gzip.open(path).read(), np.uint8, offset=begin)

def data(folder):
    folder += "/fashion-mnist/"
    return [(read(f"{folder}{part}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28),
             read(f"{folder}{part}-labels-idx1-ubyte.gz", 8)) for part in ("train", "t10k")]

def prepare(images, classes):
    return np.divide(images, 255, dtype=np.float32), classes
"""


def plain(steps: int, seeds: int) -> dict[str, Any]:
    """The metric after each EVERY steps of a gluon loop, by seed."""
    import numpy as np

    from trainer.engine import mx

    spec = importlib.util.spec_from_file_location("text_regression", JOB)
    assert spec is not None and spec.loader is not None
    job = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(job)
    (texts, marks), test = job.data("")
    curves = []
    for seed in range(seeds):
        mx.random.seed(seed)
        network = job.network()
        network.initialize(mx.init.Xavier())
        network.hybridize()
        trainer = mx.gluon.Trainer(network.collect_params(), "sgd", {"learning_rate": RATE})
        random, order, curve = np.random.default_rng(seed), np.array([], int), []
        tested = mx.nd.array(job.batchify(list(zip(*test, strict=True)))[0])
        for step in range(1, steps + 1):
            if len(order) < BATCH:
                order = np.concatenate([order, random.permutation(len(texts))])
            chosen, order = order[:BATCH], order[BATCH:]
            inputs, targets = map(mx.nd.array, job.batchify([(texts[each], marks[each]) for each in chosen]))
            with mx.autograd.record():
                loss = job.loss(network(inputs), targets)
            loss.backward()
            trainer.step(1)  # of the summed loss
            if not step % EVERY:
                curve.append([step * BATCH, float(job.metric(test[1], network(tested).asnumpy()))])
        curves.append(curve)
    return {"metric": job.metric.__name__, "batch_size": BATCH, "learning_rate": RATE, "curves": curves}


def cost(pairs: int, seconds: float) -> dict[str, Any]:
    """Samples/s of LeNet alone, built in and as a job file, and their ratio with a 95 % interval (Student's t)."""
    rates: dict[str, list[float]] = {"built in": [], "job file": []}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "lenet_job.py"
        path.write_text(LENET)
        # The same weights, since the time of max pooling and ReLU depends on them: 0.95 with those of other seeds.
        begin = Path(name) / "begin"
        assert not _begun(["-n", "lenet", "--max-rounds", "1"], begin, 0, seconds).wait()
        same = ["--init-from", str(begin / "cpu" / "final.json")]
        flags = {"built in": ["-n", "lenet", *same], "job file": ["--job", str(path), *same]}
        for pair in range(pairs):
            halves: dict[str, list[float]] = {way: [] for way in rates}
            for ways in ([*rates], [*rates][::-1]):  # at the same time, each on a core of its own; then they change
                logs = {way: Path(name) / f"{pair}-{way}-{ways[0]}" for way in ways}
                running = [_begun(flags[way], logs[way], core, seconds) for core, way in enumerate(ways)]
                assert [process.wait() for process in running] == [0, 0]
                for way in ways:
                    halves[way].append(_samples_per_s(logs[way]))
            for way, both in halves.items():
                rates[way].append(statistics.fmean(both))
    ratios = [math.log(own / built) for own, built in zip(rates["job file"], rates["built in"], strict=True)]
    mean, half = statistics.mean(ratios), T_OF_10 * statistics.stdev(ratios) / math.sqrt(pairs)
    return {"rates": rates, "ratio": math.exp(mean), "interval": [math.exp(mean - half), math.exp(mean + half)]}


def _begun(flags: Sequence[str], logs: Path, core: int, seconds: float) -> subprocess.Popen[bytes]:
    """A job alone on one core."""
    command = ["taskset", "-c", str(core), sys.executable, "main.py", "-m", "local", "-c", "1", *flags]
    more = ["-ld", str(logs), "-e", "1000000", "--max-seconds", str(seconds)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*command, *more], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)


def _samples_per_s(logs: Path) -> float:
    """Without the last round, which evaluates."""
    rounds = list(read_rounds(logs / "cpu", print))[:-1]
    return float(sum(each["num_samples"] for each in rounds) / rounds[-1]["total_time"])


def rows_of(folder: Path) -> list[list[str]]:
    """A row a mode: final metric and samples/s in virtual time and on real processes, and the plain loop's metric."""
    curves = json.loads((folder / "plain.json").read_text())["curves"]

    def alone(samples: float) -> float:
        return statistics.median(_at(curve, samples) for curve in curves)

    found: dict[str, list[str]] = {}
    for kind in ("virtual", "real"):
        with (folder / kind / "sweep.csv").open() as file:
            lines = list(csv.DictReader(file))
        for mode in dict.fromkeys(line["mode"] for line in lines):
            its = [line for line in lines if line["mode"] == mode]
            rate, final = (statistics.median(float(line[key]) for line in its) for key in ("samples_per_s", "final_r2"))
            samples = statistics.median(float(line["samples_per_s"]) * float(line["seconds"]) for line in its)
            least = min(float(line["final_r2"]) for line in its)
            shown = f"{final:.3f}" if len(its) == 1 else f"{final:.3f} (least {least:.3f})"
            found.setdefault(mode, [mode]).extend([shown, f"{rate:.0f}", f"{alone(samples):.3f}"])
    return list(found.values())


def _at(curve: Sequence[Sequence[float]], samples: float) -> float:
    """The last value with at most as many samples."""
    return [value for number, value in curve if number <= max(samples, curve[0][0])][-1]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, or prints the table."""
    parser = FlagParser(
        prog="python -m experiments.own_job", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in ("plain", "cost"):
        kinds.add_parser(kind).add_argument("--output", type=Path, required=True)
    kinds.add_parser("table").add_argument("folder", type=Path)
    given = parser.parse_args(arguments)
    if given.kind == "table":
        kinds_of = [f"{what}, {how}" for how in ("virtual", "real") for what in ("R2", "samples/s", "plain loop's R2")]
        print(as_table([["", *kinds_of], *rows_of(given.folder)]))
        return
    found = plain(steps=2000, seeds=3) if given.kind == "plain" else cost(pairs=10, seconds=10)
    given.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    start.run(main)
