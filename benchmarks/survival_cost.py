"""What a job pays for surviving while nothing happens: rounds/s without any of it and with each part, in one run.

    python benchmarks/survival_cost.py --repeats 5

LeNet-5 (or -n), two workers on loopback whose steps take as long as they take. Kinds of jobs and modes take turns, so
that a busy machine harms all alike. Prints the rounds/s of all workers together in each run, then a table of medians.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Sequence

from namespace_job import Loopback, run_job
from rounds_per_s import rounds_per_s

MODES = {
    "ESync": (["-m", "esync", "-ll", "0.0005"], "ps"),
    "SSGD": (["-m", "sync", "-l", "0.0005"], "ps"),
    "ASGD": (["-m", "async", "-l", "0.0005"], "ps"),
    "ESync, ring": (["-m", "esync", "-ll", "0.0005"], "ring"),
    "SSGD, ring": (["-m", "sync", "-l", "0.0005"], "ring"),
}
NOTHING = ["--max-bad-steps", "0"]
LOOKS, CHECKPOINTS, CONTINUES = "looks at numbers", "a checkpoint every 10 rounds", "going on without the lost"
KINDS = {
    "nothing": NOTHING,
    LOOKS: [],
    CHECKPOINTS: [*NOTHING, "--ckpt-frequency", "10"],
    CONTINUES: [*NOTHING, "--on-worker-death", "continue"],
}


def kinds_of(collective: str) -> list[str]:
    """Those that such a job can have."""
    return [kind for kind in KINDS if kind != CONTINUES or collective != "ps"]


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
    found: dict[tuple[str, str], list[float]] = {
        (mode, kind): [] for mode in options.modes for kind in kinds_of(MODES[mode][1])
    }
    here, workers = Loopback(), [Loopback()] * options.workers
    for _ in range(options.repeats):
        for (mode, kind), of_kind in found.items():
            own, collective = MODES[mode]
            flags = [*own, *KINDS[kind], "-n", options.network, "-b", str(options.batch_size)]
            job = run_job(here, workers, options.seconds, [flags] * options.workers, collective=collective)
            of_kind.append(rounds_per_s(job))
            print(f"{mode}, {kind}: {of_kind[-1]:.2f} rounds/s", flush=True)
    print("\n| rounds/s, medians | " + " | ".join(KINDS) + " |\n" + "| --- " * (1 + len(KINDS)) + "|")
    for mode, of_mode in itertools.groupby(found, key=lambda key: key[0]):
        medians = {kind: statistics.median(found[mode, kind]) for _, kind in of_mode}
        nothing = medians.pop("nothing")
        cells = [f"{each:.1f} ({100 * (each / nothing - 1):+.1f} %)" for each in map(medians.get, [*KINDS][1:]) if each]
        print("| " + " | ".join([mode, f"{nothing:.1f}", *cells, *["-"] * (len(KINDS) - 1 - len(cells))]) + " |")


if __name__ == "__main__":
    main()
