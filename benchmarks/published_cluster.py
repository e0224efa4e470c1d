"""The preprint's cluster in virtual time, timing only, beside the published figures. Takes about a minute.

    .venv/bin/python benchmarks/published_cluster.py [SECONDS]

4 workers of 0.03 s and 2 of 3.5 s a step train a model of 44.7 MB (ResNet-18) with batches of 64. What their links
carry follows from SSGD's published pace (scripts/clusters/README.md), so SSGD agrees by construction and the others are
predicted. ASGD and DC-ASGD come out too slow: where workers do not send all at once, each has more of a shared link.
The published ESync waits for the answer to each question, and a question costs it about as much as a GPU's step; the
published computing ratio seems to count that. This project's asks beside its training.
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
    samples_per_s: str = ""
    fast_ratio: str = ""
    slow_ratio: str = ""


ROWS = (
    Row("ESync as published", ("-m", "esync", *AS_PUBLISHED), "1555", "0.37", "0.40"),
    Row("ESync of this project", ("-m", "esync")),
    Row("SSGD", ("-m", "sync"), "45", "0.01 to 0.26", "0.40"),
    Row("ASGD", ("-m", "async"), "120", "0.02 to 0.52", "0.6"),
    Row("DC-ASGD", ("-m", "dcasgd"), "105", "0.02 to 0.43", "0.53"),
)


def main() -> None:
    """Prints the table, as the rows are done."""
    seconds = sys.argv[1] if len(sys.argv) > 1 else SECONDS
    print(f"| {seconds} virtual s | samples/s | published | ratio GPUs | published | ratio CPUs | published |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in ROWS:
        measured = measure("paper", [*row.flags, "--max-seconds", seconds])
        fast, slow = measured.computing[:NUM_FAST], measured.computing[NUM_FAST:]
        cells = [
            *(f"{measured.samples_per_s:.0f}", row.samples_per_s),
            *(f"{min(fast):.2f} to {max(fast):.2f}", row.fast_ratio),
            *(f"{min(slow):.2f} to {max(slow):.2f}", row.slow_ratio),
        ]
        print(f"| {row.title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
