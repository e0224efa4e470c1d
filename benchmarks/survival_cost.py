"""What a job pays for surviving while nothing happens: rounds/s without and with the looks at numbers, in one
alternating run.

    python benchmarks/survival_cost.py --repeats 5

LeNet-5 (or -n), two workers on loopback whose steps take as long as they take. Kinds of jobs and modes take turns, so
that a busy machine harms all alike. Prints the rounds/s of all workers together in each run, then a table of medians.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

from namespace_job import Loopback, run_job
from rounds_per_s import rounds_per_s

MODES = {
    "ESync": ["-m", "esync", "-ll", "0.0005"],
    "SSGD": ["-m", "sync", "-l", "0.0005"],
    "ASGD": ["-m", "async", "-l", "0.0005"],
}
KINDS = {
    "nothing": ["--max-bad-steps", "0"],
    "looks at numbers": [],
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures all kinds of jobs in all modes, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--network", default="lenet")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=8, help="of each run")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    found: dict[tuple[str, str], list[float]] = {(mode, kind): [] for mode in options.modes for kind in KINDS}
    here, workers = Loopback(), [Loopback()] * options.workers
    for _ in range(options.repeats):
        for (mode, kind), of_both in found.items():
            flags = [*MODES[mode], *KINDS[kind], "-n", options.network, "-b", str(options.batch_size)]
            of_both.append(rounds_per_s(run_job(here, workers, options.seconds, [flags] * options.workers)))
            print(f"{mode}, {kind}: {of_both[-1]:.2f} rounds/s", flush=True)
    for mode in options.modes:
        medians = [statistics.median(found[mode, kind]) for kind in KINDS]
        cells = (f"{each:.1f} ({100 * (each / medians[0] - 1):+.1f} %)" for each in medians[1:])
        print(f"| {mode} | {medians[0]:.1f} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
