"""Messages and bytes of a round, by the number of workers: at the state server, and at the hub or MXNet's server.

    .venv/bin/python -m experiments.study.scale --workers 100 1000 10000 --rounds 3

Jobs in virtual time whose networks compute nothing (simulate.py -n none). Step times are drawn by a seed, lognormal
around 0.1 s. Messages to the state server are counted as they are sent, their bytes as the JSON of the request's body.
"""

from __future__ import annotations

if __name__ == "__main__":
    import start  # first: what it does is for the other imports too

import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esync.protocol import Message, Reply, Timeouts
from experiments import markdown
from flag_parser import FlagParser

MODEL_BYTES = 1_000_000
SPREAD = 0.5  # sigma of the logarithm of the step times
WAYS = {
    "sync, kvstore": ["-m", "sync", "-l", "0.001"],
    "esync, kvstore": ["-m", "esync", "-ll", "0.001"],
    "wbsp": ["-m", "wbsp", "-ll", "0.001"],
}


def measured(way: str, workers: int, rounds: int, folder: Path) -> dict[str, Any]:
    """A job of so many rounds; what a round of all workers is, on average."""
    import simulate
    from trainer.run_logs.rounds import read_rounds
    from trainer.simulation.in_process import InProcessLink
    from trainer.simulation.virtual_cluster import VirtualRun

    draw, cluster = random.Random(workers), folder / "cluster.csv"
    steps_s = [0.1 * draw.lognormvariate(0, SPREAD) for _ in range(workers)]
    cluster.write_text("step_time_s\n" + "".join(f"{step_s:.4f}\n" for step_s in steps_s))
    words = [*WAYS[way], "-n", "none", "--cluster", str(cluster), "--log-base", str(folder / "logs")]
    _, (run,) = simulate.parse([*words, "--max-rounds", str(rounds), "--model-bytes", str(MODEL_BYTES)])
    sent: list[int] = []  # bytes of each message to the state server
    send = InProcessLink.send

    def counted(link: InProcessLink, message: Message, timeouts: Timeouts) -> Reply:
        sent.append(len(json.dumps(message)))
        return send(link, message, timeouts)

    InProcessLink.send = counted  # type: ignore[assignment, method-assign]
    try:
        VirtualRun(run.job).run()
    finally:
        InProcessLink.send = send  # type: ignore[method-assign]
    own = [*read_rounds(Path(run.job.config.log_dir) / "cpu0", lambda text: None)]
    models = workers * sum(each.bytes_pushed or 0 for each in own) / MODEL_BYTES
    means = {name: total / len(own) for name, total in (("messages", len(sent)), ("kb", sum(sent) / 1e3))}
    return {"way": way, "workers": workers, **means, "models": models / len(own)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a table."""
    parser = FlagParser("experiments/study/scale.py", doc=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(arguments)
    lines = [["way", "workers", "messages a round", "KB a round", "models pushed a round"]]
    for way in WAYS:
        for workers in given.workers:
            with tempfile.TemporaryDirectory() as folder:
                row = measured(way, workers, given.rounds, Path(folder))
            lines.append([way, *(f"{row[name]:.0f}" for name in ("workers", "messages", "kb", "models"))])
            print(json.dumps(row), flush=True)
    print(markdown.table(lines))
    return 0


if __name__ == "__main__":
    start.run(main)
