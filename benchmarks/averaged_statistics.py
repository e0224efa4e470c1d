"""Is a model bad after ESync's first rounds because BatchNorm's running statistics are averaged with the weights?

    .venv/bin/python benchmarks/averaged_statistics.py --rounds 3 --output results/averaged-statistics.json

Trains in virtual time on a cluster whose workers take very different numbers of local steps a round, with a checkpoint
after each. Then each round's global model is evaluated twice: as it is, and with statistics estimated anew from
training batches, the weights untouched. If the second is good and the first is not, the statistics are why.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("MXNET_ENGINE_TYPE", "NaiveEngine")
os.environ.setdefault("OMP_NUM_THREADS", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import models  # noqa: E402
import simulate  # noqa: E402
from trainer import checkpoints, data, version, virtual_cluster  # noqa: E402
from trainer.device import DeviceFeed, Evaluator  # noqa: E402
from trainer.engine import mx  # noqa: E402
from trainer.parameters import Parameters  # noqa: E402
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


def accuracies(network: Any, model: Sequence[Any], dataset: data.Dataset, test_images: int) -> dict[str, float]:
    """Test accuracy of a model as it is, and with statistics of its own weights."""
    parameters, feed = Parameters(network), DeviceFeed(mx.cpu(), 0)
    parameters.replace([mx.nd.array(array) for array in model])
    test = data.Samples(*(part[:test_images] for part in dataset.test))
    evaluate = Evaluator(network, test, feed, BATCH)
    as_it_is = evaluate()
    for begin in range(0, BATCH * BATCHES, BATCH):
        images, _ = feed(data.Samples(*(part[begin : begin + BATCH] for part in dataset.train)))
        with mx.autograd.record():
            outputs = network(images)
        outputs.backward()  # MXNet moves the statistics in this pass; the weights stay
        mx.nd.waitall()
    return {"as it is": as_it_is, "new statistics": evaluate()}


def main() -> None:
    """Trains, evaluates each round's model twice, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="resnet18-v1")
    parser.add_argument("--cluster", default="paper")
    parser.add_argument("--local-lr", type=float, default=0.0005)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--test-images", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="the numbers as JSON")
    given = parser.parse_args()
    dataset = data.load("fashion-mnist", str(ROOT / "data"))
    network = models.build(given.network, (1, 28, 28), dataset.classes, mx.cpu(), given.seed)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for number, path in enumerate(train(given, Path(name)), start=1):
            state = checkpoints.decode(path.read_bytes())["state"]
            found = accuracies(network, state["model"], dataset, given.test_images)
            rows.append({"round": number, "seconds": round(state["elapsed_s"], 1)} | found)
    print("| round | virtual s | accuracy | with new statistics |\n| --- | --- | --- | --- |")
    for row in rows:
        print(f"| {row['round']} | {row['seconds']:g} | {row['as it is']:.3f} | {row['new statistics']:.3f} |")
    if given.output:
        about = {name: value for name, value in vars(given).items() if name != "output"}
        write_json(given.output, {"about": about, "commit": version.commit(), "rows": rows})


if __name__ == "__main__":
    main()
