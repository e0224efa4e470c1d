"""Samples/s of a loop of PyTorch by itself, with DistributedDataParallel, and with `esync.Worker` by several rules.

    python -m experiments.client.speeds --out results/client/speeds.jsonl --step-s 0.02,0.05,0.2 --seconds 20 --runs 3

Each way runs once in each of `--runs` turns, in its own processes, a rank for each number of `--step-s`: the least
seconds of a step, whose rest the rank sleeps. A line of the output is one run of a way: steps/s of each rank, samples/s
of all, and the median microseconds of a `worker.step` that did not average.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from flag_parser import FlagParser
from utils import append_line

ROOT = Path(__file__).resolve().parents[2]
BATCH = 64
PORT, MASTER_PORT = 10610, 29610
WAYS: dict[str, dict[str, Any]] = {  # options of esync.Worker
    "plain loop": {},
    "DDP": {},
    "esync": {"rule": "esync"},
    "esync, anchor 8": {"rule": "esync", "anchor": 8},
    "esync, anchor auto": {"rule": "esync", "anchor": "auto"},
    "esync-outer": {"rule": "esync-outer"},
    "local-sgd, 20 each": {"rule": "local-sgd", "sync_every": 20},
    "local-sgd, by hand": {"rule": "local-sgd", "sync_every": None},  # in proportion to the speeds, 20 for the fastest
}


def rank_main(way: str, step_s: Sequence[float], seconds: float) -> None:
    """Trains for these seconds as one rank; prints what it did."""
    import torch
    import torch.distributed as dist

    import esync

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, options = dist.get_rank(), dict(WAYS[way])
    if "sync_every" in options:
        options["sync_every"] = options["sync_every"] or round(20 * min(step_s) / step_s[rank])
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(784, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    trained = torch.nn.parallel.DistributedDataParallel(model) if way == "DDP" else model
    optimizer = torch.optim.SGD(trained.parameters(), lr=0.01, momentum=0.9)
    x, y = torch.rand(BATCH, 1, 28, 28), torch.randint(0, 10, (BATCH,))
    steps, took_s, none = 0, [], contextlib.nullcontext()
    over = torch.zeros(1)
    with esync.Worker(model, optimizer, **options) if options else none as worker:
        dist.barrier()
        begin = time.monotonic()
        while True:
            step_begin = time.monotonic()
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(trained(x), y).backward()
            optimizer.step()
            time.sleep(max(0.0, step_begin + step_s[rank] - time.monotonic()))
            steps += 1
            is_over = time.monotonic() - begin > seconds
            if worker is not None:
                if is_over:
                    worker.stop()
                asked = time.monotonic()
                if worker.step(BATCH) is None:
                    took_s.append(time.monotonic() - asked)
                if worker.is_done:
                    break
            elif way == "DDP":  # all stop after the same step
                over[0] = float(is_over)
                dist.all_reduce(over)
                if over[0]:
                    break
            elif is_over:
                break
        elapsed_s = time.monotonic() - begin
    told = {"steps_per_s": steps / elapsed_s, "step_us": 1e6 * statistics.median(took_s) if took_s else None}
    print(json.dumps(told), flush=True)


def run(way: str, step_s: str, seconds: float) -> dict[str, Any]:
    """One run of a way."""
    ranks = []
    count = len(step_s.split(","))
    for rank in range(count):
        environment = {
            **os.environ,
            **{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1"},
            **{"MASTER_PORT": str(MASTER_PORT), "OMP_NUM_THREADS": "1", "ESYNC_SERVER": f"127.0.0.1:{PORT}"},
        }
        words = ["-m", "experiments.client.speeds", "--rank", way, "--step-s", step_s, "--seconds", str(seconds)]
        ranks.append(subprocess.Popen([sys.executable, *words], cwd=ROOT, env=environment, stdout=subprocess.PIPE))
    told = [json.loads(rank.communicate()[0]) for rank in ranks]
    of_ranks = [each["steps_per_s"] for each in told]
    about = {"way": way, "step_s": step_s, "samples_per_s": BATCH * sum(of_ranks), "ranks": of_ranks}
    return {**about, "step_us": [each["step_us"] for each in told]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs all ways in turns, and prints the medians."""
    form = argparse.RawDescriptionHelpFormatter
    parser = FlagParser("experiments/client/speeds.py", description=__doc__, formatter_class=form)
    parser.add_argument("--step-s", default="0.02,0.05,0.2")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rank", choices=WAYS, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.rank:
        rank_main(given.rank, [float(each) for each in given.step_s.split(",")], given.seconds)
        return 0
    words = [sys.executable, "-m", "esync", "serve", f"127.0.0.1:{PORT}"]
    server = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3.0)
        found: dict[str, list[dict[str, Any]]] = {}
        for _ in range(given.runs):
            for way in given.ways:
                one = run(way, given.step_s, given.seconds)
                found.setdefault(way, []).append(one)
                if given.out is not None:
                    append_line(given.out, json.dumps(one))
        for way, runs in found.items():
            rates = sorted(each["samples_per_s"] for each in runs)
            steps = [each["step_us"][0] for each in runs if each["step_us"][0] is not None]
            told = f", step {statistics.median(steps):.0f} us" if steps else ""
            print(f"{way}: {statistics.median(rates):.0f} samples/s ({rates[0]:.0f} to {rates[-1]:.0f}){told}")
    finally:
        server.terminate()
        server.wait()
    return 0


if __name__ == "__main__":
    start.run(main)
