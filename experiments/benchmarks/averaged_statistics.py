"""Is a model bad because of BatchNorm's running statistics, and not of its weights?

    .venv/bin/python experiments/benchmarks/averaged_statistics.py --rounds 3 --output
    results/reproduction/averaged-statistics.json .venv/bin/python experiments/benchmarks/averaged_statistics.py --saved
    logs/resnet18-v1/async-niid/virtual/cpu0/final.json

Evaluates models twice: as they are, and with statistics estimated anew from batches of all training samples, the
weights untouched. If the second is good and the first is not, the statistics are why. Then twice as workers train,
where each batch is normalised by itself: batches of all classes, and of the classes that one worker has with `-s 1`. If
only the last is good, the weights need batches of few classes. The models are those that jobs have saved (--saved), or
else ESync's global model after each of its first rounds, in which statistics are averaged with the weights: it trains
in virtual time on a cluster whose workers take very different numbers of local steps a round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

os.environ.setdefault("MXNET_ENGINE_TYPE", "NaiveEngine")
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
import simulate  # noqa: E402
from trainer import array_tree, version  # noqa: E402
from trainer.datasets import loading, partitions  # noqa: E402
from trainer.datasets.samples import Dataset, Samples  # noqa: E402
from trainer.device import DeviceFeed, Evaluator  # noqa: E402
from trainer.engine import mx  # noqa: E402
from trainer.evaluation.saved_model import SavedModel  # noqa: E402
from trainer.parameters import Parameters  # noqa: E402
from trainer.simulation import virtual_cluster  # noqa: E402
from utils import write_json  # noqa: E402

BATCH = 64
BATCHES = 40  # for new statistics: each is moved nine tenths of ten times over


def train(given: argparse.Namespace, folder: Path) -> list[Path]:
    """Trains, and returns a checkpoint for each round."""
    words = ["-m", "esync", "-n", given.network, "--cluster", given.cluster, "-ll", str(given.local_lr)]
    words += ["--max-rounds", str(given.rounds), "--seed", str(given.seed), "-e", "1000000", "--evaluate", "no"]
    words += ["--ckpt-frequency", "1", "--ckpt-keep", str(given.rounds), "--checkpoint", str(folder / "kept")]
    _, (run,) = simulate.parse([*words, "--log-base", str(folder / "logs")])
    virtual_cluster.run(run.job)
    return sorted(folder.rglob("worker-0-*.ckpt"))


def accuracies(network: Any, dataset: Dataset, test_images: int, workers: int) -> dict[str, float]:
    """Test accuracy of a network as it is, with statistics of its own weights, and with those of each batch."""
    feed = DeviceFeed(mx.cpu(), 0)
    test = Samples(*(part[:test_images] for part in dataset.test))
    evaluate = Evaluator(network, test, feed, BATCH)
    as_it_is = evaluate()
    for begin in range(0, BATCH * BATCHES, BATCH):
        images, _ = feed(Samples(*(part[begin : begin + BATCH] for part in dataset.train)))
        with mx.autograd.record():
            outputs = network(images)
        outputs.backward()  # MXNet moves the statistics in this pass; the weights stay
        mx.nd.waitall()
    found = {"as it is": as_it_is, "new statistics": evaluate()}
    for name, by_class in (("batches of all classes", False), ("batches of a worker's", True)):
        parts = partitions.partition(test.labels, workers, by_class, seed=0)
        order = np.concatenate([np.random.default_rng(0).permutation(part) for part in parts])
        with mx.autograd.train_mode():  # normalises each batch by itself
            found[name] = Evaluator(network, Samples(*(part[order] for part in test)), feed, BATCH)()
    return found


def of_rounds(given: argparse.Namespace, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """ESync's global models."""
    network = models.build(given.network, (1, 28, 28), dataset.classes, mx.cpu(), given.seed)
    with tempfile.TemporaryDirectory() as name:
        for number, path in enumerate(train(given, Path(name)), start=1):
            state = array_tree.decode(path.read_bytes())["state"]
            Parameters(network).replace([mx.nd.array(array) for array in state["model"]])
            about = {"round": number, "seconds": round(state["elapsed_s"], 1)}
            yield about | accuracies(network, dataset, given.test_images, given.workers)


def of_saved(given: argparse.Namespace, dataset: Dataset) -> Iterator[dict[str, Any]]:
    """The models that jobs have saved."""
    for path in given.saved:
        its = SavedModel.find(path)
        about = {name: its.about[name] for name in ("mode", "round")}
        yield about | accuracies(its.load(mx.cpu()), dataset, given.test_images, given.workers)


def main() -> None:
    """Evaluates each model, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--saved", type=Path, nargs="+", default=[], help="final.json or best.json of jobs")
    parser.add_argument("--network", default="resnet18-v1")
    parser.add_argument("--cluster", default="paper")
    parser.add_argument("--local-lr", type=float, default=0.0005)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=6, help="that the classes are divided among")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="the numbers as JSON")
    given = parser.parse_args()
    dataset = loading.load("fashion-mnist", str(ROOT / "data"))
    rows = list((of_saved if given.saved else of_rounds)(given, dataset))
    print(f"| {' | '.join(rows[0])} |\n{'| --- ' * len(rows[0])}|")
    for row in rows:
        print(f"| {' | '.join(f'{value:.4g}' if isinstance(value, float) else str(value) for value in row.values())} |")
    if given.output:
        about = {name: value for name, value in vars(given).items() if name != "output"}
        about["saved"] = list(map(str, given.saved))
        write_json(given.output, {"about": about, "commit": version.commit(), "rows": rows})


if __name__ == "__main__":
    main()
