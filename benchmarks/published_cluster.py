"""The preprint's cluster in virtual time, timing only, beside the published figures. Takes about a minute.

    .venv/bin/python benchmarks/published_cluster.py [SECONDS]

4 workers of 0.03 s and 2 of 3.5 s a step train a model of 44.7 MB (ResNet-18) with batches of 64. The one link that
they share was fitted to SSGD's published pace, as the published program is taken to send (key_by_key.py). These rows
are this project's trainers, which send otherwise and so are faster with SSGD. "ESync as published" waits for the answer
to each question, which costs about as much as a GPU's step; the published computing ratio seems to count that. This
project's asks beside its training. Traffic is counted one way, as the published one seems to be. A ratio behind a
published figure is simulated / published.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from utils import COMPUTING_STAGES, read_rounds  # noqa: E402

SECONDS = "300"
NUM_FAST = 4  # the first workers of the cluster file
AS_PUBLISHED = ("--policy", "preprint", "--query", "blocking", "--query-delay", "0.029")


class Row(NamedTuple):
    """A line of the table: flags of simulate.py, and what was published for them."""

    title: str
    flags: tuple[str, ...]
    samples_per_s: float = 0.0  # published; 0: nothing was
    traffic: float = 0.0  # published, MB/s
    fast_ratio: str = ""
    slow_ratio: str = ""


ROWS = (
    Row("ESync as published", ("-m", "esync", *AS_PUBLISHED), 1555, 21, "0.37", "0.40"),
    Row("ESync of this project", ("-m", "esync")),
    Row("SSGD", ("-m", "sync"), 45, 31, "0.01 to 0.26", "0.40"),
    Row("ASGD", ("-m", "async"), 120, 80, "0.02 to 0.52", "0.6"),
    Row("DC-ASGD", ("-m", "dcasgd"), 105, 73, "0.02 to 0.43", "0.53"),
)


class Simulated(NamedTuple):
    """What a run gave."""

    samples_per_s: float
    traffic: float  # MB/s, one way
    ratios: list[float]  # computing time over all time, by rank


def simulate(flags: tuple[str, ...], seconds: str) -> Simulated:
    """Trains on the cluster in virtual time."""
    with tempfile.TemporaryDirectory() as folder:
        own = ["--cluster", "paper", "-n", "none", "--max-seconds", seconds, "--log-base", folder]
        command = [sys.executable, str(ROOT / "simulate.py"), *own, *flags]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"})
        devices = sorted(Path(folder).glob("none/*/virtual/cpu*"), key=lambda path: int(path.name[3:]))
        runs = [list(read_rounds(device, lambda text: None)) for device in devices]
    ends = [rounds[-1]["total_time"] for rounds in runs]
    samples, pushed = (sum(each[key] for rounds in runs for each in rounds) for key in ("num_samples", "bytes_pushed"))
    computing = [
        sum(times.get(stage, 0.0) for each in rounds for times in each["time"].values() for stage in COMPUTING_STAGES)
        for rounds in runs
    ]
    ratios = [spent / end for spent, end in zip(computing, ends, strict=True)]
    return Simulated(samples / max(ends), pushed / max(ends) / 1e6, ratios)


def beside(simulated: float, published: float) -> str:
    """Two cells: what was simulated, and what was published with the ratio of the two."""
    return f"{simulated:.0f} | " + (f"{published:.0f} ({simulated / published:.2f})" if published else "")


def main() -> None:
    """Prints the table, as the rows are done."""
    seconds = sys.argv[1] if len(sys.argv) > 1 else SECONDS
    titles = (f"{seconds} virtual s", "samples/s", "MB/s", "computing ratio of GPUs", "of CPUs")
    print(f"| {' | published | '.join(titles).replace('published | ', '', 1)} | published |")
    print("| --- " * (2 * len(titles) - 1) + "|")
    for row in ROWS:
        speed, traffic, ratios = simulate(row.flags, seconds)
        fast, slow = ratios[:NUM_FAST], ratios[NUM_FAST:]
        cells = [
            beside(speed, row.samples_per_s),
            beside(traffic, row.traffic),
            *(f"{min(fast):.2f} to {max(fast):.2f}", row.fast_ratio),
            *(f"{min(slow):.2f} to {max(slow):.2f}", row.slow_ratio),
        ]
        print(f"| {row.title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
