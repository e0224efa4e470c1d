"""Messages and bytes of a round, by the number of workers: at the state server, and at the hub or MXNet's server.

    .venv/bin/python -m experiments.scale --workers 100 1000 10000 --rounds 3

Jobs in virtual time whose networks compute nothing (simulate.py -n none). Step times are drawn by a seed, lognormal
around 0.1 s. Messages to the state server are counted as they are sent, their bytes as the JSON of the request's body.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import argparse
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import simulate
from esync.protocol import Message, Reply, Timeouts
from experiments import markdown
from flag_parser import FlagParser
from trainer.run_logs.rounds import read_rounds
from trainer.simulation.in_process import InProcessLink
from trainer.simulation.virtual_cluster import VirtualRun

MODEL_BYTES = 1_000_000
SPREAD = 0.5  # sigma of the logarithm of the step times
WAYS = {
    "sync, kvstore": ["-m", "sync", "-l", "0.001"],
    "esync, kvstore": ["-m", "esync", "-ll", "0.001"],
    "wbsp": ["-m", "wbsp", "-ll", "0.001"],
}


class Counted:
    """Counts messages to the state server while it is entered."""

    def __enter__(self) -> Counted:
        self.messages = self.num_bytes = 0
        self._send = InProcessLink.send

        def send(link: InProcessLink, message: Message, timeouts: Timeouts) -> Reply:
            self.messages += 1
            self.num_bytes += len(json.dumps(message))
            return self._send(link, message, timeouts)

        InProcessLink.send = send  # type: ignore[assignment, method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        InProcessLink.send = self._send  # type: ignore[method-assign]


def measured(way: str, workers: int, rounds: int, folder: Path) -> dict[str, Any]:
    """A job of so many rounds; what a round of all workers is, on average."""
    draw, cluster = random.Random(workers), folder / "cluster.csv"
    steps_s = [0.1 * draw.lognormvariate(0, SPREAD) for _ in range(workers)]
    cluster.write_text("step_time_s\n" + "".join(f"{step_s:.4f}\n" for step_s in steps_s))
    words = [*WAYS[way], "-n", "none", "--cluster", str(cluster), "--log-base", str(folder / "logs")]
    _, (run,) = simulate.parse([*words, "--max-rounds", str(rounds), "--model-bytes", str(MODEL_BYTES)])
    begin = time.process_time()
    with Counted() as counted:
        VirtualRun(run.job).run()
    own = [*read_rounds(Path(run.job.config.log_dir) / "cpu0", lambda text: None)]
    pushed = sum(each.bytes_pushed or 0 for each in own)
    of_round = {"messages": counted.messages, "kb": counted.num_bytes / 1e3, "models": workers * pushed / MODEL_BYTES}
    of_round |= {"steps": sum(len(each.steps) for each in own)}  # of worker 0
    means = {name: total / len(own) for name, total in of_round.items()}
    return {"way": way, "workers": workers, **means, "cpu_s": time.process_time() - begin}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table."""
    form = argparse.RawDescriptionHelpFormatter
    parser = FlagParser("experiments/scale.py", description=__doc__, formatter_class=form)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    lines = [["way", "workers", "messages a round", "KB a round", "models pushed a round", "CPU s of the simulation"]]
    for way in WAYS:
        for workers in given.workers:
            with tempfile.TemporaryDirectory() as folder:
                row = measured(way, workers, given.rounds, Path(folder))
            lines.append([way, *(f"{row[name]:.0f}" for name in ("workers", "messages", "kb", "models", "cpu_s"))])
            print(json.dumps(row), flush=True)
    print(markdown.table(lines))
    return 0


if __name__ == "__main__":
    start.run(main)
