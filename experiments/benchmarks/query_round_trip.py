"""What a round trip to the state server costs ESync's workers, with blocking and with non-blocking queries.

    python experiments/benchmarks/query_round_trip.py [--rounds 20] [--delays 0,0.02,0.1,0.2] [--workers 0.03,0.06,0.6]

Runs a real local cluster (lenet, real data) for each way and each emulated round trip, one after the other, and prints
for the fastest worker, as means over the rounds after the first three:

    steps       local steps a round
    asking      time of the training thread in questions, ms a step
    waiting     from the end of its last step to the new global model, ms: mean and median; contains the transmission
    lost        time in steps that were given up, ms a round
    accuracy    test accuracy after the last round
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from config import QUERIES  # noqa: E402
from trainer.run_logs.measure import ABANDONED, CHECK_READY, GLOBAL_UPDATE  # noqa: E402
from trainer.run_logs.round_log import read_rounds  # noqa: E402

FIRST_ROUNDS = 3  # in which the workers get to know each other's times
COLUMNS = "{:<13} {:>10} {:>7} {:>11} {:>18} {:>9} {:>9}"


def run(query: str, delay_s: float, workers: str, rounds: int, seed: int) -> list[dict[str, Any]]:
    """Trains on a local cluster; returns the round logs of the first worker."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = ["--log-base", folder, "--mode", "esync", "--network", "lenet", "--workers", workers]
        # Evaluated only at the very end: an evaluation on rank 0 makes the others wait.
        flags = ["--max-rounds", str(rounds), "-e", str(rounds + 1), "-ll", "0.003", "--seed", str(seed)]
        flags += ["--query", query, "--query-delay", str(delay_s)]
        command = [sys.executable, "-m", "scripts.launch.local_cluster", *cluster, "--", *flags]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (device,) = Path(folder).glob("lenet/esync/*/cpu0")
        return list(read_rounds(device, print))


def row(query: str, delay_s: float, rounds: list[dict[str, Any]]) -> str:
    """One line of the table."""
    steady = rounds[FIRST_ROUNDS:]
    entries = [list(record["time"].values()) for record in steady]
    steps = statistics.mean(len(steps) - 1 for steps in entries)
    asking = sum(entry.get(CHECK_READY, 0.0) for steps in entries for entry in steps)
    waiting = [steps[-1][GLOBAL_UPDATE] for steps in entries]
    lost = statistics.mean(steps[-1].get(ABANDONED, 0.0) for steps in entries)
    return COLUMNS.format(
        query,
        f"{delay_s * 1e3:g} ms",
        f"{steps:.1f}",
        f"{asking / sum(len(steps) for steps in entries) * 1e3:.2f}",
        f"{statistics.mean(waiting) * 1e3:.1f} / {statistics.median(waiting) * 1e3:.1f}",
        f"{lost * 1e3:.1f}",
        f"{rounds[-1]['accuracy']:.4f}",
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--delays", default="0,0.02,0.1,0.2", help="emulated round trips in seconds")
    parser.add_argument("--workers", default="0.03,0.06,0.6", help="step times in seconds, the fastest first")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(f"workers with steps of {given.workers} s, {given.rounds} rounds, the fastest worker's figures")
    print(COLUMNS.format("query", "round trip", "steps", "asking (ms)", "waiting (ms)", "lost (ms)", "accuracy"))
    for delay_s in map(float, given.delays.split(",")):
        for query in QUERIES:
            rounds = run(query, delay_s, given.workers, given.rounds, given.seed)
            print(row(query, delay_s, rounds), flush=True)


if __name__ == "__main__":
    main()
