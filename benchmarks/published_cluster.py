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

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.virtual_timing import measure

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
        measured = measure("paper", [*row.flags, "--max-seconds", seconds])
        fast, slow = measured.computing[:NUM_FAST], measured.computing[NUM_FAST:]
        cells = [
            beside(measured.samples_per_s, row.samples_per_s),
            beside(measured.traffic, row.traffic),
            *(f"{min(fast):.2f} to {max(fast):.2f}", row.fast_ratio),
            *(f"{min(slow):.2f} to {max(slow):.2f}", row.slow_ratio),
        ]
        print(f"| {row.title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
