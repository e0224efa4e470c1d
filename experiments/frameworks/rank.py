"""A process of a way of peers.py that runs a loop of loops.py until it is ended, and logs rounds as a worker does.

The batches are drawn at random from its part of Fashion-MNIST. Before each it sleeps for what a step lacks of
`--step-s`; what a step takes by itself is the least CPU time of one so far. With `--evaluate` a forked process of low
priority evaluates the network, at most once a second.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import importlib
import inspect
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from esync.measure import LINES_FILE
from experiments.frameworks import loops
from flag_parser import FlagParser
from trainer.datasets import loading
from trainer.datasets.samples import WHITE, Dataset, Samples
from trainer.network import numpy_of
from trainer.runtime.own_process import die_with, name_process
from utils import append_line

ROOT, BATCH, LOGGED_S, EVALUATED_S = Path(__file__).resolve().parents[2], 64, 0.1, 1.0
CURVE = "curve.jsonl"  # [seconds, test accuracy]
Arrays = Callable[[np.ndarray, np.ndarray], tuple[Any, Any]]  # images and classes as the loop takes them


def batches(given: argparse.Namespace, dataset: Dataset, arrays: Arrays, made: list[Any]) -> Iterator[tuple[Any, Any]]:
    """Batches without end; logs what the loop did with them. An all-reduce is taken to be a ring."""
    random, own = (
        np.random.default_rng([given.seed, given.rank]),
        np.arange(given.rank, len(dataset.train.labels), given.ranks),
    )
    every = loops.EVERY if "EVERY" in inspect.getsource(getattr(loops, given.loop)) else 1
    alone_s, number, samples, child = math.inf, 0, 0, 0
    begin = told = evaluated = time.monotonic()
    for step in itertools.count(1):
        began = time.thread_time()
        chosen = random.choice(own, BATCH)
        batch = arrays(dataset.train.images[chosen], dataset.train.labels[chosen])
        time.sleep(max(0.0, given.step_s - alone_s))
        yield batch
        alone_s = min(alone_s, time.thread_time() - began)
        samples, now = samples + BATCH, time.monotonic()
        if step % every == 0 and now - told > LOGGED_S:
            number, told = number + 1, now
            its = made[0].collect_params().values() if given.network.startswith("gluon") else made[0].parameters()
            sent = 2 * (given.ranks - 1) * 4 * sum(math.prod(each.shape) for each in its) // given.ranks
            record = {"num_iters": number, "num_samples": samples, "total_time": now - begin, "bytes_pushed": sent}
            append_line(given.folder / LINES_FILE, json.dumps(record))
            samples = 0
        if given.evaluate and now - evaluated > EVALUATED_S and (not child or os.waitpid(child, os.WNOHANG)[0]):
            evaluated = now
            if not (child := os.fork()):
                _evaluate(made[0], dataset.test, arrays, given.folder / CURVE, now - begin)


def _evaluate(network: Any, test: Samples, arrays: Arrays, path: Path, seconds: float) -> None:
    """Ends the process."""
    try:
        die_with(os.getppid())
        name_process("evaluator")
        os.nice(10)
        if hasattr(network, "eval"):  # of torch, for BatchNorm
            network.eval()
        right = 0
        for images, classes in zip(np.split(test.images, 10), np.split(test.labels, 10), strict=True):
            right += int((numpy_of(network(arrays(images, classes)[0])).argmax(1) == classes).sum())
        append_line(path, json.dumps([seconds, right / len(test.labels)]))
    finally:
        os._exit(0)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the loop."""
    parser = FlagParser("experiments/frameworks/rank.py", doc=__doc__)
    parser.add_argument("loop")
    parser.add_argument("more", nargs="*", help="other arguments of the loop")
    for name, kind in (
        ("--network", str),
        ("--folder", Path),
        ("--step-s", float),
        ("--rank", int),
        ("--ranks", int),
        ("--seed", int),
    ):
        parser.add_argument(name, type=kind, required=True)
    parser.add_argument("--evaluate", action="store_true")
    given = parser.parse_args(arguments)
    name_process(f"worker {given.rank}")  # as the launcher does
    given.folder.mkdir()
    if given.network.startswith("gluon"):
        make, array = getattr(loops, given.network), importlib.import_module("mxnet").nd.array
    else:
        make = importlib.import_module(f"experiments.frameworks.{given.network}").network
        array = importlib.import_module("torch").from_numpy
    made: list[Any] = []

    def network() -> Any:
        made.append(make())
        return made[0]

    def arrays(images: np.ndarray, classes: np.ndarray) -> tuple[Any, Any]:
        return array(images / np.float32(WHITE)), array(classes.astype("int64"))

    dataset = loading.load("fashion-mnist", str(ROOT / "data"))
    getattr(loops, given.loop)(network, batches(given, dataset, arrays, made), *given.more)


if __name__ == "__main__":
    start.run(main)
